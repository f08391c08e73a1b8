"""The supervisor's coroutines: started, watched, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

_GIVE_UP_AFTER = 5.0


class Tasks:
    """The running coroutines of one supervisor.

    Args:
        crashed: called with the error, and the name of the coroutine, when one ends by a fault of our own.
    """

    def __init__(self, crashed: Callable[[BaseException, str], None]) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._crashed = crashed

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a coroutine."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def end(self) -> None:
        """End all of them."""
        await cancel(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._crashed(error, task.get_name())


async def cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks, again and again: a cancellation that meets the end of a `wait_for` or of a connect is swallowed by
    it (up to Python 3.11), and a loop for ever goes on."""
    limit = time.monotonic() + _GIVE_UP_AFTER
    while (pending := {task for task in tasks if not task.done()}) and time.monotonic() < limit:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.1)


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Sleep until an event is set, or the time is over."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
