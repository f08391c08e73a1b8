"""Reconciling the own in-progress list with the ledger: settle what is left, requeue orphans and strays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

from .burial import burial_of, name_of, queue_for, settlement_of
from .ledger import Ledger, Orphan, Unsettled
from .link import SERVER_TROUBLE, Link

RECONCILE_EVERY = 5.0
_DEFAULT_QUEUE = "default"


class Reconciler:
    """Reconciles one identity's list; one pass at a time.

    Args:
        read_pipes: reads every child's pipe empty into the ledger.

    Attributes:
        look: the number of the newest look.
        unclear: a command of this identity's life was not answered: it may take effect late.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        identity: str,
        ledger: Ledger,
        max_orphanings: int,
        log: Log,
        read_pipes: Callable[[], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._identity = identity
        self._ledger = ledger
        self._max_orphanings = max_orphanings
        self._log = log
        self._read_pipes = read_pipes
        self._turn = asyncio.Lock()
        self.look = 0
        self.unclear = False

    async def reconcile(self) -> None:
        """One pass: outcomes, orphans, then a look for strays."""
        async with self._turn:
            try:
                await self.settle_all()
                await self._requeue_orphans()
                await self._look()
            except SERVER_TROUBLE as error:
                self.unclear = True
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

    async def settle_all(self) -> None:
        for item in list(self._ledger.unsettled):
            if item.vanished:
                await self._file_vanished(item)
            else:
                await self._settle(item)

    async def _settle(self, item: Unsettled) -> None:
        done = settlement_of(item.raw, item.queue, item.outcome, self._keys)
        answer = await self._link.call(scripts.settle(self._keys, self._identity, done, time.time()))
        self._ledger.settled(item)
        self._log.emit(events.SETTLED_BY_SUPERVISOR, jid=done.jid, result=answer.decode())

    async def _file_vanished(self, item: Unsettled) -> None:
        """The server has lost this entry (a failover to a replica that did not have it); the failure is still ours."""
        target = item.outcome.target(self._keys)
        await self._link.redis.zadd(target, {item.outcome.payload: item.outcome.score})
        self._ledger.settled(item)
        self._log.emit(events.JOB_VANISHED, jid=name_of(item.raw)[0], set=target)

    async def _requeue_orphans(self) -> None:
        for orphan in [orphan for orphan in self._ledger.orphans if not orphan.marked]:
            try:
                answer = await self._requeue(orphan)
            except (*SERVER_TROUBLE, asyncio.CancelledError):
                self._ledger.requeue_unknown(orphan)
                raise
            if answer == "void":
                continue  # a newer look was taken (its reply was lost): the next pass looks again first
            self._ledger.requeued(orphan)
            self._tell(orphan, answer)

    async def _requeue(self, orphan: Orphan) -> str:
        now = time.time()
        queue = queue_for(orphan.raw, orphan.queue)
        reason = f"the process that ran it died {self._max_orphanings + 1} times; last by {orphan.reason}"
        call = scripts.requeue(
            self._keys,
            self._identity,
            orphan.raw,
            queue,
            self.look,
            orphan.blame,
            self._max_orphanings,
            burial_of(orphan.raw, queue, reason, self._keys, now),
            now,
        )
        answer: bytes = await self._link.call(call)
        return answer.decode()

    def _tell(self, orphan: Orphan, answer: str) -> None:
        jid, name = name_of(orphan.raw)
        if orphan.reason:
            self._log.emit(
                events.JOB_ORPHANED,
                jid=jid,
                job=name,
                queue=orphan.queue,
                blame=orphan.blame,
                result=answer,
                reason=orphan.reason,
            )
        else:
            self._log.emit(events.JOB_RETURNED, jid=jid, queue=orphan.queue)

    async def _look(self) -> None:
        self._ledger.begin_look()
        try:
            self.look, listed = await self._link.call(scripts.look(self._keys, self._identity))
        except (*SERVER_TROUBLE, asyncio.CancelledError):
            self._ledger.forget_look()
            raise
        self._read_pipes()
        for raw in self._ledger.judge(listed):
            await self._requeue_stray(raw)

    async def _requeue_stray(self, raw: bytes) -> None:
        mark = self._ledger.mark_of(raw)
        orphan = mark or Orphan(_DEFAULT_QUEUE, raw, blame=False)
        try:
            answer = await self._requeue(orphan)
        except (*SERVER_TROUBLE, asyncio.CancelledError):
            self._ledger.stray_unknown(raw)
            raise
        self._ledger.stray_requeued(raw)
        self._log.emit(events.JOB_STRAY, jid=name_of(raw)[0], queue=queue_for(raw, orphan.queue), result=answer)
