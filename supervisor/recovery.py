"""Recovery: the jobs of daemons that are dead go back to their queues."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.payload import Unparseable, parse, queue_of
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

from .burial import burial_of
from .deferred import DeferredReleases
from .host import SignOfLife, machine
from .link import SERVER_TROUBLE, Link
from .unread import tell_unread

PASS_EVERY = 60.0
SECOND_LOOK_AFTER = 10.0
_LEASE = 55
_BATCH = 200


class Recovery:
    """Looks for dead identities: those of this machine every few seconds, all of them once a minute for the fleet."""

    def __init__(
        self,
        link: Link,
        keys: Keys,
        identity: str,
        threshold: float,
        max_orphanings: int,
        log: Log,
        deferred: DeferredReleases,
    ) -> None:
        self._link = link
        self._keys = keys
        self._identity = identity
        self._host = identity.rsplit(":", 2)[0]
        self._threshold = threshold
        self._max_orphanings = max_orphanings
        self._log = log
        self._deferred = deferred
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
        identities = {raw.decode() for raw in await self._link.redis.smembers(self._keys.inprogress_identities)}
        await self._recover_neighbours(identities - {self._identity})
        second_looks = any(now - seen >= SECOND_LOOK_AFTER for seen in self._seen_dead.values())
        if now >= self._next_pass or second_looks:
            if await self._hold_lease():
                await self._pass(identities - {self._identity}, now)
            self._next_pass = now + PASS_EVERY
        await self._bury_repeat_orphans()
        await self._complete_raw_burials()
        return True

    def interrupted(self) -> None:
        """The server was away: whoever looked dead may have been as cut off as we were."""
        self._seen_dead.clear()

    async def _hold_lease(self) -> bool:
        key = self._keys.recovery_lease
        if await self._link.redis.set(key, self._identity, nx=True, ex=_LEASE):
            return True
        holder = await self._link.redis.get(key)
        return bool(holder == self._identity.encode())

    async def _recover_neighbours(self, identities: set[str]) -> None:
        """A predecessor on this machine is dead as soon as each of its processes is seen to be gone."""
        if self._machine is None:
            return
        for identity in identities:
            if identity.rsplit(":", 2)[0] != self._host:
                continue
            if identity not in self._neighbours and await self._is_neighbour(identity):
                self._neighbours.add(identity)
            if identity in self._neighbours and SignOfLife.gone(identity):
                await self._recover(identity, seen_gone=True)
        self._neighbours &= identities

    async def _is_neighbour(self, identity: str) -> bool:
        info = await self._link.redis.hget(self._keys.process(identity), "info")
        with contextlib.suppress(ValueError, AttributeError):
            return bool(json.loads(info or b"{}").get("machine") == self._machine)
        return False

    async def _pass(self, identities: set[str], now: float) -> None:
        suspects = await self._without_presence(identities)
        self._seen_dead = {identity: self._seen_dead.get(identity, now) for identity in suspects}
        for identity, seen in list(self._seen_dead.items()):
            if now - seen >= SECOND_LOOK_AFTER:
                await self._recover(identity, seen_gone=False)

    async def _without_presence(self, identities: set[str]) -> list[str]:
        """Those without a presence key whose last beat is old by the server's clock."""
        ordered = sorted(identities)
        if not ordered:
            return []
        server_time = (await self._link.redis.time())[0]
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

    async def _recover(self, identity: str, seen_gone: bool) -> None:
        try:
            listed = await self._link.redis.lrange(self._keys.inprogress(identity), 0, _BATCH - 1)
            call = scripts.recover(
                self._keys,
                identity,
                [_job(raw) for raw in listed],
                self._threshold,
                seen_gone,
                self._max_orphanings,
                time.time(),
            )
            state, requeued, repeated, _ = await self._link.call(call)
        except SERVER_TROUBLE as error:
            # One identity that cannot be read never stops the others; a server that is away stops them all anyway.
            self._link.failed(f"recover {identity}", error)
            return
        self._link.worked(f"recover {identity}")
        if state != b"alive":
            await self._forget_presence(identity)
            self._seen_dead.pop(identity, None)
        if state in (b"recovered", b"forgotten"):
            self._neighbours.discard(identity)
        if requeued or repeated:
            self._log.emit(events.RECOVERY_DONE, dead=identity, requeued=requeued, repeated=repeated)
        if requeued:
            await tell_unread(self._link, self._keys, self._log, {_job(raw)[2] for raw in listed})

    async def _forget_presence(self, identity: str) -> None:
        async with self._link.redis.pipeline(transaction=False) as pipe:
            pipe.srem(self._keys.processes, identity)
            pipe.delete(self._keys.process(identity), self._keys.workers(identity))
            await pipe.execute(raise_on_error=False)

    async def _bury_repeat_orphans(self) -> None:
        now = time.time()
        for raw in await self._link.redis.lrange(self._keys.repeat_orphans, 0, _BATCH - 1):
            burial = self._burial(raw, now)
            await self._bury(scripts.bury_repeat_orphan(self._keys, raw, burial, now), burial.jid)

    async def _complete_raw_burials(self) -> None:
        """Jobs that went to dead as they were, since the list of repeat orphans could not take them."""
        now = time.time()
        for raw in await self._link.redis.srandmember(self._keys.raw_burials, _BATCH):
            burial = self._burial(raw, now)
            await self._bury(scripts.complete_burial(self._keys, raw, burial, now), burial.jid)

    async def _bury(self, call: scripts.Call, jid: str) -> None:
        filed, unreleased = scripts.split_answer(await self._link.call(call), jid)
        self._deferred.add(unreleased)
        if filed:
            self._log.emit(events.JOB_BURIED, jid=jid, set=self._keys.dead)

    def _burial(self, raw: bytes, now: float) -> scripts.Burial:
        reason = f"it was running in daemons that died more than {self._max_orphanings} times"
        return burial_of(raw, "default", reason, self._keys, now)


def _job(raw: bytes) -> tuple[bytes, str, str]:
    """A listed job with its id and its queue."""
    try:
        payload = parse(raw)
    except Unparseable:
        return raw, "", "default"
    return raw, payload["jid"], queue_of(payload, "default")


def _is_old(beat: Any, server_time: int, threshold: float) -> bool:
    if not isinstance(beat, bytes):
        return True
    try:
        return server_time - float(beat) > threshold
    except ValueError:
        return True
