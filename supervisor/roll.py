"""The roll: children are replaced one by one, each after its job, never more than one slot down."""

from __future__ import annotations

import asyncio
import signal

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

    def begin(self, number: signal.Signals, same_code: bool) -> None:
        """Start a roll, or remember it.

        Args:
            same_code: new children will run the code that the supervisor has loaded.
        """
        if number is signal.SIGUSR2 and same_code:
            self._log.emit(events.ROLL_SAME_CODE)
        if self._running is not None and not self._running.done():
            self._again = True
            return
        self._log.emit(events.ROLL_STARTED, signal=number.name)
        self._manager.reloading()
        self._running = self._tasks.spawn(self._roll(), "roll")

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _roll(self) -> None:
        again = True
        while again:
            self._again = False
            for slot in self._crew.slots:
                await self._replace(slot)
            again = self._again
        self._log.emit(events.ROLL_DONE)
        self._manager.ready()

    async def _replace(self, slot: Slot) -> None:
        old = slot.pid
        if old is not None:
            slot.tell()
            await self._crew.wake_until(lambda: slot.pid != old, lambda: [slot])
        while not slot.ready or slot.pid is None:
            await asyncio.sleep(_LOOK_EVERY)
