"""The memory that a child shares with its supervisor: notes are read whole whoever writes or dies, orders are for one
run only."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

import pytest

from cogworkerd.worker.slot_page import MOST, SlotPage, run_number
from tests.support import PATIENCE, eventually

T = TypeVar("T")


def signed(text: bytes) -> bytes:
    """A note with its checksum before it."""
    return hashlib.md5(text, usedforsecurity=False).digest() + text


def is_whole(note: bytes) -> bool:
    return signed(note[16:]) == note


@pytest.fixture
def writer() -> Iterator[Callable[[SlotPage, int], int]]:
    """Fork a process that writes as fast as it can notes of random lengths up to a limit; its pid."""
    started: list[int] = []

    def start(page: SlotPage, longest: int) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                stock = random.Random(os.getpid())
                notes = [signed(stock.randbytes(stock.randint(0, longest - 16))) for _ in range(200)]
                signal.alarm(int(60 * PATIENCE))  # whatever becomes of the parent
                while True:
                    page.write(stock.choice(notes))
            finally:
                os._exit(1)
        started.append(pid)
        return pid

    yield start
    for pid in started:
        kill(pid)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # the test has done it


def interleaved(call: Callable[[], T], step: int, intrude: Callable[[], Any]) -> tuple[T, bool]:
    """What a call answers if somebody else acts before its `step`th instruction; whether it had so many."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == step:
                intrude()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # or Python 3.12 tells of none in the first frame that it traces
    sys.settrace(trace)
    try:
        answer = call()
    finally:
        sys.settrace(before)
    return answer, count >= step


# ---- notes ----------------------------------------------------------------------------------------------


def test_before_the_first_note_there_is_none() -> None:
    page = SlotPage()
    assert (page.notes, page.read()) == (0, (0, b""))


@pytest.mark.parametrize("note", [b"", b"x", b"\0" * 100, b"\xff" * MOST], ids=["empty", "short", "zeros", "longest"])
def test_the_newest_note_is_read_as_it_was_written_as_often_as_wanted(note: bytes) -> None:
    page = SlotPage()
    page.write(b"an older and longer note" * 100)
    page.write(b"an old one")
    page.write(note)
    assert page.notes == 3
    assert [page.read(), page.read()] == [(3, note)] * 2


def test_a_note_that_is_too_long_is_refused_and_the_last_one_stays() -> None:
    page = SlotPage()
    page.write(b"fits")
    with pytest.raises(ValueError, match=f"a note of {MOST + 1} bytes"):
        page.write(b"x" * (MOST + 1))
    assert page.read() == (1, b"fits")


@pytest.mark.parametrize("longest", [64, 4096, MOST], ids=["short", "a page", "longest"])
def test_notes_are_read_whole_while_a_process_writes_as_fast_as_it_can(
    longest: int, writer: Callable[[SlotPage, int], int]
) -> None:
    page = SlotPage()
    writer(page, longest)
    seen: set[int] = set()

    def look() -> bool:
        for _ in range(2000):
            number, note = page.read()
            if number > 0:
                assert is_whole(note), f"note {number} of {len(note)} bytes is torn"
                assert number >= max(seen, default=0), "an older note after a newer one"
                seen.add(number)
            else:
                assert note == b""
        return len(seen) >= 300

    eventually(look, 30, "300 notes")


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_reader_that_is_overtaken_at_any_moment_has_a_whole_note_or_says_that_it_has_none(writes: int) -> None:
    page = SlotPage()
    notes = itertools.cycle([signed(bytes([n]) * (n % 7 * 50)) for n in range(200)])

    def write() -> None:
        for note in itertools.islice(notes, writes):
            page.write(note)

    write()
    for step in itertools.count(1):
        (number, note), reached = interleaved(page.read, step, write)
        assert (number > 0 and is_whole(note)) or (number, note) == (-1, b"")
        if not reached:
            assert step > 20
            break


def test_a_writer_that_is_killed_in_mid_write_leaves_the_last_whole_note(
    writer: Callable[[SlotPage, int], int],
) -> None:
    """Of twenty deaths at random moments some are in the middle of the copying."""
    page = SlotPage()

    def written() -> bool:
        return page.notes > last + 3

    last = 0
    for _ in range(20):
        pid = writer(page, MOST)
        eventually(written, 10)
        kill(pid)
        last = page.notes
        number, note = page.read()
        assert number == last
        assert is_whole(note)
        page.write(signed(b"by the next child"))
        last += 1
        assert page.read() == (last, signed(b"by the next child"))


# ---- orders ---------------------------------------------------------------------------------------------


def test_an_order_is_for_one_run_only_and_a_newer_one_replaces_it() -> None:
    page = SlotPage()
    first, second = run_number(100, 1), run_number(100, 2)
    assert page.order_for(first) == 0
    page.order(3, first)
    assert [page.order_for(first), page.order_for(first), page.order_for(second)] == [3, 3, 0]
    page.order(5, second)
    assert [page.order_for(first), page.order_for(second)] == [0, 5]


def test_an_order_reaches_another_process_and_a_note_is_untouched_by_it() -> None:
    page = SlotPage()
    page.write(b"a note")
    pid = os.fork()
    if pid == 0:
        page.order(4, run_number(7, 7))
        os._exit(0)
    os.waitpid(pid, 0)
    assert page.order_for(run_number(7, 7)) == 4
    assert page.read() == (1, b"a note")


def test_runs_have_numbers_of_their_own() -> None:
    pids, counts = [1, 2, 1000, 4_194_304], [0, 1, 2, 65_536, 2**32 - 1]
    numbers = {run_number(pid, count) for pid in pids for count in counts}
    assert len(numbers) == len(pids) * len(counts)
    page = SlotPage()
    for number in numbers:
        page.order(1, number)
        assert page.order_for(number) == 1


def test_a_look_that_a_new_order_overtakes_never_answers_an_older_order_of_another_run() -> None:
    page, answers = SlotPage(), set()
    old, new = run_number(9, 1), run_number(9, 2)
    for step in itertools.count(1):
        page.order(1, old)
        answer, reached = interleaved(lambda: page.order_for(new), step, lambda: page.order(2, new))
        answers.add(answer)
        if not reached:
            break
    assert answers <= {0, 2}
