"""The poller: moves due jobs of schedule and retry to their queues, all of them, at most a second late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import redis.exceptions

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.payload import Unparseable, dump, parse, rewritten, unparseable
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys
from cogworkerd.store.outages import Trouble

from .link import SERVER_TROUBLE, Link

POLL_EVERY = 0.8
BATCH = 100
_BATCH_BYTES = 2**20


class Poller:
    """Polls the two sets.

    Args:
        died: called with the entry of what we put in dead, for its hooks.

    Attributes:
        paused: the names of the paused queues, as of the last poll.
    """

    def __init__(self, link: Link, keys: Keys, log: Log, died: Callable[[bytes], None]) -> None:
        self._link = link
        self._keys = keys
        self._log = log
        self._died = died
        self.paused: set[str] = set()
        self._stuck: dict[bytes, float] = {}

    def retry_stuck(self) -> None:
        """Whatever held up entries may be out of the way now."""
        self._stuck.clear()

    async def keep(self, running: Callable[[], bool]) -> None:
        """Poll for ever, while `running` says so. The server's trouble never ends it."""
        while True:
            more = False
            if running():
                try:
                    more = await self.poll(time.time())
                except SERVER_TROUBLE as error:
                    self._link.failed("poller", error)
                else:
                    self._link.worked("poller")
            await asyncio.sleep(0.0 if more else POLL_EVERY)

    async def poll(self, now: float) -> bool:
        """Move what is due, one batch of each set, so that neither waits for the other.

        Returns:
            Whether there may be more.
        """
        async with self._link.redis.pipeline(transaction=False) as pipe:
            for key in self._sets:
                pipe.zrangebyscore(key, "-inf", now, start=0, num=BATCH + len(self._stuck))
            pipe.smembers(self._keys.paused_queues)
            replies = await pipe.execute(raise_on_error=False)
        self._read_paused(replies.pop())
        more = False
        for key, entries in zip(self._sets, replies, strict=True):
            if isinstance(entries, Exception):
                self._link.failed(f"poll {key}", entries)
                continue
            self._link.worked(f"poll {key}")
            waiting = [entry for entry in entries if self._stuck.get(entry, 0.0) <= now]
            await self._move(key, waiting[:BATCH], now)
            more = more or len(waiting) >= BATCH
        self._stuck = {entry: until for entry, until in self._stuck.items() if until > now}
        return more

    @property
    def _sets(self) -> tuple[str, str]:
        return self._keys.retry, self._keys.schedule

    def _read_paused(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._link.failed("paused queues", reply)
        else:
            self._link.worked("paused queues")
            self.paused = {name.decode("utf-8", "replace") for name in reply}

    async def _move(self, key: str, entries: list[bytes], now: float) -> None:
        batch: list[tuple[bytes, bytes, str]] = []
        size = 0
        for entry in entries:
            try:
                job, queue = _requeued(entry, now)
            except Unparseable as problem:
                # The time of each burial makes entries of equal bytes two entries of dead.
                await self._try_to_bury(key, entry, str(problem), time.time())
                continue
            if batch and size + len(job) > _BATCH_BYTES:
                await self._move_batch(key, batch, now)
                batch, size = [], 0
            batch.append((entry, job, queue))
            size += len(job)
        if batch:
            await self._move_batch(key, batch, now)

    async def _move_batch(self, key: str, batch: list[tuple[bytes, bytes, str]], now: float) -> None:
        answers = await self._link.call(scripts.move_due(self._keys, key, batch))
        self._log.emit(events.DUE_MOVED, set=key, count=sum(answer == 1 for answer in answers))
        for (entry, _, queue), answer in zip(batch, answers, strict=True):
            site = f"move due to {queue}"
            if isinstance(answer, bytes):
                refusal = redis.exceptions.ResponseError(answer.decode("utf-8", "replace"))
                if self._link.failed(site, refusal) is Trouble.OTHER:
                    # It must not hold up those behind it: it is tried again in a minute.
                    self._stuck[entry] = now + 60.0
            else:
                self._link.worked(site)

    async def _try_to_bury(self, key: str, entry: bytes, reason: str, now: float) -> None:
        """What cannot be buried must not hold up those behind it: it is tried again in a minute."""
        try:
            await self._bury(key, entry, reason, now)
        except redis.exceptions.ResponseError as error:
            if self._link.failed(f"bury due of {key}", error) is Trouble.OTHER:
                self._stuck[entry] = now + 60.0
        else:
            self._link.worked(f"bury due of {key}")

    async def _bury(self, key: str, entry: bytes, reason: str, now: float) -> None:
        payload = dump(unparseable(entry, "default", reason, now))
        if await self._link.call(scripts.bury_due(self._keys, key, entry, payload, time.time())):
            self._log.emit(events.DUE_BURIED, set=key, reason=reason)
            self._died(payload)


def _requeued(entry: bytes, now: float) -> tuple[bytes, str]:
    """A due entry as it goes to its queue, and the queue's name.

    Raises:
        Unparseable: it is not a job.
    """
    payload = parse(entry)
    queue = payload.setdefault("queue", "default")
    if not isinstance(queue, str) or not queue:
        raise Unparseable('"queue" is not a text')
    return rewritten(payload, entry, {"queue": queue, "enqueued_at": now}), queue
