"""Fetching: which queues, in which order, and the wait when all are empty."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.exceptions

from cogworkerd.locks import JobLocks
from cogworkerd.outcome import Settlement
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys, origin_of
from cogworkerd.worker.channel import Channel
from cogworkerd.worker.page import Page
from cogworkerd.worker.reports import Held, Result

MAX_BLOCK = 5.0
_RESULTS = {b"settled": Result.SETTLED, b"gone": Result.GONE, b"taken": Result.TAKEN}


class QueueOrder:
    """The order in which queues are looked at: by weight at random, or strictly as they stand."""

    def __init__(self, queues: Sequence[tuple[str, int]], keys: Keys, strict: bool) -> None:
        # A job of a queue of suspects is one of the queue that it came from: paused with it, and given back to it.
        self._entries = [(origin_of(name), keys.queue(name), 1.0 / weight) for name, weight in queues]
        self._fixed = strict or len(queues) == 1
        self._fixed_order = self._split(self._entries)

    def draw(self) -> tuple[list[str], list[str]]:
        """Names and keys of the queues, first one first.

        By weight: sorting by random() ** (1 / weight) draws without replacement with these weights (Efraimidis and
        Spirakis, 2006).
        """
        if self._fixed:
            return self._fixed_order
        return self._split(sorted(self._entries, key=lambda entry: random.random() ** entry[2], reverse=True))

    @staticmethod
    def _split(entries: list[tuple[str, str, float]]) -> tuple[list[str], list[str]]:
        return [name for name, _, _ in entries], [key for _, key, _ in entries]


@dataclass(frozen=True, slots=True)
class Found:
    """What a fetch brought.

    Attributes:
        held: a job, or None.
        paused: its queue is paused, so it must go back.
        unregistered: the server does not know this identity (any more): nothing may be fetched.
        problem: a queue could not be read; the server's sentence.
    """

    held: Held | None = None
    paused: bool = False
    unregistered: bool = False
    problem: str = ""


class Fetcher:
    """Fetches for one slot.

    Args:
        slot: its number; slots begin their waits at different queues.
        idle_interval: seconds; the longest between two looks of all idle slots together.

    Attributes:
        unreleased: locks that settlements could not release; for the supervisor to release later.
    """

    def __init__(
        self,
        channel: Channel,
        keys: Keys,
        identity: str,
        page: Page,
        queues: Sequence[tuple[str, int]],
        strict: bool,
        slot: int,
        idle_interval: float,
    ) -> None:
        self._channel = channel
        self._keys = keys
        self._identity = identity
        self._page = page
        self._order = QueueOrder(queues, keys, strict)
        self._names = [name for name, _ in queues]
        self._turn = slot
        self._idle_interval = idle_interval
        self._paused: frozenset[str] = frozenset()
        self.unreleased: list[scripts.Unreleased] = []

    def look(self) -> Found:
        """One look at all queues."""
        registration = self._page.registration
        names, queue_keys = self._order.draw()
        reply = self._channel.call(scripts.fetch(self._keys, self._identity, names, queue_keys))
        return self._found(reply, names, registration)

    def settle_and_look(self, done: Settlement, now: float) -> tuple[Result, Found]:
        """Settle the job that ended and look at all queues, in one round trip."""
        registration = self._page.registration
        names, queue_keys = self._order.draw()
        call = scripts.settle_and_fetch(self._keys, self._identity, done, now, names, queue_keys)
        reply = self._channel.call(call)
        return self._settled(reply[0], done.jid), self._found(reply[1:], names, registration)

    def next_wait(self) -> str:
        """The queue to wait on next: each in turn, without those that were paused at the last look."""
        names = [name for name in self._names if origin_of(name) not in self._paused] or self._names
        self._turn += 1
        return names[self._turn % len(names)]

    def wait(self, queue: str) -> Found:
        """Wait on one queue. If it is paused, wait as long for nothing: its jobs would only go round in circles."""
        registration = self._page.registration
        keys, origin = self._keys, origin_of(queue)
        source = keys.nothing if origin in self._paused else keys.queue(queue)
        raw, paused = self._channel.wait_for_job(
            source, keys.inprogress(self._identity), keys.paused_queues, origin, self._block()
        )
        return Found(Held(origin, raw, registration), paused) if raw is not None else Found()

    def _block(self) -> float:
        """How long this slot may wait, in seconds: its share of the looks at all queues."""
        return min(max(1, self._page.idle_slots) * self._idle_interval, MAX_BLOCK)

    def _found(self, reply: Any, names: list[str], registration: int) -> Found:
        index, raw = reply[0], reply[1]
        if index == 0:
            self._paused = frozenset(name.decode() for name in reply[2:])
        if index > 0:
            return Found(Held(names[index - 1], raw, registration))
        return Found(unregistered=index == -1, problem=raw.decode("utf-8", "replace") if index == -2 else "")

    def settle(self, done: Settlement, now: float) -> Result:
        """Settle alone, without a fetch."""
        return self._settled(self._channel.call(scripts.settle(self._keys, self._identity, done, now)), done.jid)

    def _settled(self, reply: Any, jid: str) -> Result:
        answer, unreleased = scripts.split_answer(reply, jid)
        self.unreleased += unreleased
        return _RESULTS[answer]

    def give_back(self, held: Held, locks: JobLocks) -> None:
        """Put a job back that was not started; only a child whose parent is dead does this."""
        self._channel.call(scripts.give_back(self._keys, self._identity, held.raw, held.queue, locks))


SERVER_TROUBLE = (redis.exceptions.RedisError, OSError)
