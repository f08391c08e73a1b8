"""The locks that a job holds. Each is a key whose value is its owner's jid; it is changed only by compare-and-act.

The unique lock keeps a second job of the same arguments away until this one is over. The running lock keeps the next
slot of a periodic entry away while a run of it waits or is at work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cogworkerd.outcome import Kind, Outcome, Settlement
from cogworkerd.payload import Unparseable, id_of_bytes, parse, queue_of
from cogworkerd.store.keys import Keys
from cogworkerd.unique import UNTIL_EXECUTED, unique_digest

DEFAULT_TTL = 86_400.0
_ACTIVE_MARGIN = 120.0


@dataclass(frozen=True, slots=True)
class JobLocks:
    """The locks of one job, for a step in which it goes on waiting.

    Attributes:
        jid: the owner.
        keys: the unique lock, then the running lock, as far as the job has them.
        retake: the running lock, the last key, is taken again if it has lapsed.
        ttl: whole seconds for which they are kept.
    """

    jid: str = ""
    keys: tuple[str, ...] = ()
    retake: bool = False
    ttl: int = 0


class Locks:
    """Which locks a job has, and for how long.

    Args:
        unique_lock_ttl: seconds that a lock outlives the time until which its job waits: a safety net.
        orphan_threshold: seconds after which a daemon without a beat is dead.
    """

    def __init__(self, keys: Keys, unique_lock_ttl: float = DEFAULT_TTL, orphan_threshold: float = 300.0) -> None:
        self._keys = keys
        self._ttl = unique_lock_ttl
        self._threshold = orphan_threshold

    def unique(self, payload: Mapping[str, Any], found: str) -> str | None:
        """The key of a unique job's lock. `found`: the queue it was found on, for a job that names none."""
        if payload.get("unique") != UNTIL_EXECUTED:
            return None
        try:
            return self._keys.unique(unique_digest(payload, queue_of(payload, found)))
        except RecursionError:
            return None  # nested as deep as no client of ours writes: it was read, and cannot be written again

    def running(self, payload: Mapping[str, Any]) -> str | None:
        """The key of the lock that a periodic job's entry may have."""
        pjid = _pjid_of(payload)
        return self._keys.periodic_running(pjid) if pjid is not None else None

    def held(self, payload: Mapping[str, Any], found: str) -> tuple[str, ...]:
        """The keys to release when this job is over."""
        return tuple(key for key in (self.unique(payload, found), self.running(payload)) if key is not None)

    def waiting(self, payload: Mapping[str, Any], found: str, delay: float = 0.0) -> JobLocks:
        """The locks of a job that goes back to a queue, or waits `delay` seconds for its retry."""
        return JobLocks(payload["jid"], self.held(payload, found), retakes(payload), self.waiting_ttl(delay))

    def settlement(
        self, raw: bytes, payload: Mapping[str, Any], found: str, outcome: Outcome, now: float
    ) -> Settlement:
        """The outcome of a run with the job's locks: kept while another run is to come, else released."""
        if outcome.kind is Kind.REQUEUE:
            locks = self.waiting(payload, found)
            return Settlement(raw, locks.jid, locks.keys, outcome, locks.ttl, locks.retake, queue_of(payload, found))
        ttl = self.waiting_ttl(outcome.score - now) if outcome.kind is Kind.RETRY else 0
        return Settlement(raw, payload["jid"], self.held(payload, found), outcome, ttl)

    def of_bytes(self, raw: bytes, found: str) -> JobLocks:
        """`waiting` for a job as it is listed; no locks for bytes that are no job."""
        try:
            payload = parse(raw)
        except Unparseable:
            return JobLocks(id_of_bytes(raw))
        return self.waiting(payload, found)

    def waiting_ttl(self, delay: float = 0.0) -> int:
        """Whole seconds: the server knows no others."""
        return math.ceil(self._ttl + max(0.0, delay))

    @property
    def active_ttl(self) -> int:
        """For the running lock of a job at work: until others may have recovered the job."""
        return math.ceil(self._threshold + _ACTIVE_MARGIN)


def retakes(payload: Mapping[str, Any]) -> bool:
    """Whether this is an until_executed run of a periodic entry, which takes its lapsed running lock again."""
    return payload.get("periodic_until_executed") is True and _pjid_of(payload) is not None


def _pjid_of(payload: Mapping[str, Any]) -> str | None:
    pjid = payload.get("periodic_pjid")
    return pjid if isinstance(pjid, str) and pjid else None
