"""The heartbeat: presence, registration, what runs where. One beat every 5 s; what runs is published more often."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from typing import Any

import redis.exceptions

import cogworkerd
from cogworkerd.payload import Unparseable, parse
from cogworkerd.process_memory import rss_kb
from cogworkerd.redact import masked
from cogworkerd.store import scripts
from cogworkerd.store.keys import PRESENCE_TTL, Keys
from cogworkerd.worker.page import Page, clock

from .ledger import Ledger, SlotRecord
from .link import Link
from .memory import Shares
from .slot import Slot

BEAT_EVERY = 5.0
PUBLISH_AFTER = 0.5
_LARGEST_SHOWN = 65_536


class Heartbeat:
    """Beats for one identity.

    Args:
        describe: the fields of `info` that do not change.
        queues: gives the names of the queues that are read, repeated by weight.
        phase: gives the supervisor's phase, as a word.
        reliable: tells whether it fetches reliably, and so owns a list.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        identity: str,
        page: Page,
        ledger: Ledger,
        slots: list[Slot],
        describe: dict[str, Any],
        queues: Callable[[], list[str]],
        phase: Callable[[], str],
        reliable: Callable[[], bool],
    ) -> None:
        self._link = link
        self._keys = keys
        self._identity = identity
        self._page = page
        self._ledger = ledger
        self._slots = slots
        self._describe = describe
        self._queues = queues
        self._phase = phase
        self._reliable = reliable
        self._shares = Shares()
        self._published: tuple[dict[str, bytes], bool, list[int | None]] = ({}, False, [])

    async def beat(self) -> None:
        """One beat. The presence hash goes first and is the one write that matters; the lease of the children is
        renewed by it, from the moment it was sent.

        Raises:
            RedisError, OSError: the presence was not written.
        """
        sent = clock()
        await self._write_presence()
        self._page.beat(sent)
        now = time.time()
        queues = sorted(set(self._queues()))
        problems = await self._link.call(scripts.beat(self._keys, self._identity, now, queues, self._reliable()))
        for problem in problems:
            key, _, sentence = problem.decode("utf-8", "replace").partition(": ")
            self._link.failed(f"beat {key}", redis.exceptions.ResponseError(sentence))
        if not problems:
            self._link.worked_all("beat ")
        try:
            await self.publish(full=True)
        except redis.exceptions.ResponseError as error:
            self._link.failed("publish", error)  # secondary; a server that is gone makes the whole beat a failed one

    @property
    def late(self) -> bool:
        """The last good beat is older than the presence lives."""
        return clock() - self._page.last_beat > PRESENCE_TTL

    async def _write_presence(self) -> None:
        async with self._link.redis.pipeline(transaction=True) as pipe:
            self._queue_presence(pipe)
            await pipe.execute()

    def _queue_presence(self, pipe: Any) -> None:
        key = self._keys.process(self._identity)
        fields = {
            "info": self._info(),
            "busy": str(self._ledger.busy),
            "quiet": "true" if self._page.quiet else "false",
        }
        pipe.hset(key, mapping=fields)
        pipe.expire(key, PRESENCE_TTL)

    def _info(self) -> str:
        self._shares.sample([None, *(slot.pid for slot in self._slots if slot.pid is not None)])
        own = rss_kb()
        slots = [self._slot_info(slot) for slot in self._slots]
        known = [size for size in (own, *(slot["rss_kb"] for slot in slots)) if size is not None]
        info = {
            **self._describe,
            "queues": self._queues(),
            "rss_kb": sum(known) if known else None,
            "pss_kb": self._shares.total_pss_kb,
            "version": cogworkerd.__version__,
            "python": platform.python_version(),
            "phase": self._phase(),
            "fetch": "reliable" if self._reliable() else "basic",
            "slots": slots,
        }
        return json.dumps(info, ensure_ascii=False)

    def _slot_info(self, slot: Slot) -> dict[str, Any]:
        record = self._ledger.slots.get(slot.number)
        jid = _job_of(record)[1] if record is not None and record.busy else None
        rss = rss_kb(slot.pid) if slot.pid is not None else None
        share = self._shares.of(slot.pid) if slot.pid is not None else None
        return {
            "tid": slot.tid,
            "pid": slot.pid,
            "rss_kb": rss,
            "pss_kb": share.pss_kb if share is not None else None,
            "private_kb": share.private_kb if share is not None else None,
            "jid": jid,
        }

    async def publish(self, full: bool = False) -> None:
        """Write what runs where and in which processes, between beats only if that has changed.

        Raises:
            RedisError, OSError: it was not written; it is best effort.
        """
        running = self._running()
        state = (running, self._page.quiet, [slot.pid for slot in self._slots])
        if not full and state == self._published:
            return
        key = self._keys.workers(self._identity)
        async with self._link.redis.pipeline(transaction=True) as pipe:
            pipe.delete(key)
            if running:
                pipe.hset(key, mapping=running)
                pipe.expire(key, PRESENCE_TTL)
            if not full:
                self._queue_presence(pipe)
            await pipe.execute()
        self._published = state

    def _running(self) -> dict[str, bytes]:
        now = time.time()
        found = {}
        for slot in self._slots:
            record = self._ledger.slots.get(slot.number)
            if record is not None and record.busy and now - record.started_at >= PUBLISH_AFTER:
                found[slot.tid] = _entry(record)
        return found


def _entry(record: SlotRecord) -> bytes:
    payload, _ = _job_of(record)
    entry = {"queue": record.queue, "payload": payload, "run_at": int(record.started_at)}
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace")


def _job_of(record: SlotRecord) -> tuple[dict[str, Any], str]:
    """The job of a slot as it may be shown, without its arguments where they are large, and its id."""
    try:
        payload = parse(record.raw)
    except Unparseable:
        return {"class": "(unparseable)", "args": [], "jid": ""}, ""
    if len(record.raw) > _LARGEST_SHOWN:
        payload.update(args=[], kwargs={})
    return masked(payload), payload["jid"]
