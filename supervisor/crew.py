"""The crew: all slots and their children. Forks, reads reports, notices deaths, wakes, tells, kills."""

from __future__ import annotations

import asyncio
import errno
import gc
import secrets
import signal
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.outcome import Outcome
from cogworkerd.store.scripts import Unreleased
from cogworkerd.worker import loop as child_loop
from cogworkerd.worker.page import Page
from cogworkerd.worker.reports import Report, job_of, unreleased_of
from cogworkerd.worker.slot_page import SlotPage

from . import descriptors
from .burial import name_of, verdict_on
from .dossier import Dossier, excerpt
from .ledger import Ledger, ProtocolError, SlotPhase, SlotRecord
from .link import SERVER_TROUBLE, Link
from .notes import notes_of
from .oom import OomWatch
from .resolver import ResolvingLoop
from .slot import ChildExit, Slot, reap_strangers
from .stacks import crash_lines, stack_end, stack_file, stack_of

READ_PAUSE = 0.02
"""Seconds that a pipe is left alone after a read: the parent's cost is per wake-up, not per report."""

WAKE_EVERY = 0.02
_FORK_AGAIN = 1.0


@dataclass(frozen=True)
class Hooks:
    """What the crew tells its supervisor.

    reports_came: reports were read. job_to_place: a job waits to be requeued or settled. registry: READY carried a
    description of the app. import_failed: a child could not import the app. fetch_trouble: the server's sentence about
    a fetch that it did not carry out. unreleased: locks that a settlement could not release. ran: the record of a run.
    died: a child has died; the slot, what the ledger knew of it, how it ended, and what its job was sentenced to.
    """

    reports_came: Callable[[], None]
    job_to_place: Callable[[], None]
    registry: Callable[[bytes], None]
    import_failed: Callable[[], None]
    fetch_trouble: Callable[[str], None]
    unreleased: Callable[[list[Unreleased]], None]
    ran: Callable[[bytes], None]
    died: Callable[[Slot, SlotRecord, Dossier, Outcome | None], None]


class Crew:
    """The children of one supervisor.

    Args:
        setup: makes what a child is given, from the slot, its descriptor for reports and that of its parent's life.
        inherited: descriptors that were open before the supervisor made any of its own: the application's.
        shared: descriptors of the supervisor's that children keep.

    Attributes:
        spared: gives the pids of further processes of ours; whoever started them takes their exit statuses.
    """

    def __init__(
        self,
        slots: list[Slot],
        loop: ResolvingLoop,
        page: Page,
        ledger: Ledger,
        link: Link,
        log: Log,
        setup: Callable[[Slot, int, int], child_loop.Setup],
        hooks: Hooks,
        inherited: set[int],
        shared: set[int],
        boot_timeout: float,
    ) -> None:
        self.slots = slots
        self.ledger = ledger
        self.left_in_order = True
        self._loop = loop
        self._page = page
        self._link = link
        self._log = log
        self._setup = setup
        self._hooks = hooks
        self._inherited = inherited
        self._shared = shared
        self._boot_timeout = boot_timeout
        self._oom = OomWatch()
        self._forking = False
        self._reading: set[int] = set()
        self.spared: Callable[[], set[int]] = set

    # ---- forking ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """From now on every slot is kept filled."""
        self._forking = True
        self.fill()

    def close(self) -> None:
        """Fork no more."""
        self._forking = False

    def fill(self) -> None:
        """Fork a child for each empty slot whose back-off is over."""
        now = time.monotonic()
        for slot in self.slots:
            if (
                self._forking
                and not slot.retired
                and slot.pid is None
                and now >= slot.not_before
                and self._loop.fork_is_safe
            ):
                self._fork(slot)

    def _fork(self, slot: Slot) -> None:
        self.ledger.forked(slot.number)
        try:
            slot.fork(
                lambda write, life: child_loop.run(self._setup(slot, write, life)),
                lambda keep: self._forget(slot, keep),
            )
        except OSError as error:
            del self.ledger.slots[slot.number]
            slot.not_before = time.monotonic() + _FORK_AGAIN
            self._log.emit(
                events.FORK_FAILED,
                slot=slot.number,
                error=errno.errorcode.get(error.errno or 0, str(error)),
                retry_in=_FORK_AGAIN,
            )
            return
        slot.stack_read = stack_end(slot)
        self._log.emit(events.CHILD_STARTED, slot=slot.number, child=slot.pid)
        self._resume_reading(slot)

    def _forget(self, slot: Slot, keep: set[int]) -> None:
        stacks = {slot.stack_file} if slot.stack_file is not None else set()
        pages = {slot.page.fd} if slot.page.fd is not None else set()
        descriptors.forget(self._loop.selector.fileno(), self._inherited | self._shared | stacks | pages | keep)

    # ---- adopting ---------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Go on with the children that an earlier program of this process has forked."""
        for slot in self.alive:
            self._resume_reading(slot)
        self.look_for_deaths()

    def let_go(self) -> None:
        """Fork, read and reap no more: another program is to go on with these children."""
        self.close()
        for slot in self.slots:
            self._pause_reading(slot)
        self._reading.update(slot.number for slot in self.slots)  # so that no timer resumes it

    def retire(self) -> None:
        """There are fewer slots now: ask those that are too many to leave after their job."""
        for slot in self.alive:
            if slot.retired:
                slot.tell()

    # ---- reading ----------------------------------------------------------------------------------------

    def _resume_reading(self, slot: Slot) -> None:
        if slot.pid is not None and slot.number not in self._reading:
            self._reading.add(slot.number)
            self._loop.add_reader(slot.report_fd, self._readable, slot)

    def _pause_reading(self, slot: Slot) -> None:
        if slot.number in self._reading:
            self._reading.discard(slot.number)
            self._loop.remove_reader(slot.report_fd)

    def _readable(self, slot: Slot) -> None:
        self._pause_reading(slot)
        self.read(slot)
        if slot.pid is not None:
            # A frame that fills the pipe needs many reads, one after the other.
            pause = 0.0 if slot.half_read else READ_PAUSE
            self._loop.call_later(pause, self._resume_reading, slot)
        self._hooks.reports_came()

    def read_all(self) -> None:
        """Read every pipe empty."""
        for slot in self.slots:
            if slot.pid is not None:
                self.read(slot)

    def read(self, slot: Slot) -> None:
        """Read one pipe empty into the ledger. A child that breaks the protocol is killed."""
        try:
            for kind, body in slot.read():
                self._take(slot, kind, body)
        except (ProtocolError, ValueError, IndexError, struct.error) as error:
            self.kill(slot, f"protocol error: {error}")
        self._page.idle_slots = len(self.ledger.idle_slots())

    def _take(self, slot: Slot, kind: Report, body: bytes) -> None:
        before = len(self.ledger.orphans) + len(self.ledger.unsettled)
        raw = self.ledger.slots[slot.number].raw  # FINISHED forgets it
        self.ledger.report(slot.number, kind, body, time.time())
        if self._log.enabled(events.REPORT):
            self._tell_report(slot, kind, body, raw)
        if kind is Report.READY:
            slot.ready = True
            if body:
                self._hooks.registry(body)
        elif kind is Report.TROUBLE:
            self._hooks.fetch_trouble(body.decode("utf-8", "replace"))
        elif kind is Report.UNRELEASED:
            self._hooks.unreleased(unreleased_of(body))
        elif kind is Report.RUN:
            self._hooks.ran(body)
        if len(self.ledger.orphans) + len(self.ledger.unsettled) > before:
            self._hooks.job_to_place()

    def _tell_report(self, slot: Slot, kind: Report, body: bytes, raw: bytes) -> None:
        if kind in (Report.STARTED, Report.RETURNED):
            raw = job_of(body)[1]
        detail = body.decode() if kind is Report.IDLE else str(body[0]) if kind is Report.FINISHED else ""
        self._log.emit(
            events.REPORT, slot=slot.number, kind=kind.name, jid=name_of(raw)[0] if raw else "", detail=detail
        )

    # ---- deaths -----------------------------------------------------------------------------------------

    def look_for_deaths(self) -> None:
        """Take in every child that has ended, then processes that are none of ours."""
        for slot in list(self.slots):
            if slot.dead():
                self._bury(slot)
        reap_strangers({slot.pid for slot in self.slots if slot.pid is not None} | self.spared())
        self.fill()

    def _bury(self, slot: Slot) -> None:
        self.read(slot)  # what it reported before it died counts
        ended = slot.reap()
        if ended is None:
            return
        self._pause_reading(slot)
        dossier = self._dossier_of(slot, ended)
        outcome = self._verdict_on(slot)
        ours = bool(slot.killed) or slot.is_sentenced(self.ledger.slots[slot.number])
        record = self.ledger.died(slot.number, ours, dossier.text, outcome)
        planned = ended.code == child_loop.EXIT_LEFT and not record.busy and slot.ready
        if not planned:
            self.left_in_order = False
        pause = slot.buried(time.monotonic(), planned, record.busy)
        if slot.retired:
            self.slots.remove(slot)
            slot.close()
        self._tell_death(slot, dossier, record, planned, pause)
        self._hooks.died(slot, record, dossier, outcome)
        self._page.idle_slots = len(self.ledger.idle_slots())
        if not slot.ready and ended.code == child_loop.EXIT_IMPORT:
            self._hooks.import_failed()
        if not planned or self.ledger.orphans:
            self._hooks.job_to_place()
        if pause:
            self._loop.call_later(pause, self.fill)
        self._hooks.reports_came()

    def _verdict_on(self, slot: Slot) -> Outcome | None:
        """What becomes of a job that was told to end; None where the child was at another one by then."""
        record, sentence = self.ledger.slots[slot.number], slot.sentence
        if sentence is None or not slot.is_sentenced(record):
            return None
        return verdict_on(record, sentence.error, time.time())

    def _dossier_of(self, slot: Slot, ended: ChildExit) -> Dossier:
        record = self.ledger.slots[slot.number]
        notes = notes_of(slot, name_of(record.raw)[0]) if record.busy else None
        crash = crash_lines(slot)
        killed_by_others = ended.signal == signal.SIGKILL and not slot.killed
        oom = self._oom.evidence() if killed_by_others else ""
        return Dossier(ended, oom, notes, slot.stack or crash)

    def _tell_death(self, slot: Slot, dossier: Dossier, record: SlotRecord, planned: bool, pause: float) -> None:
        ended = dossier.ended
        if planned or slot.killed:
            self._log.emit(events.CHILD_LEFT, slot=slot.number, child=ended.pid)
            return
        jid, name = name_of(record.raw) if record.busy else ("", "")
        self._log.emit(
            events.CHILD_DIED,
            slot=slot.number,
            child=ended.pid,
            reason=dossier.headline,
            rss_kb=ended.rss_kb,
            jid=jid,
            job=name,
            frames=[line.strip() for line in excerpt(dossier.stack)],
            respawn_in=pause,
        )

    def sweep(self) -> None:
        """Every second: deaths that no signal told of, children that do not say hello, kills of the kernel's."""
        self.look_for_deaths()
        self._kill_those_that_do_not_say_hello()
        self._oom.look()

    def _kill_those_that_do_not_say_hello(self) -> None:
        now = time.monotonic()
        for slot in self.slots:
            if slot.pid is not None and not slot.ready and now - slot.born > self._boot_timeout:
                self.kill(slot, f"not ready within {self._boot_timeout:g} s")

    # ---- orders -----------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.pid is not None]

    @property
    def all_ready(self) -> bool:
        return all(slot.ready and slot.pid is not None for slot in self.slots if not slot.retired)

    def tell_all(self) -> None:
        for slot in self.alive:
            slot.tell()

    def nudge_all(self) -> None:
        """Wake children that wait for permission to fetch."""
        for slot in self.alive:
            slot.signal(signal.SIGCONT)

    def kill_all(self, why: str) -> None:
        for slot in self.alive:
            self.kill(slot, why)

    def kill(self, slot: Slot, why: str, stack: Sequence[str] = ()) -> None:
        """End one child and what its job has started.

        Args:
            why: in words.
            stack: of the child, as it was just now.
        """
        if not slot.killed and slot.pid is not None:
            self._log.emit(events.CHILD_KILLED, slot=slot.number, child=slot.pid, why=why)
            slot.kill(why, stack)

    async def wake(self, number: int) -> None:
        """End the blocking wait of one idle child; best effort."""
        record = self.ledger.slots.get(number)
        if record is None or not record.client_id:
            return
        try:
            # With ERROR: without it, Redis 7.0 crashes if the client waits for the end of a CLIENT PAUSE.
            await self._link.redis.execute_command("CLIENT", "UNBLOCK", record.client_id, "ERROR")
        except SERVER_TROUBLE:
            pass

    async def wake_until(self, done: Callable[[], bool], slots: Callable[[], list[Slot]]) -> None:
        """Unblock waiting children again and again: one that was about to wait would otherwise miss it."""
        while not done():
            for slot in slots():
                record = self.ledger.slots.get(slot.number)
                if record is not None and record.phase is SlotPhase.IDLE and record.waits_on:
                    await self.wake(slot.number)
            await asyncio.sleep(WAKE_EVERY)

    # ---- stacks -----------------------------------------------------------------------------------------

    async def log_stacks(self) -> None:
        """Log what every slot is doing, with its Python stack."""
        alive = self.alive
        stacks = await asyncio.gather(*(stack_of(slot) for slot in alive))
        for slot, lines in zip(alive, stacks, strict=True):
            record = self.ledger.slots.get(slot.number)
            if record is None:
                continue
            self._log.emit(
                events.CHILD_STACK,
                slot=slot.number,
                child=slot.pid,
                phase=record.phase.value,
                jid=name_of(record.raw)[0] if record.busy else "",
                frames=[line.strip() for line in lines],
            )


def slots_for(size: int, states: Sequence[Mapping[str, Any]] = ()) -> list[Slot]:
    """The slots of a crew. Those that are too many stay as long as their children.

    Args:
        states: of slots that an earlier program of this process has left.
    """
    found = [Slot.adopted(state) for state in states]
    for slot in found:
        slot.retired = slot.number > size
    there = {slot.number for slot in found}
    found += [
        Slot(number, secrets.token_hex(6), stack_file(), SlotPage())
        for number in range(1, size + 1)
        if number not in there
    ]
    for slot in [slot for slot in found if slot.retired and slot.pid is None]:
        found.remove(slot)
        slot.close()
    return found


def freeze() -> None:
    """Take what was imported out of the garbage collector's sight, so that children go on sharing its pages."""
    gc.collect()
    gc.freeze()
