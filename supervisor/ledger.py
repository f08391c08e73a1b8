"""The record of what the children do: pure, without input or output.

It decides what is running, what is still to be settled, what lost its process, and which entries of the own list
nobody holds. The rules are those of the settlement protocol (P11 to P18); `docs/protocol.md` tells them.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cogworkerd.outcome import Outcome
from cogworkerd.worker.reports import Report, Result, client_id, job_of


class SlotPhase(Enum):
    """What the ledger knows of one child."""

    FORKED = "forked"
    IDLE = "idle"
    STARTED = "started"
    PERFORMED = "performed"


class ProtocolError(Exception):
    """A report that cannot come in this phase; the child is killed and judged by its last valid phase."""


@dataclass
class SlotRecord:
    """One life of one slot.

    Attributes:
        runs: how many runs this life has begun.
        waits_on: the queue it waits on while idle; "" for none.
        client_id: of its connection, for CLIENT UNBLOCK; 0 while not known.
        hooks_begun: the death hooks of its job are being called.
        awaited: payloads whose judgement as strays waits for an answer of this life.
    """

    phase: SlotPhase = SlotPhase.FORKED
    queue: str = ""
    raw: bytes = b""
    started_at: float = 0.0
    outcome: Outcome | None = None
    waits_on: str = ""
    client_id: int = 0
    hooks_begun: bool = False
    runs: int = 0
    awaited: set[bytes] = field(default_factory=set)

    @property
    def busy(self) -> bool:
        return self.phase is SlotPhase.STARTED or self.phase is SlotPhase.PERFORMED


@dataclass(frozen=True)
class Unsettled:
    """An outcome that is not known to be settled.

    Attributes:
        vanished: the child found no entry, on its first attempt: the server lost it, file it all the same.
        hooks_begun: the child has begun with the death hooks.
    """

    queue: str
    raw: bytes
    outcome: Outcome
    vanished: bool = False
    hooks_begun: bool = False


@dataclass(frozen=True)
class Orphan:
    """A job to be requeued: its child died in it (blamed unless we killed it), or gave it back.

    Attributes:
        reason: how the child died, one line, then its stack; "" for one that gave it back.
        marked: a requeue was sent and not answered; it is not repeated but judged anew as a stray.
    """

    queue: str
    raw: bytes
    blame: bool
    reason: str = ""
    marked: bool = False


class Ledger:
    """The record of one supervisor.

    Attributes:
        ever_held: some child has fetched a job.
        unanswered: some child's wait for a job was never answered: it may put one on the list late (P20).
    """

    def __init__(self) -> None:
        self.slots: dict[int, SlotRecord] = {}
        self.unsettled: list[Unsettled] = []
        self.orphans: list[Orphan] = []
        self._strays: set[bytes] = set()
        self._doubted: set[bytes] = set()
        self._touched: set[bytes] | None = None
        self.ever_held = False
        self.unanswered = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """One that another program of this process has left: what it did not know of has its first value."""
        vars(self).update({**vars(Ledger()), **state})

    # ---- children ---------------------------------------------------------------------------------------

    def forked(self, slot: int) -> None:
        self.slots[slot] = SlotRecord()

    def report(self, slot: int, kind: Report, body: bytes, now: float) -> None:
        """Take a report in.

        Raises:
            ProtocolError: it cannot come in this phase, or its body makes no sense.
        """
        record = self.slots[slot]
        try:
            self._take(record, kind, body, now)
        except (ValueError, IndexError, struct.error) as error:
            raise ProtocolError(f"{kind.name} with a bad body: {error}")

    def _take(self, record: SlotRecord, kind: Report, body: bytes, now: float) -> None:
        if kind is Report.CONNECTED:
            record.client_id = client_id(body)
        elif kind is Report.READY:
            self._expect(record, kind, SlotPhase.FORKED)
            record.phase = SlotPhase.IDLE
        elif kind is Report.IDLE:
            self._expect(record, kind, SlotPhase.IDLE)
            record.waits_on = body.decode()
            record.awaited.clear()
        elif kind is Report.STARTED:
            self._expect(record, kind, SlotPhase.IDLE)
            self._started(record, body, now)
        elif kind is Report.RETURNED:
            self._expect(record, kind, SlotPhase.IDLE)
            self._returned(record, body)
        elif kind is Report.PERFORMED:
            self._expect(record, kind, SlotPhase.STARTED)
            record.outcome = Outcome.decode(body)
            record.phase = SlotPhase.PERFORMED
        elif kind is Report.FINISHED:
            self._expect(record, kind, SlotPhase.PERFORMED)
            self._finished(record, Result(body[0]))
        elif kind is Report.DEATH_HOOK:
            self._expect(record, kind, SlotPhase.PERFORMED)
            record.hooks_begun = True
        elif kind is Report.UNANSWERED:
            self.unanswered = True
        elif kind is Report.RUN:
            self._expect(record, kind, SlotPhase.STARTED)
        # TROUBLE and UNRELEASED say nothing about a job at hand. These three come in any phase.

    @staticmethod
    def _expect(record: SlotRecord, kind: Report, *phases: SlotPhase) -> None:
        if record.phase not in phases:
            raise ProtocolError(f"{kind.name} while {record.phase.value}")

    def _started(self, record: SlotRecord, body: bytes, now: float) -> None:
        self.ever_held = True
        record.queue, record.raw = job_of(body)
        record.phase = SlotPhase.STARTED
        record.started_at = now
        record.runs += 1
        record.waits_on = ""
        record.awaited.clear()
        self._touch(record.raw)
        if self.orphans:
            # The requeue that was not answered had worked: somebody has fetched the job.
            self.orphans = [orphan for orphan in self.orphans if not (orphan.marked and orphan.raw == record.raw)]

    def _returned(self, record: SlotRecord, body: bytes) -> None:
        queue, raw = job_of(body)
        self.ever_held = True
        record.waits_on = ""
        record.awaited.clear()
        self._touch(raw)
        self.orphans.append(Orphan(queue, raw, blame=False))

    def _finished(self, record: SlotRecord, result: Result) -> None:
        assert record.outcome is not None
        self._touch(record.raw)
        if result is Result.UNKNOWN:
            self._remember(record)
        elif result is Result.GONE and record.outcome.files and not self._doubts(record.raw):
            self.unsettled.append(Unsettled(record.queue, record.raw, record.outcome, vanished=True))
        # FINISHED is no answer to a look: its script may have fetched.
        record.phase, record.queue, record.raw, record.outcome = SlotPhase.IDLE, "", b"", None
        record.hooks_begun = False

    def died(self, slot: int, ours: bool, reason: str, verdict: Outcome | None = None) -> SlotRecord:
        """A child is dead and its pipe was read to its end.

        Args:
            ours: the supervisor killed it, so its job is not blamed.
            verdict: it killed it for what the job did, and this becomes of the job if it had not ended.
        """
        record = self.slots.pop(slot)
        if record.phase is SlotPhase.STARTED and verdict is not None:
            self._touch(record.raw)
            record.outcome = verdict
            self._remember(record)
        elif record.phase is SlotPhase.STARTED:
            self._touch(record.raw)
            self.orphans.append(Orphan(record.queue, record.raw, blame=not ours, reason=reason))
        elif record.phase is SlotPhase.PERFORMED:
            self._touch(record.raw)
            self._remember(record)
        return record

    def _remember(self, record: SlotRecord) -> None:
        assert record.outcome is not None
        self.unsettled.append(Unsettled(record.queue, record.raw, record.outcome, hooks_begun=record.hooks_begun))
        self._doubted.add(_digest(record.raw))

    def _doubts(self, raw: bytes) -> bool:
        """Whether a settlement of such bytes was ever of unknown outcome: it may have taken a copy's entry."""
        return _digest(raw) in self._doubted

    # ---- what runs --------------------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        return sum(record.busy for record in self.slots.values())

    def performing(self) -> list[SlotRecord]:
        """Those whose job is still inside perform."""
        return [record for record in self.slots.values() if record.phase is SlotPhase.STARTED]

    def idle_slots(self) -> list[int]:
        return [slot for slot, record in self.slots.items() if record.phase is SlotPhase.IDLE]

    def waited_on(self) -> set[str]:
        """The queues that some idle slot waits on."""
        return {record.waits_on for record in self.slots.values() if record.phase is SlotPhase.IDLE}

    # ---- actions on jobs --------------------------------------------------------------------------------

    def settled(self, item: Unsettled) -> None:
        """The server answered: settled, gone or taken. It is over."""
        self.unsettled.remove(item)
        self._touch(item.raw)

    def requeued(self, orphan: Orphan) -> None:
        """The server answered the requeue of an orphan."""
        self.orphans.remove(orphan)
        self._touch(orphan.raw)

    def requeue_unknown(self, orphan: Orphan) -> None:
        """The requeue of an orphan was not answered: it is judged anew, with its blame."""
        self.orphans.remove(orphan)
        self.orphans.append(Orphan(orphan.queue, orphan.raw, orphan.blame, orphan.reason, marked=True))
        self._touch(orphan.raw)

    def stray_requeued(self, raw: bytes) -> None:
        """The server answered the requeue of a stray."""
        self._strays.discard(raw)
        self.orphans = [orphan for orphan in self.orphans if not (orphan.marked and orphan.raw == raw)]

    def stray_unknown(self, raw: bytes) -> None:
        """The requeue of a stray was not answered: it waits anew."""
        self._strays.discard(raw)

    def mark_of(self, raw: bytes) -> Orphan | None:
        """The orphan of these bytes whose requeue was not answered."""
        return next((orphan for orphan in self.orphans if orphan.marked and orphan.raw == raw), None)

    # ---- looks ------------------------------------------------------------------------------------------

    def begin_look(self) -> None:
        """A look is about to be sent. Reports and actions until its judgement are noted."""
        self._touched = set()

    def forget_look(self) -> None:
        """The look was not answered."""
        self._touched = None

    def judge(self, listed: list[bytes]) -> list[bytes]:
        """Judge what a look saw. Every pipe was read empty after the look's reply.

        Returns:
            Entries to requeue under this look: no child can be holding them.
        """
        touched, self._touched = self._touched or set(), None
        known = {item.raw for item in self.unsettled} | {orphan.raw for orphan in self.orphans if not orphan.marked}
        counts, held = Counter(listed), Counter(record.raw for record in self.slots.values() if record.busy)
        extra = [raw for raw, n in counts.items() if n > held[raw] and raw not in touched and raw not in known]
        for raw in self._strays.difference(extra):
            self._forget_stray(raw)
        self.orphans = [orphan for orphan in self.orphans if not orphan.marked or orphan.raw in counts]
        for raw in extra:
            if raw not in self._strays:
                self._strays.add(raw)
                for record in self.slots.values():
                    if record.phase is not SlotPhase.STARTED:
                        record.awaited.add(raw)
        return [raw for raw in extra if not any(raw in record.awaited for record in self.slots.values())]

    def fence(self, listed: list[bytes]) -> None:
        """This identity was not registered any more: only what is still on its list is its own to settle."""
        there = set(listed)
        self.unsettled = [item for item in self.unsettled if item.raw in there]
        self.orphans = [orphan for orphan in self.orphans if orphan.raw in there]
        self._strays.clear()
        self._touched = None
        for record in self.slots.values():
            record.awaited.clear()

    def _touch(self, raw: bytes) -> None:
        """A report or an action named these bytes: what was noted about them as a stray is void."""
        self._forget_stray(raw)
        if self._touched is not None:
            self._touched.add(raw)

    def _forget_stray(self, raw: bytes) -> None:
        if raw in self._strays:
            self._strays.remove(raw)
            for record in self.slots.values():
                record.awaited.discard(raw)


def _digest(raw: bytes) -> bytes:
    return hashlib.sha1(raw, usedforsecurity=False).digest()
