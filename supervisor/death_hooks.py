"""Death hooks for jobs that did not die in a child of ours that could call them: each in an errand of its own."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NoReturn

from cogworkerd import events
from cogworkerd.app import App
from cogworkerd.log import Log
from cogworkerd.worker.death_hooks import call_death_hook, death_of

from .burial import name_of
from .errand import ErrandFailed, Errands

HOOK_LIMIT = 30.0
"""Seconds that one hook may take."""

_AT_THE_END = 2.0
_LOOK_EVERY = 0.02


class DeathHooks:
    """Calls the hooks of buried jobs, one after the other, outside of the supervisor.

    Args:
        count: how many hooks there are for a job of this name; None: that is not known yet.
    """

    def __init__(self, errands: Errands, count: Callable[[str], int | None], log: Log) -> None:
        self._errands = errands
        self._count = count
        self._log = log
        self._uncounted: list[bytes] = []
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._calling = False
        self._held = False
        self._came = asyncio.Event()
        self._deadline = 0.0

    @property
    def waiting(self) -> list[tuple[bytes, int]]:
        """The hooks that are still to be called: entry and number."""
        return list(self._waiting)

    @property
    def uncounted(self) -> list[bytes]:
        """The entries of which it is not known yet which hooks they have."""
        return list(self._uncounted)

    def restore(self, waiting: Iterable[tuple[bytes, int]], uncounted: Iterable[bytes]) -> None:
        """Take over what was still to be called."""
        self._waiting.extend(waiting)
        self._came.set()
        for entry in uncounted:
            self.died(entry)

    def died(self, entry: bytes) -> None:
        """A job is in dead, and we are the one who put it there.

        Args:
            entry: as it is filed.
        """
        count = self._count(name_of(entry)[1])
        if count is None:
            self._uncounted.append(entry)
            return
        self._waiting.extend((entry, number) for number in range(count))
        self._came.set()

    def counted(self) -> None:
        """Now it is known which hooks there are."""
        entries, self._uncounted = self._uncounted, []
        for entry in entries:
            self.died(entry)

    async def keep(self) -> NoReturn:
        """Call hooks for ever."""
        while True:
            await self._came.wait()
            self._came.clear()
            await self._call_all(lambda: HOOK_LIMIT)

    async def hold(self) -> None:
        """Begin no more, and wait for the end of the one that is under way."""
        self._held = True
        while self._calling:
            await asyncio.sleep(_LOOK_EVERY)

    def release(self) -> None:
        """Go on after a `hold`."""
        self._held = False
        self._came.set()

    async def calm(self) -> None:
        """The daemon stops: wait for those that are under way or wait, for two seconds from the first call on."""
        self._deadline = self._deadline or time.monotonic() + _AT_THE_END
        while (self._calling or self._waiting) and time.monotonic() < self._deadline:
            await asyncio.sleep(_LOOK_EVERY)

    async def finish(self) -> None:
        """The last of them, after `keep` has ended; what is left when the two seconds are over is logged."""
        self._deadline = self._deadline or time.monotonic() + _AT_THE_END
        await self._call_all(lambda: self._deadline - time.monotonic())

    async def _call_all(self, limit: Callable[[], float]) -> None:
        while self._waiting and not self._held:
            entry, number = self._waiting.popleft()
            if limit() <= 0:
                self._lost(entry, "the daemon has stopped")
                continue
            self._calling = True
            try:
                await self._call(entry, number, limit())
            except asyncio.CancelledError:
                self._lost(entry, "the daemon has stopped")  # it had begun, so it is not called a second time
                raise
            finally:
                self._calling = False

    async def _call(self, entry: bytes, number: int, limit: float) -> None:
        def work(app: App) -> bytes:
            call_death_hook(app, death_of(entry), number, self._log)
            return b""

        try:
            await self._errands.run("death hook", work, limit)
        except ErrandFailed as error:
            self._lost(entry, str(error))

    def _lost(self, entry: bytes, reason: str) -> None:
        jid, name = name_of(entry)
        self._log.emit(events.DEATH_HOOK_LOST, jid=jid, job=name, reason=reason)
