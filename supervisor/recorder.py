"""The recorder: writes down what ran, and what the running jobs say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import redis.exceptions

from cogworkerd import events
from cogworkerd.history import backtrace_of, entry_of, room_for_backtrace
from cogworkerd.log import Log
from cogworkerd.outcome import Kind
from cogworkerd.payload import parse_or_none
from cogworkerd.receipt import Receipt
from cogworkerd.recording import Recording
from cogworkerd.redact import masked, masked_text
from cogworkerd.run_record import RunRecord
from cogworkerd.settings import Settings
from cogworkerd.status import ERROR_FIELDS, FAILED, QUEUED, RETRYING, Progress
from cogworkerd.store.keys import Keys
from cogworkerd.store.outages import Trouble, classify
from cogworkerd.worker.meter import waited

from .burial import name_of
from .dossier import Dossier, excerpt
from .ledger import Ledger, SlotPhase, SlotRecord
from .link import SERVER_TROUBLE, Link
from .notes import fields_of
from .slot import Slot

RECORD_EVERY = 0.2
"""Seconds between two turns: how old a status may be."""

_AFTER_FAILURE = 1.0
_SITE = "record"


class Recorder:
    """Records for one supervisor.

    Args:
        slots: all of them.
        is_registered: whether the app has a job of this name, as far as is known.

    Attributes:
        recording: what is still to be written.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        settings: Settings,
        ledger: Ledger,
        slots: Sequence[Slot],
        log: Log,
        is_registered: Callable[[str], bool],
    ) -> None:
        self._link = link
        self._settings = settings
        self._ledger = ledger
        self._slots = slots
        self._log = log
        self._is_registered = is_registered
        self.recording = Recording(keys, settings)
        self._seen: dict[int, int] = {}
        self._not_before = 0.0

    def ran(self, record: bytes) -> None:
        """A child has reported a run.

        Raises:
            ValueError, IndexError, struct.error: it is no record of a run.
        """
        self.recording.add(RunRecord.decode(record))

    def lost(self, record: SlotRecord, error: BaseException, kind: Kind | None, dossier: Dossier) -> None:
        """A run has ended with its process, so that nobody reported it.

        Args:
            record: of the slot, as it was.
            error: what the run is said to have failed with.
            kind: what becomes of the job; None: it is requeued, or in dead if it has lost its process too often.
        """
        payload = parse_or_none(record.raw)
        if payload is None:
            return
        now = time.time()
        peak = dossier.ended.rss_kb
        receipt = Receipt(now - record.started_at, 0.0, 0.0, peak, 0, 0, 0, waited(payload, record.started_at))
        entry, backtrace = b"", b""
        if self._settings.history:
            entry = entry_of(
                payload, record.queue, receipt.as_fields(), record.started_at, now, self._settings.history_args, error
            )
            if dossier.stack:
                backtrace = backtrace_of(dossier.stack, room_for_backtrace(entry), excerpt)
        progress = Progress(payload, record.queue, None)
        state = QUEUED if kind is None else RETRYING if kind is Kind.RETRY else FAILED
        shown = {"error_class": type(error).__name__, "error_message": masked_text(str(error), payload)}
        # A run that goes back to its queue is no failure of the job: its next run may end without a status.
        wanted = kind is not None or bool(dossier.notes)
        status = progress.fields(state, {**(dossier.notes or {}), **shown}) if wanted else b""
        name = payload["class"] if self._is_registered(payload["class"]) else ""
        self.recording.add(RunRecord(kind or Kind.RETRY, now, name, receipt, entry, backtrace, status))

    def requeued(self, record: SlotRecord, dossier: Dossier) -> None:
        """A run was ended by us and its job goes back: its status says so, if it has one."""
        payload = parse_or_none(record.raw)
        if payload is None:
            return
        if dossier.notes:
            self.recording.note(Progress(payload, record.queue, None).fields(QUEUED, dossier.notes))

    def buried(self, entry: bytes) -> None:
        """A job is in dead. `entry`: as it is filed."""
        payload = parse_or_none(entry)
        if payload is None:
            return
        shown = masked(payload)
        error = {name: str(shown[name]) for name in ERROR_FIELDS if name in shown}
        self.recording.note(Progress(payload, str(payload.get("queue", "")), None).fields(FAILED, error))

    async def keep(self) -> NoReturn:
        """Take turns for ever."""
        while True:
            try:
                if await self.record():
                    self._link.worked(_SITE)
            except SERVER_TROUBLE as error:
                self._link.failed(_SITE, error)
            await asyncio.sleep(RECORD_EVERY)

    async def record(self, now_or_never: bool = False) -> bool:
        """One turn: statuses that have changed, runs that have ended. After a failure nothing is tried for a second.

        Args:
            now_or_never: there will be no later turn.

        Returns:
            Whether anything was written.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        self._look_at_notes()
        if time.monotonic() < self._not_before and not now_or_never:
            return False
        written = False
        while (batch := self.recording.take(time.time())) is not None:
            try:
                await self._link.call(batch.call)
                written = True
            except (*SERVER_TROUBLE, asyncio.CancelledError) as error:
                self._not_before = time.monotonic() + _AFTER_FAILURE
                if isinstance(error, asyncio.CancelledError) or classify(error) is not Trouble.OTHER:
                    self.recording.put_back(batch, refused=isinstance(error, redis.exceptions.ResponseError))
                raise
        if self.recording.dropped:
            self._log.emit(events.RECORD_DROPPED, count=self.recording.dropped)
            self.recording.dropped = 0
        return written

    def _look_at_notes(self) -> None:
        for slot in self._slots:
            number = slot.page.notes
            if number == self._seen.get(slot.number, 0):
                continue
            record = self._ledger.slots.get(slot.number)
            number, note = slot.page.read()
            if number < 0:
                continue  # the next turn
            self._seen[slot.number] = number
            if record is not None and record.phase is SlotPhase.STARTED and fields_of(note, name_of(record.raw)[0]):
                self.recording.note(note)
