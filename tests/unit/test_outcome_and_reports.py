"""Outcomes and reports: what goes through a pipe comes out the same, in whatever pieces it arrives."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from cogworkerd.outcome import SUCCESS, Kind, Outcome
from cogworkerd.store.keys import Keys
from cogworkerd.worker import reports
from cogworkerd.worker.reports import Buffer, Deaf, Report, Reporter, Result

OUTCOMES = [
    SUCCESS,
    Outcome(Kind.RETRY, 1_700_000_000.123456, b'{"class":"a"}', b'{"attempt":1}'),
    Outcome(Kind.DEAD, 0.0, bytes(range(256)), b""),
    Outcome(Kind.DEAD, 5.5, b"", b"x"),
    Outcome(Kind.DISCARD, attempt=b'{"attempt":3}'),
    Outcome(Kind.RETRY, -1.5, b"x" * 300_000, b"y" * 70_000),
]
RAW = '{"class":"é","args":["\U0001f600"]}'.encode()
STREAM = [
    (Report.READY, b"", reports.frame(Report.READY)),
    (Report.CONNECTED, struct.pack("!Q", 2**64 - 1), reports.connected(2**64 - 1)),
    (Report.IDLE, b"mail", reports.idle("mail")),
    (Report.IDLE, b"", reports.idle("")),
    (Report.STARTED, b"\0\4mail" + RAW, reports.with_job(Report.STARTED, "mail", RAW)),
    (Report.PERFORMED, OUTCOMES[1].encode(), reports.frame(Report.PERFORMED, OUTCOMES[1].encode())),
    (Report.FINISHED, b"\0", reports.finished(Result.SETTLED)),
    (Report.RETURNED, b"\0\4mail", reports.with_job(Report.RETURNED, "mail", b"")),
]


def shape(value: object) -> str:
    return type(value).__name__


# ---- outcomes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", OUTCOMES, ids=shape)
def test_an_outcome_is_the_same_after_its_way_through_the_pipe(outcome: Outcome) -> None:
    assert Outcome.decode(outcome.encode()) == outcome


def test_the_outcome_of_most_jobs_is_one_object() -> None:
    assert Outcome.decode(SUCCESS.encode()) is SUCCESS


@pytest.mark.parametrize("outcome", OUTCOMES[:5], ids=shape)
def test_an_outcome_that_is_too_short_or_too_long_is_an_error(outcome: Outcome) -> None:
    whole = outcome.encode()
    for body in (*(whole[:size] for size in range(len(whole))), whole + b"x"):
        with pytest.raises((ValueError, struct.error)):
            Outcome.decode(body)


def test_an_outcome_of_an_unknown_kind_is_an_error() -> None:
    for kind in range(6, 256):
        with pytest.raises(ValueError):
            Outcome.decode(bytes((kind,)) + SUCCESS.encode()[1:])


@pytest.mark.parametrize(
    ("kind", "files", "statistic", "target"),
    [
        (Kind.SUCCESS, False, "processed", "x:cogworker:retry"),
        (Kind.RETRY, True, "failed", "x:cogworker:retry"),
        (Kind.DEAD, True, "failed", "x:cogworker:dead"),
        (Kind.DISCARD, False, "failed", "x:cogworker:retry"),
    ],
)
def test_what_each_end_files_and_counts(kind: Kind, files: bool, statistic: str, target: str) -> None:
    outcome = Outcome(kind)
    assert (outcome.files, outcome.statistic, outcome.target(Keys("x"))) == (files, statistic, target)


# ---- frames --------------------------------------------------------------------------------------------


def test_frames_in_one_piece() -> None:
    buffer = Buffer()
    buffer.feed(b"".join(frame for _, _, frame in STREAM))
    assert list(buffer.frames()) == [(kind, body) for kind, body, _ in STREAM]
    assert not buffer.partial


def test_frames_byte_by_byte() -> None:
    buffer = Buffer()
    seen: list[tuple[Report, bytes]] = []
    for kind, body, frame in STREAM:
        for position in range(len(frame)):
            buffer.feed(frame[position : position + 1])
            found = list(buffer.frames())
            assert found == ([(kind, body)] if position == len(frame) - 1 else [])
            assert buffer.partial == (position < len(frame) - 1)
            seen += found
    assert seen == [(kind, body) for kind, body, _ in STREAM]


@pytest.mark.parametrize("size", [2, 3, 5, 7, 64])
def test_frames_in_pieces_of_any_size(size: int) -> None:
    data = b"".join(frame for _, _, frame in STREAM)
    buffer, seen = Buffer(), []
    for start in range(0, len(data), size):
        buffer.feed(data[start : start + size])
        seen += list(buffer.frames())
    assert seen == [(kind, body) for kind, body, _ in STREAM]


def test_p1_a_frame_that_is_cut_off_is_no_frame() -> None:
    whole = reports.frame(Report.PERFORMED, OUTCOMES[1].encode())
    for size in range(len(whole)):
        buffer = Buffer()
        buffer.feed(whole[:size])
        assert list(buffer.frames()) == []
        assert buffer.partial == (size > 0)


def test_a_reader_that_stops_half_way_gets_the_rest_later() -> None:
    buffer = Buffer()
    buffer.feed(b"".join(frame for _, _, frame in STREAM))
    frames = buffer.frames()
    first = next(frames)
    frames.close()  # type: ignore[attr-defined]
    assert [first, *buffer.frames()] == [(kind, body) for kind, body, _ in STREAM]


@pytest.mark.parametrize("kind", [0, 13, 14, 127, 255])
def test_a_frame_of_an_unknown_kind_is_an_error_and_those_before_it_count(kind: int) -> None:
    buffer = Buffer()
    buffer.feed(reports.frame(Report.READY) + struct.pack("!IB", 3, kind) + b"abc")
    frames = buffer.frames()
    assert next(frames) == (Report.READY, b"")
    with pytest.raises(ValueError, match=f"unknown kind {kind}"):
        next(frames)


def test_a_frame_of_an_absurd_size_is_an_error_at_once() -> None:
    buffer = Buffer()
    buffer.feed(struct.pack("!IB", reports.MAX_FRAME + 1, Report.IDLE))
    with pytest.raises(ValueError, match="bytes"):
        list(buffer.frames())


@pytest.mark.parametrize("queue", ["", "mail", "é" * 100, "\U0001f600"])
@pytest.mark.parametrize("raw", [b"", RAW, b"\xff\0" * 50_000], ids=shape)
def test_a_job_in_a_report_keeps_its_queue_and_its_bytes(queue: str, raw: bytes) -> None:
    buffer = Buffer()
    buffer.feed(reports.with_job(Report.STARTED, queue, raw))
    ((kind, body),) = buffer.frames()
    assert kind is Report.STARTED
    assert reports.job_of(body) == (queue, raw)


def test_each_result_is_one_byte() -> None:
    for result in Result:
        buffer = Buffer()
        buffer.feed(reports.finished(result))
        ((kind, body),) = buffer.frames()
        assert kind is Report.FINISHED
        assert Result(body[0]) is result
        assert len(body) == 1


# ---- the child's end -----------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            pass  # the test has closed it


def test_a_reporter_writes_whole_frames(pipe: tuple[int, int]) -> None:
    read, write = pipe
    reporter = Reporter(write)
    for _, _, frame in STREAM:
        reporter.send(frame)
    buffer = Buffer()
    buffer.feed(os.read(read, 65536))
    assert list(buffer.frames()) == [(kind, body) for kind, body, _ in STREAM]
    assert not reporter.deaf


def test_p10_a_broken_pipe_makes_deaf_for_good(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.close(read)
    reporter = Reporter(write)
    for _ in range(2):
        with pytest.raises(Deaf):
            reporter.send(reports.idle("mail"))
        assert reporter.deaf


def test_p10_a_closed_descriptor_makes_deaf(pipe: tuple[int, int]) -> None:
    os.close(pipe[1])
    with pytest.raises(Deaf):
        Reporter(pipe[1]).send(reports.idle("mail"))


def test_a_forked_copy_of_a_child_cannot_report(pipe: tuple[int, int]) -> None:
    read, write = pipe
    reporter = Reporter(write)
    pid = os.fork()
    if pid == 0:
        try:
            reporter.send(reports.idle("from the copy"))
        except Deaf:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    reporter.send(reports.idle("mail"))
    assert os.read(read, 100) == reports.idle("mail")
