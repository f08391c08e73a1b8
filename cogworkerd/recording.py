"""What is written down of runs: history, daily counts, costs, statuses. Many runs are one script.

All of it is best effort: it is no part of settling a job, and the loss of it loses nothing else.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cogworkerd.costs import UNREGISTERED, Sums
from cogworkerd.run_record import RunRecord
from cogworkerd.status import ERROR_FIELDS, QUEUED, WORKING
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

if TYPE_CHECKING:
    from cogworkerd.settings import Settings

BATCH = 200
"""How many runs one script writes down: the server does nothing else meanwhile."""

MOST_WAITING = 16 * 2**20
"""How many bytes of runs are kept while the server is away; the oldest ones go first."""

_OF_A_RUN = 300
_MOST_STATUSES = 10_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs, or the status of a job, on their way to the server.

    Attributes:
        counted: the runs are also counted and summed.
    """

    call: scripts.Call
    runs: Sequence[RunRecord] = ()
    counted: bool = True
    status: tuple[str, dict[str, str]] | None = None


@dataclass(frozen=True)
class Waiting:
    """What a recording holds: runs, runs of which only the entry is to be written, fields of statuses by job id."""

    runs: Sequence[RunRecord] = ()
    entries: Sequence[RunRecord] = ()
    statuses: Mapping[str, dict[str, str]] = field(default_factory=dict)


class Recording:
    """Runs and statuses that wait to be written down.

    Attributes:
        dropped: how many runs were given up, since the server was away for too long.
    """

    def __init__(self, keys: Keys, settings: Settings) -> None:
        self._keys = keys
        self._settings = settings
        self._runs: deque[RunRecord] = deque()
        self._entries: deque[RunRecord] = deque()  # their numbers may be written already
        self._statuses: dict[str, dict[str, str]] = {}
        self._size = 0
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._runs or self._entries or self._statuses)

    @property
    def waiting(self) -> Waiting:
        return Waiting(tuple(self._runs), tuple(self._entries), dict(self._statuses))

    def restore(self, waiting: Waiting) -> None:
        """Take over what another recording held."""
        for run in waiting.runs:
            self._keep(self._runs, run)
        for run in waiting.entries:
            self._keep(self._entries, run)
        self._statuses.update(waiting.statuses)

    def add(self, run: RunRecord) -> None:
        """A run has ended."""
        self._keep(self._runs, run)
        if run.status:
            self.note(run.status)

    def note(self, status: bytes) -> None:
        """The status of a job has changed: a JSON object of texts with its `jid`. Of several notes the last one counts.

        Raises:
            ValueError: it is something else.
        """
        fields = json.loads(status)
        if not isinstance(fields, dict) or "jid" not in fields:
            raise ValueError("no status of a job")
        jid = str(fields.pop("jid"))
        before = self._statuses.pop(jid, {})
        if "error_class" not in fields:
            before = {name: value for name, value in before.items() if name not in ERROR_FIELDS}
        if len(self._statuses) < _MOST_STATUSES:
            self._statuses[jid] = {**before, **fields}

    def take(self, now: float) -> Batch | None:
        """The next batch; None: there is none.

        Args:
            now: epoch seconds.
        """
        if self._entries or self._runs:
            waiting, counted = (self._entries, False) if self._entries else (self._runs, True)
            runs = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
            self._size -= sum(map(_size_of, runs))
            return Batch(self._call(runs, counted, now), runs, counted)
        if self._statuses:
            jid = next(iter(self._statuses))
            fields = self._statuses.pop(jid)
            return Batch(self._status_call(jid, fields), status=(jid, fields))
        return None

    def put_back(self, batch: Batch, refused: bool = False) -> None:
        """A batch that may not have been written. What can be written twice without harm is tried again: entries are
        members of sets, a status is a status. Counts and sums are not.

        Args:
            refused: the server has answered that it writes nothing, so that nothing was counted either.
        """
        for run in batch.runs:
            if refused and batch.counted:
                self._keep(self._runs, run)
            elif run.entry:
                self._keep(self._entries, run)
        if batch.status is not None:
            jid, fields = batch.status
            self._statuses = {jid: fields, **self._statuses}  # a newer one counts

    def _keep(self, waiting: deque[RunRecord], run: RunRecord) -> None:
        self._size += _size_of(run)
        waiting.append(run)
        while self._size > MOST_WAITING:
            self._size -= _size_of((self._entries or self._runs).popleft())
            self.dropped += 1

    def _call(self, runs: Sequence[RunRecord], counted: bool, now: float) -> scripts.Call:
        sums = Sums()
        counts = 0, 0
        if counted:
            ran = [run for run in runs if run.ran]
            for run in ran:
                sums.add(run.name or UNREGISTERED, run.failed, run.receipt)
            counts = sum(run.succeeded for run in ran), sum(run.failed for run in ran)
        kept = [run for run in runs if run.entry]
        oldest = now - self._settings.history_max_age
        return scripts.record_runs(self._keys, kept, sums.rows(), counts, self._settings.history_max, oldest, now)

    def _status_call(self, jid: str, fields: Mapping[str, str]) -> scripts.Call:
        over = ""
        if "error_class" not in fields and fields.get("status") != WORKING:
            over = "requeued" if fields.get("status") == QUEUED else "over"
        return scripts.write_status(self._keys, jid, fields, math.ceil(self._settings.status_ttl), over)


def _size_of(run: RunRecord) -> int:
    return _OF_A_RUN + len(run.entry) + len(run.backtrace)
