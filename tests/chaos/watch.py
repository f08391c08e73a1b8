"""Waiting for conditions, and watching meanwhile what must hold at every moment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from tests.support import Client

from . import places
from .invariants import wrong_at_a_moment
from .jobs import Job
from .places import Look
from .record import Happening, Record

LOOK_EVERY = 0.03
AFTER_VIOLATION = 5.0
"""Seconds that a wait goes on for once something was wrong: what comes then is of little worth."""


class Violated(Exception):
    """The run cannot go on; the text says what was wrong."""


class Watch:
    """Watches one run.

    Attributes:
        jobs: those of the run.
        wrong: the violations so far.
        blamed: ids of jobs that some look saw counted as orphaned.
        unnamed: the lock of jobs whose ids are not known beforehand: each owner of it is one of them.
        last_slot: the slot that must have been claimed in the end; 0 for none.
        least: how many jobs there must be in the end.
    """

    def __init__(self, client: Client, record: Record) -> None:
        self.jobs: list[Job] = []
        self.wrong: list[str] = []
        self.blamed: set[str] = set()
        self.unnamed = ""
        self.last_slot = 0
        self.least = 0
        self._client = client
        self._record = record
        self._seen = Look()
        self._happenings: list[Happening] = []
        self._give_up_at = math.inf

    def until(self, condition: Callable[[], bool], within: float, what: str) -> None:
        """Wait for a condition.

        Raises:
            Violated: it did not come in time.
        """
        limit = time.monotonic() + within
        self.look()
        while not condition():
            if time.monotonic() > min(limit, self._give_up_at):
                raise Violated(f"it did not come: {what}; {self._state()}")
            time.sleep(LOOK_EVERY)
            self.look()

    def look(self) -> None:
        """Look once at what must hold at every moment."""
        started = {told.jid for told in self._happenings if told.what == "start"}  # before this look
        self._seen = places.look(self._client)
        self._happenings = self._record.all()
        if self.unnamed:
            self._name_jobs(started)
        self.blamed.update(self._seen.blames)
        for sentence in wrong_at_a_moment(self.jobs, self._seen, self._happenings):
            self.complain(sentence)

    def _name_jobs(self, started: set[str]) -> None:
        """Those that hold the lock, and those that had started before it was looked at."""
        found = set(started)
        found.update(owner for key, owner in self._seen.locks.items() if key == self.unnamed)
        known = {job.jid for job in self.jobs}
        self.jobs += [Job(jid, "", self.unnamed) for jid in sorted(found - known)]

    def complain(self, sentence: str) -> None:
        """Note a violation."""
        if sentence not in self.wrong:
            self.wrong.append(sentence)
        self._give_up_at = min(self._give_up_at, time.monotonic() + AFTER_VIOLATION)

    def all_over(self) -> bool:
        """Whether every job had come to the end that it must have, when it was looked last."""
        if len(self.jobs) < self.least or self._seen.last_slot < self.last_slot:
            return False
        return all(job.is_over(self._seen.where(job.jid), self._happenings) for job in self.jobs)

    def waiting_children(self) -> list[int]:
        """The ids of children's connections that the server holds in a wait."""
        return [
            int(client["id"])
            for client in self._client.client_list()
            if client["name"].startswith("cogworkerd-slot-") and "b" in client["flags"]
        ]

    def _state(self) -> str:
        where = {job.jid: self._seen.where(job.jid) for job in self.jobs}
        return f"jobs: {where}; children that wait: {len(self.waiting_children())}"
