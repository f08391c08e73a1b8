"""Python stacks of children on demand: faulthandler of the child writes into a memory file of its slot.

It works while the child is inside a C call, under a millisecond, and the job goes on.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable

from .host import catches
from .slot import Slot

STACK_WAIT = 0.9
_LOOK_EVERY = 0.005
_MOST = 2**18
_MOST_KEPT = 2**20
_FATAL = "Fatal Python error"
_CURRENT = "Current thread"
_PERFORMS = re.compile(r"/cogworkerd/worker/perform\.py\", line \d+ in (_call|_as_task|innermost|_attempt)")
_NO_FILES = ["this system has no memory files for stacks"]


def stack_file() -> int | None:
    """A memory file for one slot's stacks: never full, readable after the child's death."""
    if not hasattr(os, "memfd_create"):
        return None
    return os.memfd_create("cogworkerd-stack", os.MFD_CLOEXEC)


def _begin(slot: Slot) -> int:
    """Where the next stack of this slot will begin. A file that many stacks have made large is emptied: child and
    supervisor share its position."""
    if slot.stack_file is None:
        return 0
    if stack_end(slot) > _MOST_KEPT:
        os.ftruncate(slot.stack_file, 0)
        os.lseek(slot.stack_file, 0, os.SEEK_SET)
        slot.stack_read = 0
    return stack_end(slot)


def stack_end(slot: Slot) -> int:
    """The end of what its stack file holds."""
    return os.fstat(slot.stack_file).st_size if slot.stack_file is not None else 0


def stack_lines(slot: Slot, start: int) -> list[str]:
    """What was written from there on, without empty lines and our own frames below the job's."""
    if slot.stack_file is None:
        return _NO_FILES
    text = os.pread(slot.stack_file, _MOST, start).decode("utf-8", "replace")
    return _current_first(_without_our_frames([line.rstrip() for line in text.splitlines() if line.strip()]))


def _current_first(lines: list[str]) -> list[str]:
    """The stack of the thread that crashed, or was asked, before those of the others, which may be many."""
    starts = [index for index, line in enumerate(lines) if not line.startswith("  ")]
    if not starts:
        return lines
    blocks = [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    order = sorted(blocks, key=lambda block: 0 if block[0].startswith(_FATAL) else 1 if _CURRENT in block[0] else 2)
    return [*lines[: starts[0]], *(line for block in order for line in block)]


def _without_our_frames(lines: list[str]) -> list[str]:
    """Each thread's frames up to the one that called the job: the rest is the same in every child. A thread that is in
    none but our own keeps them all."""
    shown: list[str] = []
    skipping = False
    for index, line in enumerate(lines):
        if not line.startswith("  "):
            skipping = False
        elif _PERFORMS.search(line) and index and lines[index - 1].startswith("  "):
            skipping = True
        if not skipping:
            shown.append(line)
    return shown


async def stack_of(slot: Slot, still: Callable[[], bool] = lambda: True, wait: float = STACK_WAIT) -> list[str]:
    """The stack of a slot's child now; the innermost frame first.

    Args:
        still: asked before the child is signalled.
        wait: seconds that the child has to answer.

    Returns:
        Lines; none where it did not.
    """
    if slot.stack_file is None:
        return _NO_FILES
    start = _begin(slot)
    if slot.ready and still() and catches(slot.pid, signal.SIGUSR1):
        slot.signal(signal.SIGUSR1)
    limit = time.monotonic() + wait
    size = start
    while time.monotonic() < limit:
        await asyncio.sleep(_LOOK_EVERY)
        before, size = size, stack_end(slot)
        if size == before > start:
            break  # it has grown, and grows no more
    lines = stack_lines(slot, start)
    slot.stack_read = stack_end(slot)
    return lines


def crash_lines(slot: Slot) -> list[str]:
    """What faulthandler has written of a child that has crashed; none where it had no time for it, or was not asked: a
    stack that came later than somebody waited for it is no crash."""
    lines = stack_lines(slot, slot.stack_read) if slot.stack_file is not None else []
    slot.stack_read = stack_end(slot)
    starts = [index for index, line in enumerate(lines) if line.startswith(_FATAL)]
    return lines[starts[-1] :] if starts else []
