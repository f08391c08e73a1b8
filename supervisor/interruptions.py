"""Ending running jobs: told in Python first, killed after a grace. The clock of timeouts runs here, so that no C call,
deadlock or held interpreter can dodge it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cogworkerd import events
from cogworkerd.errors import JobMemoryExceeded
from cogworkerd.interrupts import Interrupt, error_of, timeout_of
from cogworkerd.log import Log
from cogworkerd.payload import parse_or_none
from cogworkerd.process_memory import rss_kb
from cogworkerd.settings import Settings

from .crew import Crew
from .host import catches
from .ledger import Ledger, SlotPhase, SlotRecord
from .slot import Sentence, Slot
from .stacks import STACK_WAIT, stack_of
from .tasks import Tasks

LOOK_EVERY = 0.25
"""Seconds between two looks at the clocks of running jobs."""

_BRIEFLY = 0.1


@dataclass(frozen=True)
class Clock:
    """What is known of the time of one run.

    Attributes:
        limit: seconds; None: as long as it likes.
        seen: monotonic second at which it was seen to run: the host's clock may jump.
    """

    run: int
    limit: float | None
    seen: float


class Interruptions:
    """Interrupts the jobs of one crew.

    Args:
        settings: `timeout`, `timeout_grace`, `kill_rss`.

    Attributes:
        clocks: of the runs that were seen, by slot.
    """

    def __init__(self, crew: Crew, ledger: Ledger, tasks: Tasks, log: Log, settings: Settings) -> None:
        self._crew = crew
        self._ledger = ledger
        self._tasks = tasks
        self._log = log
        self._timeout = settings.timeout
        self._grace = settings.timeout_grace
        self._kill_kb = settings.kill_rss // 1024 if settings.kill_rss is not None else None
        self.clocks: dict[int, Clock] = {}

    async def look(self) -> None:
        """Interrupt each job whose time is over; kill each that has grown too large."""
        now = time.monotonic()
        for slot in self._crew.alive:
            record = self._at_work(slot)
            if record is None:
                continue
            clock = self._clock_of(slot, record, now)
            if clock.limit is not None and now - clock.seen >= clock.limit:
                self.interrupt(slot, Interrupt.TIMEOUT, self._grace)
            if self._kill_kb is not None:
                await self._kill_if_large(slot, record, self._kill_kb)

    async def _kill_if_large(self, slot: Slot, record: SlotRecord, most_kb: int) -> None:
        """There is no grace: what grows like this would not wait for the end of one."""
        size = rss_kb(slot.pid)
        if size is None or size <= most_kb or slot.killed:
            return
        error = JobMemoryExceeded(f"its process has {size // 1024} MiB, more than kill_rss = {most_kb // 1024} MiB")
        await self._kill_with_stack(slot, slot.run_of(record), error, _BRIEFLY)

    def _clock_of(self, slot: Slot, record: SlotRecord, now: float) -> Clock:
        """The clock of the run at hand. Payloads are only parsed where they may name a timeout, once a run."""
        run = slot.run_of(record)
        known = self.clocks.get(slot.number)
        if known is not None and known.run == run:
            return known
        limit = self._timeout
        if b'"timeout"' in record.raw:
            limit = timeout_of(_payload_of(record), limit)
        clock = self.clocks[slot.number] = Clock(run, limit, now)
        return clock

    def interrupt(self, slot: Slot, what: Interrupt, grace: float | None) -> bool:
        """Tell a job to end, and kill it if it has not after the grace. Of several orders for one run the first counts.

        Args:
            grace: seconds; None: it is not killed.

        Returns:
            Whether there is a job to be interrupted, and nobody has done so before.
        """
        record = self._at_work(slot)
        if record is None or slot.is_sentenced(record):
            return False
        run = slot.run_of(record)
        payload = _payload_of(record)
        error = error_of(what, payload, self._timeout)
        self._log.emit(
            events.JOB_INTERRUPTED,
            slot=slot.number,
            jid=str(payload.get("jid", "")),
            job=str(payload.get("class", "")),
            order=what.name.lower(),
            reason=str(error),
            grace=grace,
        )
        slot.sentence = Sentence(run, error, time.monotonic() + grace if grace is not None else None)
        slot.page.order(what, run)
        if catches(slot.pid, signal.SIGUSR2):  # a job may have put the default back, which would end the child
            slot.signal(signal.SIGUSR2)
        self._carry_out(slot, slot.sentence)
        return True

    def _carry_out(self, slot: Slot, sentence: Sentence) -> None:
        if sentence.kill_at is not None:
            self._tasks.spawn(self._kill_at(slot, sentence, sentence.kill_at), f"interrupt slot {slot.number}")

    async def _kill_at(self, slot: Slot, sentence: Sentence, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - time.monotonic()))
        if self._still_at(slot, sentence.run):
            await self._kill_with_stack(slot, sentence.run, sentence.error)

    def go_on(self, clocks: Mapping[int, Clock]) -> None:
        """Take over what another program of this process has begun. `clocks`: as it had them."""
        self.clocks.update(clocks)
        for slot in self._crew.alive:
            if slot.sentence is not None and not slot.killed:
                self._carry_out(slot, slot.sentence)

    async def _kill_with_stack(self, slot: Slot, run: int, error: BaseException, wait: float = STACK_WAIT) -> None:
        lines = await stack_of(slot, lambda: self._still_at(slot, run), wait)
        self._crew.read(slot)  # it may have ended this very moment
        if self._still_at(slot, run):
            slot.sentence = Sentence(run, error)
            self._crew.kill(slot, f"{type(error).__name__}: {error}", lines)

    def _still_at(self, slot: Slot, run: int) -> bool:
        record = self._at_work(slot)
        return record is not None and slot.run_of(record) == run

    def _at_work(self, slot: Slot) -> SlotRecord | None:
        """What the ledger knows of a slot whose job is inside perform."""
        record = self._ledger.slots.get(slot.number)
        return record if record is not None and record.phase is SlotPhase.STARTED else None

    async def stop_all(self, time_left: float) -> None:
        """The time of a stop is over: tell every running job, and wait a moment for them to leave things in order.

        Args:
            time_left: seconds to wait at most.
        """
        told = [slot for slot in self._crew.alive if self.interrupt(slot, Interrupt.STOP, None)]
        limit = time.monotonic() + time_left
        while time.monotonic() < limit and any(slot.pid is not None for slot in told):
            await asyncio.sleep(0.02)

    def slot_of(self, jid: str) -> Slot | None:
        """The slot that performs a job now."""
        for slot in self._crew.alive:
            record = self._at_work(slot)
            if record is not None and _payload_of(record).get("jid") == jid:
                return slot
        return None


def _payload_of(record: SlotRecord) -> Mapping[str, Any]:
    return parse_or_none(record.raw) or {}
