"""Queues and sorted sets of jobs, to look at and to change by hand.

Each change is one script that acts only if the job is still where it was seen, and releases the locks that the job held
if it is over. Nothing here loads a queue or a set as a whole.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from cogworkerd.app import App
from cogworkerd.job import When, due_at
from cogworkerd.locks import JobLocks, Locks
from cogworkerd.payload import (
    DEFAULT_QUEUE,
    UNPARSEABLE,
    Unparseable,
    id_of_bytes,
    parse,
    queue_of,
    rewritten,
)
from cogworkerd.redact import masked
from cogworkerd.settings import check_queue_name
from cogworkerd.snapshot import waiting_time
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

PAGE = 500


@dataclass(frozen=True)
class Store:
    """A server, the names of its keys, the rules for locks."""

    client: redis.Redis
    keys: Keys
    locks: Locks

    @classmethod
    def of(cls, app: App) -> Store:
        """The server of an app, as its clients see it."""
        settings = app.settings
        keys = Keys(settings.namespace)
        return cls(settings.server().client(), keys, settings.locks(keys))

    def call(self, call: scripts.Call) -> Any:
        """Run a script."""
        script = self.client.register_script(call.script.text)
        return script(keys=list(call.keys), args=list(call.args))

    def call_many(self, calls: Sequence[scripts.Call]) -> list[Any]:
        """Run scripts in one round trip, each on its own. A pipeline of redis-py loads those that the server lacks.

        Returns:
            The answers; an error where the server refused one.
        """
        if not calls:
            return []
        known = {call.script.sha: call.script for call in calls}
        registered = {sha: self.client.register_script(script.text) for sha, script in known.items()}
        with self.client.pipeline(transaction=False) as pipe:
            for call in calls:
                registered[call.script.sha](keys=list(call.keys), args=list(call.args), client=pipe)
            return list(pipe.execute(raise_on_error=False))


@dataclass(frozen=True)
class Entry:
    """One job as it lies somewhere.

    Attributes:
        raw: its bytes, by which it is found again.
        score: in a sorted set: when it is due, or when it died, in epoch seconds; 0.0 in a queue.
        payload: the job; for bytes that are none, what stands for them.
    """

    raw: bytes
    score: float
    payload: dict[str, Any]

    @classmethod
    def read(cls, raw: bytes, score: float = 0.0) -> Entry:
        """Read what anybody may have put there."""
        try:
            return cls(raw, score, parse(raw))
        except Unparseable:
            return cls(raw, score, {"class": UNPARSEABLE, "args": [], "jid": id_of_bytes(raw)})

    @property
    def shown(self) -> dict[str, Any]:
        """The payload with what the job wants masked."""
        return masked(self.payload)

    @property
    def original(self) -> bytes:
        """The bytes as they lie here; where they only stand for bytes that are no job, those."""
        if self.is_job:
            return self.raw
        exact, text = self.payload.get("raw_payload_base64"), self.payload.get("raw_payload")
        if isinstance(exact, str):
            with contextlib.suppress(ValueError):
                return base64.b64decode(exact, validate=True)
        return text.encode() if isinstance(text, str) else self.raw

    @property
    def cut_from(self) -> int | None:
        """Of bytes that are no job and were too many to be kept: how many they were. None: nothing is missing."""
        size = self.payload.get("raw_payload_bytes")
        return size if not self.is_job and isinstance(size, int) and size > len(self.original) else None

    @property
    def jid(self) -> str:
        return str(self.payload["jid"])

    @property
    def name(self) -> str:
        return str(self.payload["class"])

    @property
    def is_job(self) -> bool:
        """Whether it can be performed: it is not what is kept of bytes that are no job."""
        return self.name != UNPARSEABLE

    @property
    def queue(self) -> str:
        """The queue that it goes back to."""
        return queue_of(self.payload, DEFAULT_QUEUE)


Where = Callable[[Entry], bool]
Progress = Callable[[int, int], None]


def all_of_them(entry: Entry) -> bool:
    """The filter that lets every entry through."""
    return True


class Queue:
    """One queue.

    Args:
        at: an app, or a `Store`.
    """

    def __init__(self, at: App | Store, name: str) -> None:
        self._store = at if isinstance(at, Store) else Store.of(at)
        self.name = check_queue_name(name)
        self._key = self._store.keys.queue(name)

    def __len__(self) -> int:
        return int(self._store.client.llen(self._key))

    def __iter__(self) -> Iterator[Entry]:
        """Every job, newest first. What is pushed meanwhile may make a job come twice; none is left out that stays."""
        start = 0
        while True:
            page: Any = self._store.client.lrange(self._key, start, start + PAGE - 1)
            yield from (Entry.read(raw) for raw in page)
            if len(page) < PAGE:
                return
            start += PAGE

    def find(self, jid: str) -> Entry | None:
        """The job of this id; None if it is not here."""
        return next((entry for entry in self if entry.jid == jid), None)

    def delete(self, entry: Entry) -> bool:
        """Delete one job. Returns whether it was still here."""
        return self._delete([entry.raw]) == 1

    def clear(self) -> int:
        """Delete every job that is here now, oldest first. Returns how many."""
        deleted, left = 0, len(self)
        while left > 0:
            page: Any = self._store.client.lrange(self._key, -min(PAGE, left), -1)
            if not page:
                break
            deleted += self._delete(page[::-1])
            left -= len(page)
        return deleted

    @property
    def latency(self) -> float:
        """Seconds since its oldest job was enqueued; 0.0 when it is empty or does not say."""
        oldest = self._store.client.lindex(self._key, -1)
        return waiting_time(cast("bytes | None", oldest), time.time())

    def pause(self) -> None:
        """No daemon takes jobs from it any more; those under way go on."""
        self._store.client.sadd(self._store.keys.paused_queues, self.name)

    def resume(self) -> None:
        self._store.client.srem(self._store.keys.paused_queues, self.name)

    @property
    def paused(self) -> bool:
        return bool(self._store.client.sismember(self._store.keys.paused_queues, self.name))

    def _delete(self, raws: list[bytes]) -> int:
        locks = self._store.locks
        jobs = [scripts.Listed(raw, self.name, locks.of_bytes(raw, self.name)) for raw in raws]
        return int(self._store.call(scripts.delete_queued(self._store.keys, self.name, jobs))[0])


class JobSet:
    """A sorted set of jobs.

    Args:
        at: an app, or a `Store`.
    """

    kind = ""

    def __init__(self, at: App | Store) -> None:
        self._store = at if isinstance(at, Store) else Store.of(at)
        self._key: str = getattr(self._store.keys, self.kind)

    def __len__(self) -> int:
        return int(self._store.client.zcard(self._key))

    def __iter__(self) -> Iterator[Entry]:
        """Every entry, in no order. One that comes or goes meanwhile may be left out, none that stays."""
        for page in self._pages():
            yield from page

    def _pages(self) -> Iterator[list[Entry]]:
        """The same, page by page."""
        cursor = 0
        while True:
            cursor, found = cast(Any, self._store.client.zscan(self._key, cursor, count=PAGE))
            # A small set comes whole, however many were asked for.
            for start in range(0, len(found), PAGE):
                yield [Entry.read(raw, float(score)) for raw, score in found[start : start + PAGE]]
            if cursor == 0:
                return

    def page(self, start: int = 0, size: int = 20, newest: bool = False) -> list[Entry]:
        """A few entries by their times.

        Args:
            start: how many to leave out; size: how many at most.
            newest: the latest first, else the earliest.
        """
        if size < 1:
            return []
        found: Any = self._store.client.zrange(self._key, start, start + size - 1, desc=newest, withscores=True)
        return [Entry.read(raw, float(score)) for raw, score in found]

    def find(self, jid: str) -> Entry | None:
        """The entry of this id; None if it is not here."""
        return next((entry for entry in self if entry.jid == jid), None)

    def retry(self, entry: Entry) -> bool:
        """Put an entry on its queue now. Returns whether it was still here.

        Raises:
            ValueError: its bytes are no job, so that it would only come back.
        """
        return self._answer(self._retrying(entry))

    def delete(self, entry: Entry) -> bool:
        """Delete an entry, its locks and its attempts. Returns whether it was still here."""
        return self._answer(self._deleting(entry))

    def retry_all(self, where: Where = all_of_them, progress: Progress | None = None) -> int:
        """Retry every entry that is a job and for which `where` is true. Returns how many were.

        Args:
            progress: called after each page with the numbers of entries that were seen and changed so far.

        Raises:
            redis.exceptions.RedisError: an entry was refused, the first one's error; all others were tried.
        """
        return self._change(self._retrying, lambda entry: entry.is_job and where(entry), progress)

    def delete_all(self, where: Where = all_of_them, progress: Progress | None = None) -> int:
        """Delete every entry for which `where` is true. Returns how many were. `progress`: see `retry_all`."""
        return self._change(self._deleting, where, progress)

    def _change(self, call_of: Callable[[Entry], scripts.Call], where: Where, progress: Progress | None) -> int:
        """Act on each entry, a page in one round trip; each act is a script of its own."""
        seen = changed = 0
        refused: Exception | None = None
        for page in self._pages():
            for reply in self._store.call_many([call_of(entry) for entry in page if where(entry)]):
                if isinstance(reply, Exception):
                    refused = refused or reply
                else:
                    changed += bool(scripts.split_answer(reply, "")[0])
            seen += len(page)
            if progress is not None:
                progress(seen, changed)
        if refused is not None:
            raise refused
        return changed

    def _retrying(self, entry: Entry) -> scripts.Call:
        if not entry.is_job:
            raise ValueError(f"{entry.jid}: these bytes are no job; delete it, and push what it was meant to be")
        job = rewritten(entry.payload, entry.raw, {"queue": entry.queue, "enqueued_at": time.time()})
        return scripts.retry_entry(self._store.keys, self._key, entry.raw, job, entry.queue, self._locks(entry))

    def _deleting(self, entry: Entry) -> scripts.Call:
        return scripts.delete_entry(self._store.keys, self._key, entry.raw, self._locks(entry))

    def _locks(self, entry: Entry) -> JobLocks:
        return self._store.locks.of_bytes(entry.raw, entry.queue)

    def _answer(self, call: scripts.Call) -> bool:
        return bool(scripts.split_answer(self._store.call(call), "")[0])


class _WaitingSet(JobSet):
    """A set of jobs that are still to run."""

    def bury(self, entry: Entry) -> bool:
        """Move an entry to dead, without death hooks. Returns whether it was still here."""
        return self._answer(self._burying(entry))

    def bury_all(self, where: Where = all_of_them, progress: Progress | None = None) -> int:
        """Bury every entry for which `where` is true. Returns how many were. `progress`: see `retry_all`."""
        return self._change(self._burying, where, progress)

    def _burying(self, entry: Entry) -> scripts.Call:
        return scripts.bury_entry(self._store.keys, self._key, entry.raw, time.time(), self._locks(entry))

    def reschedule(self, entry: Entry, when: When) -> bool:
        """Give an entry another time: an aware datetime or epoch seconds. Returns whether it was still here."""
        changed: Any = self._store.client.zadd(self._key, {entry.raw: due_at(when)}, xx=True, ch=True)
        return bool(changed)

    def reschedule_all(self, when: When, where: Where = all_of_them, progress: Progress | None = None) -> int:
        """Give every entry for which `where` is true another time. Returns how many got one."""
        due, seen, changed = due_at(when), 0, 0
        for page in self._pages():
            times = {entry.raw: due for entry in page if where(entry)}
            if times:
                changed += int(cast(Any, self._store.client.zadd(self._key, cast(Any, times), xx=True, ch=True)))
            seen += len(page)
            if progress is not None:
                progress(seen, changed)
        return changed


class ScheduledSet(_WaitingSet):
    """Jobs that were enqueued for later."""

    kind = "schedule"


class RetrySet(_WaitingSet):
    """Jobs that have failed and wait for their next attempt."""

    kind = "retry"


class DeadSet(JobSet):
    """Jobs that are not tried again by themselves."""

    kind = "dead"
