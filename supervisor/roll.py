"""The roll: children are replaced one by one, each after its job, never more than one slot down."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection

from cogworkerd import events
from cogworkerd.log import Log

from .crew import Crew
from .slot import Slot
from .systemd import Notifier
from .tasks import Tasks

_LOOK_EVERY = 0.05


class Roll:
    """At most one roll at a time; one that is asked for meanwhile follows."""

    def __init__(self, crew: Crew, tasks: Tasks, log: Log, manager: Notifier) -> None:
        self._crew = crew
        self._tasks = tasks
        self._log = log
        self._manager = manager
        self._running: asyncio.Task[None] | None = None
        self._again = False

    def begin(self, why: str, as_reload: bool = True, only: Collection[int] | None = None) -> None:
        """Start a roll, or remember it.

        Args:
            why: the signal or order that asks for it.
            as_reload: the service manager is told that the daemon reloads, until every child was replaced.
            only: numbers of the slots whose children are replaced; default: all.
        """
        if self._running is not None and not self._running.done():
            self._again = True
            return
        self._log.emit(events.ROLL_STARTED, signal=why)
        if as_reload:
            self._manager.reloading()
        self._running = self._tasks.spawn(self._roll(only), "roll")

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _roll(self, only: Collection[int] | None) -> None:
        again = True
        while again:
            self._again = False
            await self._until(lambda: self._crew.all_ready)  # one that is down already counts
            left = [slot for slot in self._crew.slots if not slot.retired and (only is None or slot.number in only)]
            only = None
            while left:
                slot = self._least_at_work(left)
                left.remove(slot)
                await self._replace(slot)
            again = self._again
        self._log.emit(events.ROLL_DONE)
        self._manager.ready()

    def _least_at_work(self, slots: list[Slot]) -> Slot:
        """One that was told before, since it goes down whenever its job ends; then an idle one, then the one with the
        youngest job: one of an hour must not keep the other slots waiting."""

        def rank(slot: Slot) -> tuple[bool, float]:
            record = self._crew.ledger.slots.get(slot.number)
            return slot.told, record.started_at if record is not None and record.busy else math.inf

        return max(slots, key=rank)

    async def _replace(self, slot: Slot) -> None:
        old = slot.pid
        if old is not None:
            slot.tell()
            await self._crew.wake_until(lambda: slot.pid != old, lambda: [slot])
        await self._until(lambda: slot.ready and slot.pid is not None)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            await asyncio.sleep(_LOOK_EVERY)
