"""Recovery: the jobs of daemons that are dead go back to their queues."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from typing import Any

import redis.exceptions

from cogworkerd import events
from cogworkerd.locks import Locks
from cogworkerd.log import Log
from cogworkerd.payload import DEFAULT_QUEUE
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

from .burial import burial_of, listed_job
from .deferred import DeferredReleases
from .host import SignOfLife, machine
from .link import SERVER_TROUBLE, Link
from .unread import tell_unread

PASS_EVERY = 60.0
SECOND_LOOK_AFTER = 10.0
_LEASE = 55
_BATCH = 200


class Recovery:
    """Looks for dead identities: those of this machine every few seconds, all of them once a minute for the fleet.

    Args:
        died: called with the entry of a job that we put in dead, for its hooks.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        locks: Locks,
        identity: str,
        threshold: float,
        max_orphanings: int,
        log: Log,
        deferred: DeferredReleases,
        died: Callable[[bytes], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._locks = locks
        self._identity = identity
        self._host = identity.rsplit(":", 2)[0]
        self._threshold = threshold
        self._max_orphanings = max_orphanings
        self._log = log
        self._deferred = deferred
        self._died = died
        self._machine = machine()
        self._neighbours: set[str] = set()
        self._seen_dead: dict[str, float] = {}
        self._next_pass = 0.0

    async def turn(self, now: float) -> bool:
        """One turn, every few seconds: neighbours; the fleet when a minute is over or a second look is due.

        Args:
            now: monotonic seconds.

        Returns:
            Whether the registry was read and the lists of the dead were looked at, here or by the one that holds the
            lease.

        Raises:
            RedisError, OSError: the server's trouble; nothing is known.
        """
        try:
            return await self._turn(now)
        except SERVER_TROUBLE:
            self.interrupted()
            raise

    async def _turn(self, now: float) -> bool:
        identities = await self._others()
        complete = await self._recover_neighbours(identities)
        second_looks = any(now - seen >= SECOND_LOOK_AFTER for seen in self._seen_dead.values())
        if now >= self._next_pass or second_looks:
            if await self._hold_lease():
                complete = await self._pass(identities, now) and complete
            self._next_pass = now + PASS_EVERY
        await self._bury_repeat_orphans()
        await self._complete_raw_burials()
        return complete and not self._seen_dead

    async def _others(self) -> set[str]:
        """The registered identities but our own. One that is no text is nobody's: whoever put it there can read it."""
        found = set()
        for raw in await self._link.redis.smembers(self._keys.inprogress_identities):
            with contextlib.suppress(UnicodeDecodeError):
                found.add(raw.decode())
        return found - {self._identity}

    def interrupted(self) -> None:
        """The server was away: whoever looked dead may have been as cut off as we were."""
        self._seen_dead.clear()

    async def _hold_lease(self) -> bool:
        key = self._keys.recovery_lease
        if await self._link.redis.set(key, self._identity, nx=True, ex=_LEASE):
            return True
        holder = await self._link.redis.get(key)
        return bool(holder == self._identity.encode())

    async def _recover_neighbours(self, identities: set[str]) -> bool:
        """A predecessor on this machine is dead as soon as each of its processes is seen to be gone.

        Returns:
            Whether each list that was to be looked at could be.
        """
        complete = True
        if self._machine is None:
            return complete
        for identity in identities:
            if identity.rsplit(":", 2)[0] != self._host:
                continue
            if identity not in self._neighbours and await self._is_neighbour(identity):
                self._neighbours.add(identity)
            if identity in self._neighbours and SignOfLife.gone(identity):
                complete = await self._recover(identity, seen_gone=True) and complete
        self._neighbours &= identities
        return complete

    async def _is_neighbour(self, identity: str) -> bool:
        try:
            info = await self._link.redis.hget(self._keys.process(identity), "info")
        except redis.exceptions.ResponseError as error:
            self._link.failed(f"presence of {identity}", error)
            return False
        with contextlib.suppress(ValueError, AttributeError):
            return bool(json.loads(info or b"{}").get("machine") == self._machine)
        return False

    async def _pass(self, identities: set[str], now: float) -> bool:
        """One pass over the fleet.

        Returns:
            Whether each list that was to be looked at could be.
        """
        complete = True
        suspects = await self._without_presence(identities)
        self._seen_dead = {identity: self._seen_dead.get(identity, now) for identity in suspects}
        for identity, seen in list(self._seen_dead.items()):
            if now - seen >= SECOND_LOOK_AFTER:
                complete = await self._recover(identity, seen_gone=False) and complete
        return complete

    async def _without_presence(self, identities: set[str]) -> list[str]:
        """Those without a presence key whose last beat is old by the server's clock."""
        ordered = sorted(identities)
        if not ordered:
            return []
        server_time = await self._server_time()
        async with self._link.redis.pipeline(transaction=False) as pipe:
            for identity in ordered:
                pipe.exists(self._keys.process(identity))
                pipe.hget(self._keys.last_beat, identity)
            replies = await pipe.execute(raise_on_error=False)
        found = []
        for index, identity in enumerate(ordered):
            present, beat = replies[2 * index : 2 * index + 2]
            if present == 0 and _is_old(beat, server_time, self._threshold):
                found.append(identity)
        return found

    async def _server_time(self) -> float:
        """The server's clock; where it does not tell, our own."""
        try:
            return float((await self._link.redis.time())[0])
        except redis.exceptions.ResponseError:
            return time.time()

    async def _recover(self, identity: str, seen_gone: bool) -> bool:
        """Requeue what one dead identity had.

        Returns:
            Whether its list could be looked at.
        """
        try:
            listed = await self._link.redis.lrange(self._keys.inprogress(identity), 0, _BATCH - 1)
            jobs = [listed_job(raw, self._locks) for raw in listed]
            call = scripts.recover(
                self._keys,
                identity,
                jobs,
                self._threshold,
                seen_gone,
                self._max_orphanings,
                time.time(),
            )
            state, requeued, repeated, _ = await self._link.call(call)
        except SERVER_TROUBLE as error:
            # One identity that cannot be read never stops the others; a server that is away stops them all anyway.
            self._link.failed(f"recover {identity}", error)
            return False
        self._link.worked(f"recover {identity}")
        if state != b"alive":
            await self._forget_presence(identity)
            self._seen_dead.pop(identity, None)
        if state in (b"recovered", b"forgotten"):
            self._neighbours.discard(identity)
        if requeued or repeated:
            self._log.emit(events.RECOVERY_DONE, dead=identity, requeued=requeued, repeated=repeated)
        if requeued:
            await tell_unread(self._link, self._keys, self._log, {job.queue for job in jobs})
        return True

    async def _forget_presence(self, identity: str) -> None:
        async with self._link.redis.pipeline(transaction=False) as pipe:
            pipe.srem(self._keys.processes, identity)
            pipe.delete(self._keys.process(identity), self._keys.workers(identity))
            await pipe.execute(raise_on_error=False)

    async def _bury_repeat_orphans(self) -> None:
        now = time.time()
        for raw in await self._link.redis.lrange(self._keys.repeat_orphans, 0, _BATCH - 1):
            burial = self._burial(raw, now)
            await self._bury(scripts.bury_repeat_orphan(self._keys, raw, burial, now), burial)

    async def _complete_raw_burials(self) -> None:
        """Jobs that went to dead as they were, since the list of repeat orphans could not take them."""
        now = time.time()
        for raw in await self._link.redis.srandmember(self._keys.raw_burials, _BATCH):
            burial = self._burial(raw, now)
            await self._bury(scripts.complete_burial(self._keys, raw, burial, now), burial)

    async def _bury(self, call: scripts.Call, burial: scripts.Burial) -> None:
        if await self._deferred.call(call, burial.jid):
            self._log.emit(events.JOB_BURIED, jid=burial.jid, set=self._keys.dead)
            self._died(burial.outcome.payload)

    def _burial(self, raw: bytes, now: float) -> scripts.Burial:
        reason = f"it was running in daemons that died more than {self._max_orphanings} times"
        return burial_of(raw, DEFAULT_QUEUE, reason, self._locks, now)


def _is_old(beat: Any, server_time: float, threshold: float) -> bool:
    """Whether a stamp is too old. One that is no plain number counts as none, as it does in the script."""
    if not isinstance(beat, bytes) or not re.fullmatch(rb"\d{1,12}(\.\d*)?", beat):
        return True
    return server_time - float(beat) > threshold
