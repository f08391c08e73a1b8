"""The job as JSON: what may be enqueued, what others may have written, and the numbers that are read from it."""

from __future__ import annotations

import base64
import enum
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from cogworkerd.payload import (
    MAX_DEPTH,
    MAX_JID,
    UNPARSEABLE,
    Unparseable,
    check_json,
    dump,
    failures_of,
    new_jid,
    parse,
    queue_of,
    retry_budget,
    unparseable,
)

MOST = 2**31 - 1


class Colour(enum.IntEnum):
    RED = 3


class Plain:
    pass


def kind_of(value: object) -> str:
    """Names cases whose values are too long, or too odd, for a name."""
    return type(value).__name__


def nested(depth: int, inner: Any = 0) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


# ---- what may be enqueued ------------------------------------------------------------------------------

GOOD: list[Any] = [
    2**53 + 1,
    130775545883395173,
    -(10**30),
    1e16,
    0.1,
    -0.0,
    5e-324,
    "",
    "\u0000",
    "é\U0001f600",
    "\u2028",
    True,
    None,
    [],
    {"k": {"k": 1}},
    {"": {"é": []}},
    10**4000,
]


def test_c47a_values_come_back_with_their_types_and_signs() -> None:
    raw = dump({"class": "a", "jid": "j", "args": check_json(GOOD, "args")})
    back = parse(raw)["args"]
    assert repr(back) == repr(GOOD)
    assert dump(parse(raw)) == raw


def test_tuples_arrive_as_lists_and_subclasses_of_numbers_as_numbers() -> None:
    assert check_json((1, (2, [(3,)])), "args[0]") == [1, [2, [[3]]]]
    assert json.loads(dump({"a": check_json(Colour.RED, "args[0]")})) == {"a": 3}


@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        (float("nan"), "args[0]", "nan"),
        ([float("inf")], "args[0][0]", "inf"),
        (-math.inf, "args[0]", "-inf"),
        ({"when": datetime.now(UTC)}, 'args[0]["when"]', "datetime"),
        (b"x", "args[0]", "bytes"),
        ({1}, "args[0]", "set"),
        ({1: "a"}, "args[0]", "int"),
        ({None: 1}, "args[0]", "NoneType"),
        ({"a": {(1, 2): 1}}, 'args[0]["a"]', "tuple"),
        (Decimal("1"), "args[0]", "Decimal"),
        (Plain(), "args[0]", "Plain"),
        (Plain, "args[0]", "type"),
        ((1, [2, {"k": (3, {4})}]), 'args[0][1][1]["k"][1]', "set"),
        ({"a b": {'"': b""}}, 'args[0]["a b"]["\\""]', "bytes"),
        (10**5000, "args[0]", "digits"),
        (-(10**5000), "args[0]", "digits"),
    ],
    ids=kind_of,
)
def test_c47b_what_is_not_json_is_a_type_error_with_the_path_to_it(value: object, path: str, what: str) -> None:
    with pytest.raises(TypeError) as caught:
        check_json(value, "args[0]")
    assert str(caught.value).startswith(f"{path}:")
    assert what in str(caught.value)


@pytest.mark.parametrize("value", ["\ud800", ["a", "x\udfffy"], {"\ud800": 1}, {"k": "\udc80"}])
def test_lone_surrogates_are_refused_at_the_call(value: object) -> None:
    with pytest.raises(TypeError, match="surrogate"):
        check_json(value, "args[0]")


def test_depth_has_a_limit_that_both_languages_can_read() -> None:
    deepest = nested(MAX_DEPTH + 1)
    payload = {"class": "a", "jid": "j", "args": [check_json(deepest, "args[0]")]}
    assert MAX_DEPTH + 4 < 100  # the payload, its args, and the entry that shows what runs, around it
    assert parse(dump(payload)) == payload
    with pytest.raises(TypeError, match=f"more than {MAX_DEPTH} deep") as caught:
        check_json(nested(5000), "args[0]")
    assert len(str(caught.value)) < 400


def test_a_value_that_contains_itself_is_too_deep() -> None:
    ring: list[Any] = []
    ring.append({"again": ring})
    with pytest.raises(TypeError, match="deep"):
        check_json(ring, "args[0]")


def test_the_greatest_integer_that_may_be_enqueued_can_be_read_again() -> None:
    for number in (2**14_000 - 1, -(2**14_000) + 1):
        assert parse(dump({"class": "a", "args": [check_json(number, "args[0]")]}))["args"] == [number]
    with pytest.raises(TypeError):
        check_json(2**14_000, "args[0]")


# ---- what others wrote ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00{", "not JSON"),
        ('{"class":"a"}'.encode("utf-16"), "not JSON"),
        (b'{"class":"a\x80"}', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"class":"a"', "not JSON"),
        (b'{"class":"a"} x', "not JSON"),
        (b"[" * 100_000, "not JSON: nested too deep"),
        (b'{"class":"a","args":[' + b"9" * 5000 + b"]}", "not JSON"),
        (b"null", "not an object"),
        (b"[]", "not an object"),
        (b"5", "not an object"),
        (b'"text"', "not an object"),
        (b"NaN", "not an object"),
        (b"{}", '"class"'),
        (b'{"class":null}', '"class"'),
        (b'{"class":""}', '"class"'),
        (b'{"class":["a"]}', '"class"'),
        (b'{"class":"a","args":{}}', '"args"'),
        (b'{"class":"a","args":"[1]"}', '"args"'),
        (b'{"class":"a","kwargs":[]}', '"kwargs"'),
        (b'{"class":"a","jid":5}', '"jid"'),
        (b'{"class":"a","jid":null}', '"jid"'),
        (b'{"class":"a","jid":""}', '"jid"'),
        (b'{"class":"a","jid":"' + b"j" * (MAX_JID + 1) + b'"}', '"jid"'),
        (b'{"class":"\\ud800"}', '"class"'),
        (b'{"class":"a","jid":"\\udfff"}', '"jid"'),
        (b'{"class":"a","queue":"\\ud800"}', '"queue"'),
        (b'{"class":"a","periodic_pjid":"\\ud800"}', '"periodic_pjid"'),
    ],
    ids=kind_of,
)
def test_r31_bytes_that_are_not_a_job_say_why(raw: bytes, reason: str) -> None:
    with pytest.raises(Unparseable) as caught:
        parse(raw)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 300


def test_odd_payloads_are_jobs_all_the_same() -> None:
    assert parse(b'{"class":"a"}')["args"] == []
    assert parse(b' {"class" : "a" , "args":[1]}\n')["args"] == [1]
    assert parse(b'{"class":"a","class":"b"}')["class"] == "b"
    assert parse(b'{"class":"a","kwargs":null}')["kwargs"] is None
    assert parse(b'{"class":"a","queue":7,"retry":{},"tags":1,"meta":null}')["queue"] == 7
    assert parse('{"class":"é\U0001f600"}'.encode())["class"] == "é\U0001f600"
    assert parse(b'{"class":"a","jid":"' + b"j" * MAX_JID + b'"}')["jid"] == "j" * MAX_JID
    assert math.isnan(parse(b'{"class":"a","args":[NaN,1e400]}')["args"][0])


def test_unknown_fields_are_kept() -> None:
    raw = dump({"class": "a", "jid": "j", "args": [], "odd": {"kept": [1, 2**70, None]}, "retry": "3"})
    assert dump(parse(raw)) == raw


def test_a_payload_without_a_jid_gets_the_same_one_from_each_reader() -> None:
    raw = b'{"class":"a","args":[1]}'
    jid = parse(raw)["jid"]
    assert parse(raw)["jid"] == jid
    assert parse(raw + b" ")["jid"] != jid
    assert len(jid) == 24
    assert set(jid) <= set("0123456789abcdef")


def test_new_jids_are_24_hex_and_differ() -> None:
    jids = {new_jid() for _ in range(1000)}
    assert len(jids) == 1000
    assert all(len(jid) == 24 and set(jid) <= set("0123456789abcdef") for jid in jids)


def test_a_lone_surrogate_that_another_program_escaped_goes_back_as_an_escape() -> None:
    raw = b'{"class":"a","args":["\\ud800 \\u00e9"],"jid":"j"}'
    written = dump(parse(raw))
    assert b"\\ud800" in written
    written.decode()
    assert json.loads(written) == json.loads(raw)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -math.inf])
def test_a_number_beyond_json_cannot_be_written(value: float) -> None:
    with pytest.raises(ValueError):
        dump({"args": [value]})


def test_a_payload_that_is_too_deep_to_be_written_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="deep"):
        dump({"args": nested(200_000)})


def test_compact_utf8_on_the_wire() -> None:
    assert dump({"class": "é", "args": [1, {"a": None}]}) == '{"class":"é","args":[1,{"a":null}]}'.encode()


# ---- the numbers in it ---------------------------------------------------------------------------------

ABSENT = object()


@pytest.mark.parametrize(
    ("value", "budget"),
    [
        (ABSENT, 25),
        (True, 25),
        (False, 0),
        (0, 0),
        (1, 1),
        (7, 7),
        (3.0, 3),
        (2.9, 2),
        (0.5, 0),
        (-1, 0),
        (-math.inf, 0),
        (10**100, MOST),
        (float("1e400"), MOST),
        (float("nan"), 0),
        ("5", 5),
        (" 5 ", 5),
        ("2.5", 2),
        ("0", 0),
        ("-3", 0),
        ("", 0),
        ("many", 0),
        ("true", 0),
        ("nan", 0),
        ("1e400", MOST),
        ("9" * 10_000, MOST),
        ("\ud800", 0),
        (None, 0),
        ([5], 0),
        ({}, 0),
    ],
    ids=kind_of,
)
def test_r32_the_budget_of_retries(value: object, budget: int) -> None:
    assert retry_budget({} if value is ABSENT else {"retry": value}) == budget


@pytest.mark.parametrize(
    ("value", "failures"),
    [
        (ABSENT, 0),
        (0, 0),
        (3, 3),
        (3.7, 3),
        (-5, 0),
        (10**100, MOST),
        (-(10**100), 0),
        (float("1e400"), MOST),
        (-math.inf, 0),
        (float("nan"), 0),
        (True, 0),
        (False, 0),
        ("3", 0),
        (None, 0),
        ([3], 0),
    ],
    ids=kind_of,
)
def test_the_count_of_failures_whatever_another_program_put_there(value: object, failures: int) -> None:
    assert failures_of({} if value is ABSENT else {"retry_count": value}) == failures


@pytest.mark.parametrize("value", ["", None, 7, ["mail"], ABSENT])
def test_a_job_without_a_usable_queue_goes_back_where_it_was_found(value: object) -> None:
    assert queue_of({} if value is ABSENT else {"queue": value}, "found") == "found"
    assert queue_of({"queue": "mail"}, "found") == "mail"


# ---- what is kept of something that is not a job -------------------------------------------------------


def test_r31_the_entry_keeps_the_bytes_and_can_be_written() -> None:
    entry = unparseable(b"not a job", "mail", "not JSON: because", 12.5)
    assert parse(dump(entry))["class"] == UNPARSEABLE
    assert (entry["args"], entry["retry"], entry["queue"]) == ([], False, "mail")
    assert (entry["raw_payload"], entry["error_message"]) == ("not a job", "not JSON: because")
    assert "raw_payload_base64" not in entry


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe\x00{", '{"class":"a"}'.encode("utf-16"), b"x" * 100_001, b"\xff" * 500_000], ids=kind_of
)
def test_c48_bytes_that_no_text_can_hold_are_kept_exactly(raw: bytes) -> None:
    entry = json.loads(dump(unparseable(raw, "mail", "why", 12.5)))
    assert len(entry["raw_payload"]) <= 100_000
    assert base64.b64decode(entry["raw_payload_base64"]) == raw
