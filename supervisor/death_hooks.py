"""Death hooks for jobs that did not die in a child of ours that could call them: each in an errand of its own."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from cogworkerd import events
from cogworkerd.app import App
from cogworkerd.log import Log
from cogworkerd.payload import Unparseable
from cogworkerd.worker.death_hooks import call_death_hook, death_of

from .burial import name_of
from .errand import ErrandFailed, Errands

HOOK_LIMIT = 30.0
"""Seconds that one hook may take."""

_AT_THE_END = 2.0


class DeathHooks:
    """Calls the hooks of buried jobs, one after the other, outside of the supervisor.

    Args:
        count: how many hooks there are for a job of this name.
    """

    def __init__(self, errands: Errands, count: Callable[[str], int], log: Log) -> None:
        self._errands = errands
        self._count = count
        self._log = log
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._came = asyncio.Event()

    def died(self, entry: bytes) -> None:
        """A job is in dead, and we are the one who put it there.

        Args:
            entry: as it is filed.
        """
        self._waiting.extend((entry, number) for number in range(self._count(name_of(entry)[1])))
        self._came.set()

    async def keep(self) -> NoReturn:
        """Call hooks for ever."""
        while True:
            await self._came.wait()
            self._came.clear()
            await self._call_all(HOOK_LIMIT)

    async def finish(self) -> None:
        """The daemon stops: what waits has two seconds in all; what is left then is logged and not called."""
        deadline = time.monotonic() + _AT_THE_END
        while self._waiting and time.monotonic() < deadline:
            await self._call(*self._waiting.popleft(), max(0.1, deadline - time.monotonic()))
        while self._waiting:
            self._failed(self._waiting.popleft()[0], "the daemon has stopped")

    async def _call_all(self, limit: float) -> None:
        while self._waiting:
            entry, number = self._waiting[0]
            try:
                await self._call(entry, number, limit)
            except asyncio.CancelledError:
                # It had begun: it is not called a second time.
                self._waiting.popleft()
                self._failed(entry, "the daemon has stopped")
                raise
            self._waiting.popleft()

    async def _call(self, entry: bytes, number: int, limit: float) -> None:
        def work(app: App) -> bytes:
            call_death_hook(app, death_of(entry), number, self._log)
            return b""

        try:
            death_of(entry)
            await self._errands.run("death hook", work, limit)
        except (ErrandFailed, Unparseable) as error:
            self._failed(entry, str(error))

    def _failed(self, entry: bytes, reason: str) -> None:
        jid, name = name_of(entry)
        self._log.emit(events.DEATH_HOOK_LOST, jid=jid, job=name, reason=reason)
