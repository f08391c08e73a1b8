"""Python stacks of children on demand: faulthandler of the child writes into a memory file of its slot.

It works while the child is inside a C call, under a millisecond, and the job goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

from .slot import Slot

STACK_WAIT = 0.9
_LOOK_EVERY = 0.005
_MOST = 2**18
_MOST_KEPT = 2**20
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
    return stack_end(slot)


def stack_end(slot: Slot) -> int:
    """The end of what its stack file holds."""
    return os.fstat(slot.stack_file).st_size if slot.stack_file is not None else 0


def stack_lines(slot: Slot, start: int) -> list[str]:
    """What was written from there on, without empty lines."""
    if slot.stack_file is None:
        return _NO_FILES
    text = os.pread(slot.stack_file, _MOST, start).decode("utf-8", "replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


async def stack_of(slot: Slot, still: Callable[[], bool] = lambda: True) -> list[str]:
    """The stack of a slot's child now; the innermost frame first.

    Args:
        still: asked before the child is signalled.

    Returns:
        Lines; none where the child did not answer within a second.
    """
    if slot.stack_file is None:
        return _NO_FILES
    start = _begin(slot)
    if slot.ready and still():
        slot.signal(signal.SIGUSR1)
    limit = time.monotonic() + STACK_WAIT
    size = start
    while time.monotonic() < limit:
        await asyncio.sleep(_LOOK_EVERY)
        before, size = size, stack_end(slot)
        if size == before > start:
            break  # it has grown, and grows no more
    return stack_lines(slot, start)
