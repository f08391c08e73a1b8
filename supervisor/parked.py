"""Parked records: filings that a daemon could not make before it left, for any live daemon to make.

A record of the list `unsettled` is `{"set", "score", "payload"}`: where to file what. Anybody may have written it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis.exceptions

from cogworkerd import events
from cogworkerd.locks import JobLocks, Locks
from cogworkerd.log import Log
from cogworkerd.outcome import Outcome
from cogworkerd.payload import DEFAULT_QUEUE, Unparseable, parse
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

from .deferred import DeferredReleases
from .link import Link

BATCH = 100


class UnusableRecord(ValueError):
    """A parked record that cannot be filed; the text says why."""


@dataclass(frozen=True)
class Record:
    """A parked filing: the key of a sorted set, the score there, the entry."""

    target: str
    score: float
    payload: bytes


def record_of(outcome: Outcome, keys: Keys) -> bytes:
    """The record for an outcome that files something."""
    record = {"set": outcome.target(keys), "score": outcome.score, "payload": outcome.payload.decode()}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()


def read_record(raw: bytes, keys: Keys) -> Record:
    """Read what anybody may have parked.

    Raises:
        UnusableRecord: it names no set of ours, or has no usable score or payload.
    """
    try:
        record: Any = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise UnusableRecord(f"not JSON: {str(error)[:200]}")
    if not isinstance(record, dict):
        raise UnusableRecord("JSON, but not an object")
    if record.get("set") not in (keys.schedule, keys.retry, keys.dead):
        raise UnusableRecord(f'"set" is not one of {keys.schedule}, {keys.retry}, {keys.dead}')
    score = record.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) < math.inf:
        raise UnusableRecord('"score" is not a number')
    payload = record.get("payload")
    if not isinstance(payload, str):
        raise UnusableRecord('"payload" is not a text')
    try:
        return Record(record["set"], float(score), payload.encode())
    except (UnicodeEncodeError, OverflowError) as error:
        raise UnusableRecord(str(error))


class ParkedRecords:
    """Files the parked records of the fleet, head first.

    Args:
        died: called with the entry of a job that we put in dead, for its hooks.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        locks: Locks,
        log: Log,
        deferred: DeferredReleases,
        died: Callable[[bytes], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._locks = locks
        self._log = log
        self._deferred = deferred
        self._died = died

    async def file_all(self, now: float) -> None:
        """File every record. One that cannot be used is moved aside; one whose set refuses it waits for the next turn.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        waiting = 0
        while True:
            records = await self._link.redis.lrange(self._keys.unsettled, waiting, waiting + BATCH - 1)
            for raw in records:
                waiting += not await self._file(raw, now)
            if len(records) < BATCH:
                return

    async def _file(self, raw: bytes, now: float) -> bool:
        """File one record.

        Returns:
            Whether it is off the list.
        """
        try:
            record = read_record(raw, self._keys)
        except UnusableRecord as problem:
            if await self._link.call(scripts.set_record_aside(self._keys, raw)):
                self._log.emit(events.PARKED_UNUSABLE, reason=str(problem), moved_to=self._keys.quarantined_records)
            return True
        held = self._held(record, now)
        jid = held.jid
        call = scripts.file_parked(self._keys, raw, record.target, record.score, record.payload, held, now)
        try:
            filed = await self._deferred.call(call, jid)
        except redis.exceptions.ResponseError as error:
            self._link.failed("file parked", error)
            return False
        self._link.worked("file parked")
        if filed:
            self._log.emit(events.PARKED_FILED, jid=jid, set=record.target)
            if record.target == self._keys.dead:
                self._died(record.payload)
        return True

    def _held(self, record: Record, now: float) -> JobLocks:
        """The job's locks, as far as it can be read."""
        try:
            job = parse(record.payload)
        except Unparseable:
            return JobLocks(ttl=1)
        return self._locks.waiting(job, DEFAULT_QUEUE, record.score - now)
