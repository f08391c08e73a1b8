"""Reconciling the own in-progress list with the ledger: settle what is left, requeue orphans and strays."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import redis.exceptions

from cogworkerd import events
from cogworkerd.locks import Locks
from cogworkerd.log import Log
from cogworkerd.outcome import Kind, Outcome, Settlement
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

from .burial import burial_of, name_of, queue_for, settlement_of
from .deferred import DeferredReleases
from .ledger import Ledger, Orphan, Unsettled
from .link import SERVER_TROUBLE, Link
from .parked import record_of
from .unread import tell_unread

RECONCILE_EVERY = 5.0
_DEFAULT_QUEUE = "default"

Item = TypeVar("Item")


class Reconciler:
    """Reconciles one identity's list; one pass at a time.

    Args:
        read_pipes: reads every child's pipe empty into the ledger.
        died: called with the entry of a job that we put in dead, for its hooks.

    Attributes:
        look: the number of the newest look.
        unclear: a command of this identity's life was not answered: it may take effect late.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        locks: Locks,
        identity: str,
        ledger: Ledger,
        max_orphanings: int,
        log: Log,
        deferred: DeferredReleases,
        read_pipes: Callable[[], None],
        died: Callable[[bytes], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._locks = locks
        self._identity = identity
        self._ledger = ledger
        self._max_orphanings = max_orphanings
        self._log = log
        self._deferred = deferred
        self._read_pipes = read_pipes
        self._died = died
        self._turn = asyncio.Lock()
        self.look = 0
        self.unclear = False

    async def reconcile(self) -> None:
        """One pass: outcomes, orphans, then a look for strays."""
        async with self._turn:
            try:
                await self._each(list(self._ledger.unsettled), self._settle, "settle")
                await self._each(
                    [orphan for orphan in self._ledger.orphans if not orphan.marked], self._place, "requeue"
                )
                await self._look()
            except SERVER_TROUBLE as error:
                self._note_trouble(error)
                self._link.failed("reconcile", error)
                return
            except asyncio.CancelledError:
                self.unclear = True  # the command under way may take effect all the same
                raise
            self._link.worked("reconcile")

    async def register(self) -> bool:
        """Register this identity and look at its list in one step.

        Returns:
            Whether it was registered already.
        """
        async with self._turn:
            was, self.look, listed = await self._link.call(scripts.register(self._keys, self._identity, time.time()))
            if not was:
                self._ledger.fence(listed)
            return bool(was)

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """No pass is under way meanwhile."""
        async with self._turn:
            yield

    async def park(self) -> None:
        """Hand filings that could not be made over to any live daemon. For a stop: no child is alive."""
        async with self._turn:
            await self._each([item for item in self._ledger.unsettled if item.outcome.files], self._park, "park")

    async def _each(self, items: Sequence[Item], act: Callable[[Item], Awaitable[None]], site: str) -> None:
        """Act on each item. One that the server refuses (its set has another type, the memory is full) never keeps the
        others waiting: an ack needs no memory. A lost line ends the pass."""
        refused = False
        for item in items:
            try:
                await act(item)
            except redis.exceptions.ResponseError as error:
                self._link.failed(site, error)
                refused = True
        if not refused:
            self._link.worked(site)

    def _note_trouble(self, error: BaseException) -> None:
        # An answer is an answer: what the server refused has not happened and will not happen later.
        if not isinstance(error, redis.exceptions.ResponseError):
            self.unclear = True

    # ---- outcomes ---------------------------------------------------------------------------------------

    async def _settle(self, item: Unsettled) -> None:
        if item.vanished:
            await self._file_vanished(item)
            return
        done = settlement_of(item.raw, item.queue, item.outcome, self._locks, time.time())
        answer = await self._answer(self._settle_call(done), done.jid)
        self._ledger.settled(item)
        self._log.emit(events.SETTLED_BY_SUPERVISOR, jid=done.jid, result=answer)
        if answer != "taken" and not item.hooks_begun:
            self._note_death(item.outcome)

    def _note_death(self, outcome: Outcome) -> None:
        if outcome.kind is Kind.DEAD:
            self._died(outcome.payload)

    def _settle_call(self, done: Settlement) -> scripts.Call:
        return scripts.settle(self._keys, self._identity, done, time.time())

    async def _answer(self, call: scripts.Call, jid: str) -> str:
        answer: bytes = await self._deferred.call(call, jid)
        return answer.decode()

    async def _file_vanished(self, item: Unsettled) -> None:
        """The server has lost this entry (a failover to a replica that did not have it); the failure is still ours."""
        target = item.outcome.target(self._keys)
        await self._link.redis.zadd(target, {item.outcome.payload: item.outcome.score})
        self._ledger.settled(item)
        self._log.emit(events.JOB_VANISHED, jid=name_of(item.raw)[0], set=target)
        self._note_death(item.outcome)

    async def _park(self, item: Unsettled) -> None:
        done = settlement_of(item.raw, item.queue, item.outcome, self._locks, time.time())
        record = record_of(item.outcome, self._keys)
        await self._link.call(scripts.park(self._keys, self._identity, done, record, self._unlisted(item), time.time()))
        self._ledger.settled(item)
        self._log.emit(events.PARKED, jid=done.jid, set=item.outcome.target(self._keys))

    def _unlisted(self, item: Unsettled) -> bool:
        """Whether it is known that no list has the job any more."""
        return item.vanished

    # ---- orphans ----------------------------------------------------------------------------------------

    async def _place(self, orphan: Orphan) -> None:
        try:
            answer = await self._requeue(orphan)
        except redis.exceptions.ResponseError:
            raise  # refused, so without effect: it is tried again
        except (*SERVER_TROUBLE, asyncio.CancelledError):
            self._unanswered(orphan)
            raise
        if answer == "void":
            return  # a newer look was taken (its reply was lost): the next pass looks again first
        self._ledger.requeued(orphan)
        await self._tell(orphan, answer)

    def _unanswered(self, orphan: Orphan) -> None:
        self._ledger.requeue_unknown(orphan)

    async def _requeue(self, orphan: Orphan) -> str:
        now = time.time()
        queue = queue_for(orphan.raw, orphan.queue)
        reason = f"the process that ran it died {self._max_orphanings + 1} times; last by {orphan.reason}"
        burial = burial_of(orphan.raw, queue, reason, self._locks, now)
        answer = await self._answer(self._requeue_call(orphan, queue, burial, now), burial.jid)
        if answer == "buried":
            self._note_death(burial.outcome)
        return answer

    def _requeue_call(self, orphan: Orphan, queue: str, burial: scripts.Burial, now: float) -> scripts.Call:
        return scripts.requeue(
            self._keys,
            self._identity,
            orphan.raw,
            queue,
            self.look,
            orphan.blame,
            self._max_orphanings,
            burial,
            now,
        )

    async def _tell(self, orphan: Orphan, answer: str) -> None:
        jid, name = name_of(orphan.raw)
        queue = queue_for(orphan.raw, orphan.queue)
        if orphan.reason:
            self._log.emit(
                events.JOB_ORPHANED,
                jid=jid,
                job=name,
                queue=queue,
                blame=orphan.blame,
                result=answer,
                reason=orphan.reason.partition("\n")[0],
            )
        else:
            self._log.emit(events.JOB_RETURNED, jid=jid, queue=queue)
        if answer == "requeued":
            await tell_unread(self._link, self._keys, self._log, {queue})

    # ---- strays -----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        self._ledger.begin_look()
        try:
            self.look, listed = await self._link.call(scripts.look(self._keys, self._identity))
        except (*SERVER_TROUBLE, asyncio.CancelledError):
            self._ledger.forget_look()
            raise
        self._read_pipes()
        await self._each(self._ledger.judge(listed), self._requeue_stray, "requeue")

    async def _requeue_stray(self, raw: bytes) -> None:
        mark = self._ledger.mark_of(raw)
        orphan = mark or Orphan(_DEFAULT_QUEUE, raw, blame=False)
        try:
            answer = await self._requeue(orphan)
        except (*SERVER_TROUBLE, asyncio.CancelledError):
            self._ledger.stray_unknown(raw)
            raise
        self._ledger.stray_requeued(raw)
        queue = queue_for(raw, orphan.queue)
        self._log.emit(events.JOB_STRAY, jid=name_of(raw)[0], queue=queue, result=answer)
        if answer == "requeued":
            await tell_unread(self._link, self._keys, self._log, {queue})
