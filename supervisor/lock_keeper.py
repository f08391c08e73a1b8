"""Keeping the locks of jobs at work alive, from the ledger, on every beat."""

from __future__ import annotations

import redis.exceptions

from cogworkerd import events
from cogworkerd.locks import Locks, retakes
from cogworkerd.log import Log
from cogworkerd.payload import Unparseable, parse
from cogworkerd.store import scripts
from cogworkerd.store.scripts import LockRefresh

from .ledger import Ledger, SlotRecord
from .link import Link

# Cheaper than parsing each job at hand: one that names neither has no locks.
_MARKS = (b'"unique"', b'"periodic_pjid"')


class LockKeeper:
    """Refreshes what the jobs at work hold. What the server says about them counts for nothing: the ledger decides.

    Attributes:
        retake: locks that have lapsed are taken again on the next round.
    """

    def __init__(self, link: Link, locks: Locks, ledger: Ledger, log: Log) -> None:
        self._link = link
        self._locks = locks
        self._ledger = ledger
        self._log = log
        self.retake = False
        self._lost: set[tuple[str, str]] = set()

    def interrupted(self) -> None:
        """A beat has failed: locks may have lapsed meanwhile, and are taken again on the next good one."""
        self.retake = True

    async def refresh(self) -> None:
        """One round. A lock that nobody holds stays released, except on the first round after a failed beat.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        wanted = [lock for record in self._ledger.performing() for lock in self._locks_of(record)]
        answers = await self._link.call(scripts.refresh_locks(wanted)) if wanted else []
        self.retake = False
        lost = set()
        for lock, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, bytes):
                error = redis.exceptions.ResponseError(answer.decode("utf-8", "replace"))
                self._link.failed(f"lock {lock.key}", error)
                continue
            self._link.worked(f"lock {lock.key}")
            if not answer:
                lost.add((lock.key, lock.owner))
        for key, owner in lost - self._lost:
            self._log.emit(events.LOCK_LOST, lock=key, jid=owner)
        self._lost = lost

    def _locks_of(self, record: SlotRecord) -> list[LockRefresh]:
        if not any(mark in record.raw for mark in _MARKS):
            return []
        try:
            payload = parse(record.raw)
        except Unparseable:
            return []
        jid, running = payload["jid"], self._locks.running(payload)
        found = []
        unique = self._locks.unique(payload, record.queue)
        if unique is not None:
            found.append(LockRefresh(unique, jid, self._locks.waiting_ttl(), False))
        if running is not None:
            found.append(LockRefresh(running, jid, self._locks.active_ttl, self.retake and retakes(payload)))
        return found
