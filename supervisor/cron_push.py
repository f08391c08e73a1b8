"""Pushing the job of a periodic slot: claim and push are one script.

Without client middleware the supervisor runs it. With client middleware an errand does, at the end of the chain, so
that no code of the application runs here; whatever becomes of the errand, the slot is either fired or not claimed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import redis
import redis.exceptions

from cogworkerd.app import App
from cogworkerd.client import Push
from cogworkerd.locks import JobLocks, Locks
from cogworkerd.middleware import PendingJob
from cogworkerd.payload import dump, new_jid
from cogworkerd.periodic import Entry
from cogworkerd.store import scripts
from cogworkerd.store.connection import Server
from cogworkerd.store.keys import Keys
from cogworkerd.store.outages import Trouble, classify, is_wrong_type
from cogworkerd.text import error_class, error_message

from .errand import ErrandFailed, Errands
from .link import Link

PUSH_LIMIT = 2.0
"""Seconds that the client middleware of one push may take."""

_RESERVED_FOR = 5
_LONGEST_REASON = 1000
_RECEIPT = re.compile(r"([0-9]{1,18}) ([0-9]{0,18}) (.+)", re.DOTALL)


class Answer(Enum):
    """What became of a slot. FIRED; LOST: another daemon has it; DISABLED; BLOCKED: a run of the entry waits or is at
    work; DUPLICATE: the job's unique lock is held; SWALLOWED: a middleware stopped the push; ELSEWHERE: another
    daemon's middleware looks at it just now; UNSENT: the server's trouble kept the errand from pushing it; FAILED: a
    middleware raised."""

    FIRED = "fired"
    LOST = "lost"
    DISABLED = "disabled"
    BLOCKED = "blocked"
    DUPLICATE = "duplicate"
    SWALLOWED = "swallowed"
    ELSEWHERE = "reserved elsewhere"
    UNSENT = "unsent"
    FAILED = "failed"


@dataclass(frozen=True)
class Fired:
    """The answer for one slot.

    Attributes:
        jid: of the job, where one was pushed.
        previous: of FIRED: the slot that was claimed before, by whatever daemon; 0 if the server remembers none.
        reason: of UNSENT and FAILED.
        refused: of UNSENT: the server was there.
    """

    answer: Answer
    jid: str = ""
    previous: int = 0
    reason: str = ""
    refused: bool = False


class CronPush:
    """Fires slots.

    Args:
        through_middleware: tells whether the app has client middleware.
    """

    def __init__(
        self,
        link: Link,
        server: Server,
        keys: Keys,
        locks: Locks,
        identity: str,
        errands: Errands,
        through_middleware: Callable[[], bool],
    ) -> None:
        self._link = link
        self._server = server
        self._keys = keys
        self._locks = locks
        self._identity = identity
        self._errands = errands
        self._through_middleware = through_middleware

    async def fired_last(self, entry: Entry) -> tuple[int, Fired] | None:
        """The slot of an entry that this daemon fired last, and its answer: it may never have come.

        Returns:
            None: the server remembers none.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        try:
            receipt = await self._link.redis.hget(self._keys.periodic_fired(entry.pjid), self._identity)
        except redis.exceptions.ResponseError as error:
            if not is_wrong_type(str(error)):
                raise
            return None  # the next slot that is fired makes it anew
        found = _RECEIPT.fullmatch(receipt.decode("utf-8", "replace")) if receipt else None
        return (int(found[1]), Fired(Answer.FIRED, found[3], int(found[2] or 0))) if found else None

    def slot(self, entry: Entry, slot: int) -> scripts.Slot:
        return scripts.Slot(entry.pjid, slot, entry.until_executed, entry.memory_ttl(slot))

    async def fire(self, entry: Entry, slot: int) -> Fired:
        """Fire one slot, unless it is another's.

        Raises:
            RedisError, OSError: the server's trouble; nothing was pushed, or it is not known (`fired_last` knows; a
            slot is pushed once, however often it is tried).
            ErrandFailed: the middleware's process did not come to its end; the same holds.
        """
        pending = PendingJob(entry.payload(slot, new_jid(), time.time()), None)
        if self._through_middleware():
            return await self._fire_by_errand(pending, self.slot(entry, slot))
        payload = pending.payload
        key = self._locks.unique(payload, entry.queue)
        unique = JobLocks(pending.jid, (key,), ttl=self._locks.waiting_ttl()) if key is not None else None
        push = Push(pending.jid, entry.queue, dump(payload), None, unique)
        answer = await self._link.call(fire_call(self._keys, self._locks, self.slot(entry, slot), self._identity, push))
        return Fired(Answer(answer[0].decode()), pending.jid, _previous(answer))

    async def _fire_by_errand(self, pending: PendingJob, slot: scripts.Slot) -> Fired:
        token = f"{self._identity}:{pending.jid}"
        reserved = await self._link.call(scripts.reserve_slot(self._keys, slot, token, _RESERVED_FOR))
        if reserved[0] != b"reserved":
            return Fired(Answer(reserved[0].decode()))
        try:
            told = await self._errands.run("cron push", lambda app: self._push_through(app, pending, slot), PUSH_LIMIT)
        finally:
            await self._link.call(scripts.release_lock(self._keys.periodic_reservation(slot.pjid), token))
        if not told:
            raise ErrandFailed("cron push: it ended without an answer")
        answer = json.loads(told)
        return Fired(**{**answer, "answer": Answer(answer["answer"])})

    def _push_through(self, app: App, pending: PendingJob, slot: scripts.Slot) -> bytes:
        """Run the chain around the push. In the errand.

        Returns:
            A `Fired` as JSON.
        """
        found: dict[str, Any] = {"answer": Answer.SWALLOWED.value}

        def push() -> None:
            pending.check()
            call = fire_call(self._keys, self._locks, slot, self._identity, app.push_of(pending))
            client: Any = redis.Redis(connection_pool=self._server.pool())
            try:
                answer = client.register_script(call.script.text)(keys=call.keys, args=call.args)
            except (redis.exceptions.RedisError, OSError) as error:
                trouble = classify(error)
                if trouble is not Trouble.OTHER:
                    refused = trouble is Trouble.REFUSING
                    found.update(answer=Answer.UNSENT.value, reason=_reason(error), refused=refused)
                raise
            found.update(answer=_text(answer[0]), jid=pending.jid, previous=_previous(answer))

        try:
            app.client_chain.run(pending, push)
        except Exception as error:
            # What was pushed is pushed, and what the server would not take is its trouble, whatever came afterwards.
            if found["answer"] not in (Answer.FIRED.value, Answer.UNSENT.value):
                found.update(answer=Answer.FAILED.value, reason=_reason(error))
        return json.dumps(found).encode()


def fire_call(keys: Keys, locks: Locks, slot: scripts.Slot, identity: str, push: Push) -> scripts.Call:
    """The script by which a daemon claims a slot and pushes its job."""
    wait = 0.0 if push.due is None else push.due - time.time()
    ttl = locks.waiting_ttl(wait)
    return scripts.fire_slot(keys, slot, identity, push.jid, push.raw, push.queue, push.due, push.lock, ttl)


def _reason(error: BaseException) -> str:
    return f"{error_class(error)}: {error_message(error)[:_LONGEST_REASON]}"


def _previous(answer: list[bytes | str]) -> int:
    """The slot that was claimed before the one that was fired."""
    told = _text(answer[1]) if len(answer) > 1 else ""
    return int(told) if told.isdecimal() else 0


def _text(reply: bytes | str) -> str:
    return reply.decode() if isinstance(reply, bytes) else reply
