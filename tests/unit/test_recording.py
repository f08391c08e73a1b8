"""What is written down of runs, before it reaches a server: records, history entries, batches, sums, statuses."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from cogworkerd.costs import PEAK, SUMS, Sums
from cogworkerd.history import MAX_ENTRY, MOST_LINES, backtrace_of, backtrace_of_error, entry_of, last_lines
from cogworkerd.interrupts import timeout_of
from cogworkerd.outcome import Kind
from cogworkerd.payload import parse
from cogworkerd.receipt import Receipt
from cogworkerd.recording import BATCH, MOST_WAITING, Batch, Recording
from cogworkerd.run_record import RunRecord
from cogworkerd.settings import Settings
from cogworkerd.status import MOST_STORED, RESERVED, STATES, Progress
from cogworkerd.store.keys import Keys
from cogworkerd.worker.slot_page import SlotPage

RECEIPT = Receipt(1.5, 0.25, 0.125, 2048, 100, 7, 3, 0.5)
ENTRY = b'{"jid":"j","status":"success"}'
NOW = 1_700_000_000.0


def run(kind: Kind = Kind.SUCCESS, name: str = "mail", **fields: Any) -> RunRecord:
    return RunRecord(kind, NOW, name, **{"receipt": RECEIPT, "entry": ENTRY, **fields})


# ---- records --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    ("name", "wait", "entry", "backtrace", "status"),
    [
        ("", None, b"", b"", b""),
        ("mail", 0.0, ENTRY, b"", b""),
        ("mail", 1e9, ENTRY, b'["line"]', b'{"jid":"j"}'),
        ("\u00e9\U0001f600" * 50, 0.5, b"\xff" * 9000, b"\0", b"s" * 100_000),
        ("n" * 200, 0.5, b"", b"", b"{}"),
    ],
)
def test_a_record_arrives_as_it_was_sent(
    kind: Kind, name: str, wait: float | None, entry: bytes, backtrace: bytes, status: bytes
) -> None:
    sent = RunRecord(kind, NOW, name, RECEIPT._replace(wait=wait), entry, backtrace, status)
    got = RunRecord.decode(sent.encode())
    assert got == sent
    assert type(got.kind) is Kind


@pytest.mark.parametrize(
    ("kind", "succeeded", "failed"),
    [
        (Kind.SUCCESS, True, False),
        (Kind.RETRY, False, True),
        (Kind.DEAD, False, True),
        (Kind.DISCARD, False, True),
        (Kind.REQUEUE, False, False),
    ],
)
def test_a_requeued_run_is_neither_a_success_nor_a_failure(kind: Kind, succeeded: bool, failed: bool) -> None:
    assert (run(kind).succeeded, run(kind).failed) == (succeeded, failed)


def test_the_full_entry_is_the_entry_with_its_traceback() -> None:
    assert run().full_entry == ENTRY
    full = json.loads(run(backtrace=b'["a","b"]').full_entry)
    assert full == {**json.loads(ENTRY), "backtrace": ["a", "b"]}


def test_a_record_of_any_other_length_is_refused() -> None:
    whole = run(backtrace=b"[]", status=b"{}").encode()
    for size in range(len(whole)):
        with pytest.raises((ValueError, IndexError, struct.error)):
            RunRecord.decode(whole[:size])
    for more in (b"x", whole):
        with pytest.raises(ValueError, match="wrong length"):
            RunRecord.decode(whole + more)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: b"\x09" + whole[1:],
        lambda whole: whole.replace(b"mail", b"\xff\xff\xff\xff"),
        lambda whole: b"\xff" * len(whole),
        lambda whole: b"\0" * len(whole),
    ],
    ids=["kind", "name", "ones", "zeros"],
)
def test_a_record_that_makes_no_sense_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises((ValueError, IndexError, struct.error)):
        RunRecord.decode(spoil(run().encode()))


# ---- entries of the history -----------------------------------------------------------------------------


def entry(payload: dict[str, Any], error: BaseException | None = None, with_args: bool = True) -> dict[str, Any]:
    """An entry as it is stored with its traceback; both are within their limits."""
    raw = entry_of(payload, "low", RECEIPT.as_fields(), 1.0, 2.0, with_args, error)
    assert len(raw) <= MAX_ENTRY // 2, f"an entry of {len(raw)} bytes"
    backtrace = b"" if error is None else backtrace_of_error(error, payload, raw)
    full = run(Kind.RETRY, entry=raw, backtrace=backtrace).full_entry
    assert len(full) <= MAX_ENTRY, f"an entry of {len(full)} bytes with its traceback"
    found: dict[str, Any] = json.loads(full.decode())
    return found


def payload(*args: Any, **fields: Any) -> dict[str, Any]:
    return {"class": "mail", "jid": "j1", "queue": "other", "args": list(args), **fields}


def raised(text: str, depth: int = 0) -> BaseException:
    try:
        if depth:
            raise raised(text, depth - 1)
        raise ValueError(text)
    except ValueError as error:
        return error


def test_the_entry_of_a_success_has_the_fields_of_the_wire_format_and_the_receipt() -> None:
    assert entry(payload(1, "a", kwargs={"lang": "de"})) == {
        "jid": "j1",
        "class": "mail",
        "queue": "low",
        "args": [1, "a"],
        "kwargs": {"lang": "de"},
        "status": "success",
        "started_at": 1.0,
        "finished_at": 2.0,
        "wall": 1.5,
        "wait": 0.5,
        "cpu_user": 0.25,
        "cpu_system": 0.125,
        "rss_peak_kb": 2048,
        "rss_growth_kb": 100,
        "switches": 7,
        "preempted": 3,
    }


def test_the_entry_of_a_failure_has_its_error_and_its_traceback() -> None:
    found = entry(payload(1), raised("no luck"))
    assert (found["status"], found["error_class"], found["error_message"]) == ("failed", "ValueError", "no luck")
    assert found["backtrace"][-1] == "ValueError: no luck"
    assert any("raise ValueError(text)" in line for line in found["backtrace"])


BIG: list[Any] = [
    "x" * 100_000,
    "\u00e9" * 50_000,
    "\U0001f600" * 20_000,
    "\x00\x1b" * 10_000,
    "\ud800" * 10_000,
    ["x"] * 10_000,
    {"k": ["v" * 50] * 1000},
    10**4000,
]


@pytest.mark.parametrize("where", ["args", "kwargs", "both"])
@pytest.mark.parametrize("big", BIG, ids=lambda value: ascii(value)[:12])
def test_arguments_that_are_too_long_are_left_out_and_their_size_is_told(big: Any, where: str) -> None:
    job = payload("small", **({"kwargs": {"big": big}} if where != "args" else {}))
    if where != "kwargs":
        job["args"].append(big)
    for error in (None, raised("no luck"), raised("y" * 50_000)):
        found = entry(job, error)
        if found["args_bytes"] < 10_000:
            assert big == 10**4000
        assert found["args"] == []
        assert "kwargs" not in found


@pytest.mark.parametrize(
    "message",
    [
        *("y" * 100_000, "\u00e9" * 9000, "\U0001f600" * 9000, "\x00" * 9000, '"' * 9000, "\\" * 9000, "\ud800" * 9000),
        *("line\n" * 5000, "\u2028" * 9000),
    ],
    ids=lambda text: ascii(text[:2]),
)
@pytest.mark.parametrize("args", [[], ["z" * 900], ["z" * 5000]], ids=len)
def test_a_long_message_is_cut_and_stays_valid_text(message: str, args: list[str]) -> None:
    found = entry(payload(*args), raised(message, depth=3))
    assert found["error_message"].endswith("... (cut)")
    assert found["error_message"][0] in message + "?"
    assert len(found["error_message"]) > 100, "what fits is kept"
    if sum(map(len, args)) < 1000:
        assert found["args"] == args, "small arguments stay"


def test_small_keyword_arguments_stay_when_a_long_message_is_cut() -> None:
    found = entry(payload(1, kwargs={"lang": "de"}), raised("y" * 9000))
    assert found["args"] == [1]
    assert found["kwargs"] == {"lang": "de"}


@pytest.mark.parametrize(
    "length",
    [
        200,
        100_000,
    ],
)
def test_a_name_of_another_program_does_not_make_an_entry_too_long(length: int) -> None:
    assert entry({**payload(1), "class": "x" * length}, raised("not registered here"))["class"].startswith("xxx")


@pytest.mark.parametrize("text", ["[NaN, 1]", "[Infinity, -Infinity]", "[1e999]", '["\\ud800"]', "[" * 95 + "]" * 95])
@pytest.mark.parametrize("field", ["args", "kwargs"])
def test_arguments_that_were_read_and_cannot_be_written_again_cost_nothing_but_themselves(
    text: str, field: str
) -> None:
    value = text if field == "args" else f'{{"k": {text}}}'
    job = parse(f'{{"class":"mail","jid":"j1","{field}":{value}}}'.encode())
    for error in (None, raised("no luck"), raised("y" * 50_000)):
        found = entry(job, error)
        assert (found["jid"], found["status"]) == ("j1", "success" if error is None else "failed")


@pytest.mark.parametrize("error", [None, raised("no luck"), raised("y" * 50_000)], ids=["success", "failure", "long"])
def test_without_arguments_an_entry_has_none_and_says_nothing_of_their_size(error: BaseException | None) -> None:
    found = entry(payload("SECRET", kwargs={"k": "SECRET"}, meta={"m": "SECRET"}), error, with_args=False)
    assert found["args"] == []
    assert "kwargs" not in found
    assert "args_bytes" not in found
    assert "SECRET" not in json.dumps(found)


class Odd(Exception):
    """An error whose message cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def test_an_error_without_a_message_is_told_by_its_class() -> None:
    found = entry(payload(), Odd())
    assert found["error_class"] == "Odd"
    assert found["error_message"].startswith("Odd (its message could not be made")


def test_a_long_name_of_an_errors_class_is_cut() -> None:
    error: BaseException = type("E" * 5000, (Exception,), {})("x")
    assert len(entry(payload(), error)["error_class"]) == 200


@pytest.mark.parametrize("room", [-5000, -1, 0, 1, 2, 3, 10, 500, 4096, 8192])
@pytest.mark.parametrize(
    "text", ["", "one line", "a\n" * 5000, "\u00e9" * 900 + "\n" + "b" * 5000, "\x00\n" * 300, "\ud800\n" * 9]
)
def test_a_traceback_keeps_its_last_lines_within_its_room(text: str, room: int) -> None:
    raw = backtrace_of(text.splitlines(), room, last_lines)
    lines = json.loads(raw.decode())
    assert len(raw) <= max(room, 2)
    assert len(lines) <= MOST_LINES
    theirs = [line.encode("utf-8", "replace").decode() for line in text.splitlines()]
    for kept, line in zip(reversed(lines), reversed(theirs), strict=False):
        assert kept == line or (kept.endswith("... (cut)") and len(kept) == 1000)


# ---- batches --------------------------------------------------------------------------------------------


@pytest.fixture
def recording() -> Recording:
    return Recording(Keys(), Settings())


def batches(recording: Recording) -> list[Batch]:
    found = []
    while (batch := recording.take(NOW)) is not None:
        found.append(batch)
    return found


def counts(batch: Batch) -> tuple[Any, ...]:
    """Successes, failures and jobs with costs, as the script is told them."""
    return batch.call.args[2], batch.call.args[3], batch.call.args[9]


def test_nothing_waits_at_first(recording: Recording) -> None:
    assert not recording
    assert recording.take(NOW) is None


def test_runs_are_taken_once_in_their_order_and_in_batches(recording: Recording) -> None:
    runs = [run(Kind(n % 5), name=f"job-{n}") for n in range(2 * BATCH + 30)]
    for each in runs:
        recording.add(each)
    assert recording
    found = batches(recording)
    assert [len(batch.runs) for batch in found] == [BATCH, BATCH, 30]
    assert [each for batch in found for each in batch.runs] == runs
    assert [counts(batch) for batch in found] == [(40, 120, BATCH), (40, 120, BATCH), (6, 18, 30)]
    assert not recording
    assert recording.dropped == 0


def test_a_batch_that_is_put_back_is_written_again_but_not_counted_again(recording: Recording) -> None:
    for n in range(10):
        recording.add(run(Kind(n % 5), entry=ENTRY if n % 5 != Kind.REQUEUE else b""))
    (first,) = batches(recording)
    recording.put_back(first)
    recording.add(run(name="newer"))
    again, newer = batches(recording)
    assert list(again.runs) == [each for each in first.runs if each.entry]
    assert (counts(first), counts(again), counts(newer)) == ((2, 6, 1), (0, 0, 0), (1, 0, 1))
    recording.put_back(again)
    (third,) = batches(recording)
    assert (list(third.runs), counts(third)) == (list(again.runs), (0, 0, 0))
    assert not recording


def test_runs_without_entries_are_counted_and_never_come_back(recording: Recording) -> None:
    recording.add(run(entry=b""))
    (batch,) = batches(recording)
    assert counts(batch) == (1, 0, 1)
    recording.put_back(batch)
    assert not recording


def test_a_job_that_is_not_registered_is_summed_under_one_name(recording: Recording) -> None:
    recording.add(run(name=""))
    recording.add(run(name=""))
    (batch,) = batches(recording)
    assert batch.call.args[-12] == "(not registered)"
    assert batch.call.args[-11] == 2


def test_while_nothing_can_be_written_the_oldest_runs_go_and_are_counted_as_dropped(recording: Recording) -> None:
    size = 64 * 1024
    most = MOST_WAITING // size
    for n in range(3 * most):
        recording.add(run(name=str(n), entry=b"e" * size))
        if n % most == most - 1:
            for batch in batches(recording):
                recording.put_back(batch)  # the server is still away
    kept = [each for batch in batches(recording) for each in batch.runs]
    assert sum(len(each.entry) for each in kept) <= MOST_WAITING
    assert 0.9 * most < len(kept) < most
    assert kept[-1].name == str(3 * most - 1)
    assert recording.dropped > 0
    assert [int(each.name) for each in kept] == sorted(int(each.name) for each in kept)


def test_what_was_taken_and_put_back_is_measured_right(recording: Recording) -> None:
    """Else, after many turns, everything would be dropped, or nothing ever."""
    for _ in range(200):
        recording.add(run(entry=b"e" * 500_000))
        for batch in batches(recording):
            recording.put_back(batch)
        batches(recording)
    for _ in range(10):
        recording.add(run(entry=b"e" * 1_000_000))
    assert recording.dropped == 0
    for _ in range(10):
        recording.add(run(entry=b"e" * 1_000_000))
    assert recording.dropped == 4


def status(jid: str, **fields: str) -> bytes:
    return json.dumps({"jid": jid, **fields}).encode()


def statuses(found: list[Batch]) -> list[tuple[str, dict[str, str]]]:
    return [batch.status for batch in found if batch.status is not None]


def test_several_notes_about_a_job_are_written_as_one_in_which_the_last_one_counts(recording: Recording) -> None:
    recording.note(status("a", pct="1"))
    recording.note(status("b", pct="2"))
    recording.note(status("a", pct="3"))
    recording.add(run(status=status("b", status="complete")))
    assert statuses(batches(recording)) == [("a", {"pct": "3"}), ("b", {"pct": "2", "status": "complete"})]


def test_a_status_that_is_put_back_does_not_replace_a_newer_one(recording: Recording) -> None:
    recording.note(status("a", pct="1"))
    recording.note(status("b", pct="1"))
    first, second = batches(recording)
    recording.note(status("a", pct="2"))
    recording.put_back(second)
    recording.put_back(first)
    assert dict(statuses(batches(recording))) == {"a": {"pct": "2"}, "b": {"pct": "1"}}


def test_statuses_are_kept_in_bounded_number(recording: Recording) -> None:
    for n in range(30_000):
        recording.note(status(str(n), pct="1"))
    recording.note(status("0", pct="2"))
    found = dict(statuses(batches(recording)))
    assert len(found) == 10_000
    assert found["0"] == {"pct": "2"}, "a job that has one keeps it up to date"


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\xff",
        b"nonsense",
        *(b"{}", b"[]", b"5", b"null"),
    ],
)
def test_a_note_that_is_none_is_a_value_error(note: bytes, recording: Recording) -> None:
    with pytest.raises(ValueError):
        recording.note(note)


# ---- sums -----------------------------------------------------------------------------------------------


def test_sums_add_up_and_peaks_are_maxima() -> None:
    sums = Sums()
    sums.add("a", False, Receipt(1.5, 0.25, 0.125, 5000, 10, 1, 2, None))
    sums.add("a", True, Receipt(0.5, 0.25, 0.125, 9000, -4, 1, 2, 0.75))
    sums.add("a", False, Receipt(0.0, 0.0, 0.0, 100, 0, 0, 0, 0.0))
    sums.add("b", True, RECEIPT)
    assert len(sums) == 2
    rows = {name: dict(zip((*SUMS, PEAK), row, strict=True)) for name, row in sums.rows().items()}
    assert rows["a"] == {
        "runs": 3,
        "failed": 1,
        "wall_us": 2_000_000,
        "cpu_user_us": 500_000,
        "cpu_system_us": 250_000,
        "waits": 2,
        "wait_us": 750_000,
        "rss_growth_kb": 6,
        "switches": 2,
        "preempted": 4,
        PEAK: 9000,
    }
    assert rows["b"]["failed"] == 1
    assert all(type(value) in (int, bool) for row in sums.rows().values() for value in row)


# ---- progress -------------------------------------------------------------------------------------------


class Reader:
    """A run's progress, with what was published of it."""

    def __init__(self, publish: Callable[[bytes], None] | None = None) -> None:
        self.notes: list[bytes] = []
        self.progress = Progress({"jid": "j1", "class": "mail"}, "low", publish or self.notes.append)

    @property
    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.notes[-1])
        return found


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_a_run_says_nothing_until_somebody_wants_to_know(reader: Reader) -> None:
    assert (reader.progress.wanted, reader.notes) == (False, [])
    reader.progress.begin()
    assert reader.progress.wanted
    assert float(reader.last.pop("update_time")) > NOW
    assert {name: value for name, value in reader.last.items() if name != "update_time"} == {
        "jid": "j1",
        "class": "mail",
        "queue": "low",
        "status": "working",
    }


@pytest.mark.parametrize(
    ("pct", "text"),
    [
        *((0, "0"), (100, "100"), (-1, "0"), (101, "100"), (1e300, "100"), (-1e300, "0"), (50, "50"), (33.3, "33.3")),
        *((0.1, "0.1"), (-0.0, "0"), (100.0, "100")),
        (10**400, "100"),
    ],
)
def test_a_percentage_is_kept_within_0_and_100(pct: float, text: str, reader: Reader) -> None:
    reader.progress.report(pct, None)
    assert float(reader.last["pct"]) == float(text)
    assert "message" not in reader.last


@pytest.mark.parametrize("pct", [float("nan"), float("inf"), float("-inf"), True, "50", b"5", [], {}, 1j, object()])
def test_a_percentage_that_is_no_finite_number_is_an_error_and_changes_nothing(pct: Any, reader: Reader) -> None:
    reader.progress.report(10, "so far")
    with pytest.raises(TypeError, match=r"progress: pct = .*: allowed is a number from 0 to 100"):
        reader.progress.report(pct, "nonsense")
    reader.progress.begin()
    assert (reader.last["pct"], reader.last["message"]) == ("10", "so far")


def test_what_is_not_named_stays_as_it_was(reader: Reader) -> None:
    reader.progress.report(10, "ten")
    reader.progress.report(20, None)
    assert (reader.last["pct"], reader.last["message"]) == ("20", "ten")
    reader.progress.report(None, "more")
    assert (reader.last["pct"], reader.last["message"]) == ("20", "more")
    reader.progress.report(0, "")
    assert (reader.last["pct"], reader.last["message"]) == ("0", "")
    reader.progress.store({"rows": 5})
    assert (reader.last["pct"], reader.last["message"], reader.last["rows"]) == ("0", "", "5")


@pytest.mark.parametrize("message", ["x" * 5000, "\ud800" * 5000, "\x00" * 5000, 5, ["a"]], ids=lambda m: ascii(m)[:9])
def test_a_message_is_a_text_of_limited_length_that_can_be_written(message: Any, reader: Reader) -> None:
    reader.progress.report(None, message)
    assert len(reader.last["message"]) <= 1000
    reader.last["message"].encode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(("a text", "a text"), ("", ""), ("\u00e9", "\u00e9"), (5, "5"), (1.5, "1.5"), (True, "true"), (None, "null")),
        *(([1, "a"], '[1,"a"]'), ({"k": "\u00e9"}, '{"k":"\u00e9"}'), ((1, 2), "[1,2]"), ("\ud800", "?")),
    ],
)
def test_values_are_stored_as_texts(value: Any, text: str, reader: Reader) -> None:
    reader.progress.store({"x": value})
    assert reader.last["x"] == text


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", float("nan"), float("inf"), [float("nan")], 1j])
def test_a_value_that_is_not_json_is_an_error_and_nothing_is_stored(value: Any, reader: Reader) -> None:
    with pytest.raises(TypeError, match=r"store: x = .* is not JSON"):
        reader.progress.store({"kept": 1, "x": value})
    assert reader.notes == []


def test_a_value_that_holds_itself_is_an_error(reader: Reader) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="not JSON"):
        reader.progress.store({"x": endless})


@pytest.mark.parametrize("value", [["\ud800"], {"\ud800": 1}])
def test_a_lone_surrogate_within_a_value_is_an_error_of_the_documented_kind(value: Any, reader: Reader) -> None:
    with pytest.raises(TypeError, match="not JSON"):
        reader.progress.store({"x": value})


def test_a_stored_name_is_one_that_can_be_written(reader: Reader) -> None:
    with pytest.raises((TypeError, ValueError), match="store"):
        reader.progress.store({"\ud800": 1})


@pytest.mark.parametrize("name", RESERVED)
def test_a_reserved_name_is_an_error_that_lists_them(name: str, reader: Reader) -> None:
    with pytest.raises(ValueError, match=f"store: the name '{name}' is taken; reserved are status, update_time"):
        reader.progress.store({"fine": 1, name: "x"})
    assert reader.notes == []


@pytest.mark.parametrize("char", ["x", "\u00e9", "\U0001f600"])
def test_what_is_stored_has_a_limit_in_all_and_what_was_there_stays(char: str, reader: Reader) -> None:
    most = (MOST_STORED - 4) // len(char.encode())
    reader.progress.store({"a": char * (most // 2)})
    reader.progress.store({"b": char * (most // 2)})
    for more in ({"c": char * 100}, {"a": char * most}, {"d": char * 200_000}):
        with pytest.raises(ValueError, match=rf"store: \d+ bytes in all, more than {MOST_STORED}"):
            reader.progress.store(more)
    reader.progress.begin()
    assert [len(reader.last[name]) for name in "ab"] == [most // 2] * 2
    assert not {"c", "d"} & set(reader.last)
    reader.progress.store({"a": "", "b": "", "c": char * (most - 10)})


@pytest.mark.parametrize(
    "char",
    ["x", "\u00e9", '"', "\x00", "\x1b"],
    ids=ascii,
)
def test_what_may_be_stored_fits_the_memory_that_the_supervisor_reads(char: str) -> None:
    reader = Reader(SlotPage().write)
    reader.progress.store({"a": char * (32_000 // len(char.encode()))})


def test_after_a_store_that_was_refused_progress_can_be_told() -> None:
    reader = Reader(SlotPage().write)
    with pytest.raises(ValueError):
        reader.progress.store({"a": "\x1b" * 40_000})
    reader.progress.report(50, "half way")


@pytest.mark.parametrize("state", STATES)
def test_the_fields_of_an_end_hold_what_the_run_said(state: str, reader: Reader) -> None:
    reader.progress.report(40, "at forty")
    reader.progress.store({"rows": 7})
    fields = json.loads(reader.progress.fields(state, {"error_class": "E", "error_message": "m"}))
    assert float(fields.pop("update_time")) > NOW
    assert fields == {
        "jid": "j1",
        "class": "mail",
        "queue": "low",
        "status": state,
        "error_class": "E",
        "error_message": "m",
        "pct": "40",
        "message": "at forty",
        "rows": "7",
    }
    assert len(reader.notes) == 2, "an end is not a note"


def test_a_run_that_nobody_listens_to_says_nothing_and_works() -> None:
    progress = Progress({"jid": "j", "class": "c"}, "q", None)
    progress.report(5, "x")
    progress.store({"a": 1})
    assert progress.wanted


# ---- timeouts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", [None, 7.0])
@pytest.mark.parametrize(("own", "seconds"), [(5, 5.0), (0.25, 0.25), (999_999_999, 999_999_999.0), (1e-9, 1e-9)])
def test_the_timeout_of_a_job_is_its_own(own: Any, seconds: float, default: float | None) -> None:
    found = timeout_of({"timeout": own}, default)
    assert (found, type(found)) == (seconds, float)


@pytest.mark.parametrize("default", [None, 7.0])
@pytest.mark.parametrize(
    "own", [None, 0, -1, 0.0, 1e9, 10**400, float("nan"), float("inf"), True, False, "5", [5], {"s": 5}], ids=repr
)
def test_a_timeout_of_another_program_that_makes_no_sense_is_none(own: Any, default: float | None) -> None:
    assert timeout_of({"timeout": own}, default) == default
    assert timeout_of({}, default) == default
