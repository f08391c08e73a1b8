"""What a job wants masked: where its arguments stand in a payload, what is shown of it, and that nothing another
program wrote into `redact` ever raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cogworkerd import App
from cogworkerd.history import backtrace_of_error, entry_of
from cogworkerd.job import Job
from cogworkerd.redact import MASK, is_masked, masked, masked_text

SECRET = "s3cret-of-7"


def job_of(function: Callable[..., Any], **options: Any) -> Job[..., Any]:
    job: Job[..., Any] = App("redis://nowhere:1").job(name="f", **options)(function)
    return job


def pushed(job: Job[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The payload of a call as a worker reads it."""
    found: dict[str, Any] = json.loads(job.app.push_of(job._build(args, kwargs, None)).raw)
    return found


def shown(job: Job[..., Any], *args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    found = masked(pushed(job, *args, **kwargs))
    return found["args"], found.get("kwargs", {})


def plain(user: int, token: str = "", /, note: str = "") -> None: ...
def keyword(user: int, *, token: str = "", note: str = "") -> None: ...
def spread(user: int, *tokens: str) -> None: ...
def open_ended(user: int, **secrets: str) -> None: ...
def with_defaults(user: int = 1, token: str = "", note: str = "") -> None: ...


# ---- what is masked -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "redact", "call", "args", "kwargs"),
    [
        (plain, ["token"], ((1, SECRET, "x"), {}), [1, MASK, "x"], {}),
        (plain, ["token", "note"], ((1, SECRET, SECRET), {}), [1, MASK, MASK], {}),
        (plain, ["token"], ((1,), {}), [1], {}),
        (plain, [1], ((1, SECRET), {}), [1, MASK], {}),
        (plain, [0, "note"], ((1, "x", SECRET), {}), [MASK, "x", MASK], {}),
        (plain, [7], ((1, "x"), {}), [1, "x"], {}),
        (plain, [], ((1, "x"), {}), [1, "x"], {}),
        (keyword, ["token"], ((1,), {"token": SECRET, "note": "x"}), [1], {"token": MASK, "note": "x"}),
        (keyword, ("token",), ((1,), {"note": "x"}), [1], {"note": "x"}),
        (spread, ["tokens"], ((1, SECRET, "b", "c"), {}), [1, MASK, MASK, MASK], {}),
        (spread, ["tokens"], ((1,), {}), [1], {}),
        (spread, ["user"], ((1, "a"), {}), [MASK, "a"], {}),
        (open_ended, ["secrets"], ((1,), {"a": SECRET, "b": SECRET}), [1], {"a": MASK, "b": MASK}),
        (open_ended, ["a"], ((1,), {"a": SECRET, "b": "x"}), [1], {"a": MASK, "b": "x"}),
        (with_defaults, ["token"], ((), {"user": 1, "token": SECRET}), [1, MASK], {}),
    ],
)
def test_the_named_arguments_are_masked_and_no_others(
    function: Callable[..., Any],
    redact: Any,
    call: tuple[tuple[Any, ...], dict[str, Any]],
    args: list[Any],
    kwargs: dict[str, Any],
) -> None:
    job = job_of(function, redact=redact)
    assert shown(job, *call[0], **call[1]) == (args, kwargs)


def test_an_argument_behind_a_default_that_is_left_out_is_masked() -> None:
    assert SECRET not in json.dumps(shown(job_of(with_defaults, redact=["token"]), token=SECRET))


def test_an_argument_that_is_pushed_by_name_is_masked_wherever_it_stands() -> None:
    job = job_of(with_defaults, redact=["token"])
    pending = job.app._named("f", [1], {"token": SECRET}, None, None, {})
    assert SECRET not in json.dumps(masked(pending.payload))


@pytest.mark.parametrize("value", [None, True, 5, 1.5, "", [SECRET], {"a": SECRET}], ids=repr)
def test_a_value_of_any_kind_is_masked_whole(value: Any) -> None:
    assert shown(job_of(plain, redact=["token"]), 1, value) == ([1, MASK], {})


def test_a_job_by_its_name_that_only_others_know_is_masked_by_positions_names_and_from_a_position_on() -> None:
    app = App("redis://nowhere:1")

    def show(*redact: str | int) -> tuple[list[Any], dict[str, Any]]:
        found = masked(app._named("Ruby", ["a", "b", "c"], {"k": 1, "l": 2}, None, None, {"redact": redact}).payload)
        return found["args"], found["kwargs"]

    assert show(1, "l") == (["a", MASK, "c"], {"k": 1, "l": MASK})
    assert show("*1") == (["a", MASK, MASK], {"k": 1, "l": 2})
    assert show("*2", "*1", 0) == ([MASK] * 3, {"k": 1, "l": 2})
    assert show("**") == (["a", "b", "c"], {"k": MASK, "l": MASK})


def test_masking_changes_neither_the_payload_nor_what_is_performed() -> None:
    payload = pushed(job_of(keyword, redact=["user", "token"]), 1, token=SECRET)
    before = json.dumps(payload)
    assert masked(payload)["args"] == [MASK]
    assert json.dumps(payload) == before
    assert (payload["args"], payload["kwargs"]) == ([1], {"token": SECRET})


def test_a_twin_has_masks_of_its_own_and_the_job_keeps_its_own() -> None:
    job = job_of(plain, redact=["token"])
    assert shown(job.using(redact=["note"]), 1, "a", SECRET) == ([1, "a", MASK], {})
    assert shown(job.using(queue="low"), 1, SECRET, "x") == ([1, MASK, "x"], {})
    assert shown(job.using(redact=[]), 1, "a", "x") == ([1, "a", "x"], {})
    assert shown(job, 1, SECRET, "x") == ([1, MASK, "x"], {})


@pytest.mark.parametrize(("redact", "answer"), [(["token"], True), ([], False)])
def test_a_job_says_whether_something_of_it_is_masked(redact: list[str], answer: bool) -> None:
    payload = pushed(job_of(plain, redact=redact), 1, SECRET)
    assert is_masked(payload) is answer
    assert ("redact" in payload) is answer, "the field is absent where there is nothing to mask"


# ---- mistakes -------------------------------------------------------------------------------------------


def at_the_decorator(function: Callable[..., Any], redact: Any) -> None:
    job_of(function, redact=redact)


def at_using(function: Callable[..., Any], redact: Any) -> None:
    job_of(function).using(redact=redact)


def at_a_push_by_name(function: Callable[..., Any], redact: Any) -> None:
    job_of(function).app.push("f", [1], redact=redact)


everywhere = pytest.mark.parametrize("where", [at_the_decorator, at_using, at_a_push_by_name])


@everywhere
@pytest.mark.parametrize("name", ["tokn", "", "*", "**", "*0", "0", "tökén", "self"])
def test_a_name_that_is_no_parameter_is_an_error_that_names_those_there_are(
    name: str, where: Callable[[Any, Any], None]
) -> None:
    with pytest.raises(ValueError) as caught:
        where(plain, ["token", name])
    said = f"f: redact names {name!r}, which is no parameter of the function; it has: user, token, note"
    assert str(caught.value) == said


def test_a_function_without_parameters_is_told_so() -> None:
    def nothing() -> None: ...

    with pytest.raises(ValueError, match="no parameter of the function; it has: none"):
        job_of(nothing, redact=["token"])


@everywhere
@pytest.mark.parametrize(
    "redact",
    ["token", b"token", 1, None, True, {"token": 1}, {"token"}, [True], [-1], [1.0], [None], [["token"]]],
    ids=repr,
)
def test_redact_is_a_list_of_names_or_positions(redact: Any, where: Callable[[Any, Any], None]) -> None:
    with pytest.raises(TypeError, match=r"redact = .*: allowed is a list of names of parameters, or positions"):
        where(plain, redact)


def test_a_job_with_a_mistake_is_not_registered() -> None:
    app = App("redis://nowhere:1")
    with pytest.raises(ValueError, match="no parameter"):
        app.job(name="f", redact=["tokn"])(plain)
    assert app.jobs == {}


# ---- what other programs write --------------------------------------------------------------------------

NONSENSE: list[Any] = [
    None,
    True,
    5,
    "token",
    {"a": 1},
    [None, True, 1.5, [], {}, "", [[1]], {"0": 0}],
    [10**30, -1, "*-1", "*x", "*", "* 1", "*1.5", "**x", "\x00", "*\u0661"],
    ["\ud800", "*\ud800"],
    [float("nan"), float("inf")],
    [0] * 1000,
    ["*\u00b2"],
    ["*" + "9" * 5000],
]


@pytest.mark.parametrize("redact", NONSENSE, ids=lambda value: ascii(value)[:40])
@pytest.mark.parametrize(
    ("args", "kwargs"), [([1, "text of args"], {"a": "text of kwargs"}), ([], None), ([[1], {"b": None}], {})]
)
def test_nonsense_of_another_program_never_raises(redact: Any, args: Any, kwargs: Any) -> None:
    payload = {"class": "x", "jid": "y", "args": args, "kwargs": kwargs, "redact": redact, "error_message": ["odd"]}
    found = masked(payload)
    assert (len(found["args"]), type(found["kwargs"])) == (len(args), type(kwargs))
    assert isinstance(masked_text("a text", payload), str)
    assert is_masked(payload) is (isinstance(redact, list))
    entry = entry_of(payload, "q", {}, 1.0, 2.0, True, ValueError("no luck"))
    assert json.loads(entry)["error_message"] == "no luck"


@pytest.mark.parametrize("gone", ["args", "kwargs", "error_message"])
def test_a_payload_that_lacks_a_field_is_shown_without_it(gone: str) -> None:
    payload = {"args": [SECRET], "kwargs": {"a": SECRET}, "error_message": SECRET, "redact": [0, "a"]}
    del payload[gone]
    found = masked(payload)
    assert gone not in found
    assert found["redact"] == [0, "a"]


# ---- texts about a job ----------------------------------------------------------------------------------


def told(payload: dict[str, Any], error: BaseException) -> str:
    """All that the history says of a failure."""
    entry = entry_of(payload, "q", {}, 1.0, 2.0, True, error)
    return entry.decode() + backtrace_of_error(error, payload, entry).decode()


def raised(text: Any) -> BaseException:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "message",
    [SECRET, f"no such token: {SECRET}", f"{SECRET}{SECRET} and {SECRET}", f"<{SECRET}>\n{SECRET}"],
)
def test_a_masked_value_is_shown_in_no_message_and_no_traceback(message: str) -> None:
    job = job_of(keyword, redact=["token"])
    found = told(pushed(job, 1, token=SECRET), raised(message))
    assert SECRET not in found
    assert MASK in found


def test_the_message_that_a_dead_job_carries_is_masked_where_it_is_shown() -> None:
    payload = {**pushed(job_of(plain, redact=["token"]), 1, SECRET), "error_message": f"bad {SECRET}"}
    assert masked(payload)["error_message"] == f"bad {MASK}"
    assert payload["error_message"] == f"bad {SECRET}"


def test_a_short_value_is_left_in_a_text_since_it_may_stand_there_by_chance() -> None:
    payload = pushed(job_of(plain, redact=["token"]), 1, "the")
    assert masked_text("the error of the job", payload) == "the error of the job"


@pytest.mark.parametrize("payload", [{}, {"redact": []}, {"redact": "token", "args": [SECRET]}])
def test_a_text_about_a_job_without_masks_is_shown_as_it_is(payload: dict[str, Any]) -> None:
    assert masked_text(f"a {SECRET}", payload) == f"a {SECRET}"


def test_a_value_that_begins_with_another_one_is_masked_whole() -> None:
    payload = {"args": ["abcd", "abcd-efgh-ijkl"], "redact": [0, 1]}
    assert "efgh" not in masked_text("refused: abcd-efgh-ijkl", payload)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (4111111111111111, "card 4111111111111111 was refused"),
        (["4111111111111111"], "card 4111111111111111 was refused"),
        ({"number": "4111111111111111", "year": 29}, "card 4111111111111111 was refused"),
    ],
)
def test_a_masked_number_and_what_a_masked_list_holds_are_shown_in_no_message(value: Any, message: str) -> None:
    payload = pushed(job_of(plain, redact=["token"]), 1, value)
    assert "4111111111111111" not in told(payload, raised(message))


@pytest.mark.parametrize(
    "value",
    ["-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\n-----END KEY-----\n", "MIIEpAIBAAKCAQEA" * 100],
    ids=["lines", "long"],
)
def test_a_masked_value_of_several_lines_or_of_many_characters_is_shown_in_no_traceback(value: str) -> None:
    payload = pushed(job_of(plain, redact=["token"]), 1, value)
    assert "MIIEpAIBAAKCAQEA" not in told(payload, raised(f"bad key {value}"))
