"""The key guard: a key of ours that holds another type is moved out of the way, and work goes on."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys

from .link import SERVER_TROUBLE, Link
from .tasks import pause

GUARD_EVERY = 60.0
COPIES = 5
_PAUSE = 1.0
_BATCH = 500
_SUFFIX = "[0-9]" * 13 + ":" + "[0-9a-f]" * 8


class KeyGuard:
    """Checks the type of every key of ours: the fixed ones, and those of each listed queue, identity and entry."""

    def __init__(self, link: Link, keys: Keys, log: Log) -> None:
        self._link = link
        self._keys = keys
        self._log = log

    async def keep(self, soon: asyncio.Event, moved: Callable[[], Awaitable[None]]) -> None:
        """A round a minute, for ever; and one as soon as somebody has met a key of the wrong type.

        Args:
            soon: asks for a round.
            moved: called after a round that moved a key.
        """
        while True:
            await pause(soon, GUARD_EVERY)
            soon.clear()
            await self.round(moved)
            await asyncio.sleep(_PAUSE)

    async def round(self, moved: Callable[[], Awaitable[None]] | None = None) -> None:
        """One round. The server's trouble is logged and never raised."""
        try:
            if await self.check(time.time()) and moved is not None:
                await moved()
        except SERVER_TROUBLE as error:
            self._link.failed("key guard", error)
        else:
            self._link.worked("key guard")

    async def check(self, now: float) -> int:
        """One round. A listing that is itself of the wrong type is moved now, and its members are checked in the next.

        Args:
            now: epoch seconds.

        Returns:
            How many keys were moved.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        moved = await self._check_all(fixed_keys(self._keys, now).items())
        return moved + await self._check_all(await self._listed_keys())

    async def _listed_keys(self) -> list[tuple[str, str]]:
        keys = self._keys
        async with self._link.redis.pipeline(transaction=False) as pipe:
            pipe.smembers(keys.queues)
            pipe.smembers(keys.inprogress_identities)
            pipe.smembers(keys.processes)
            pipe.hkeys(keys.periodic_schedule)
            replies = await pipe.execute(raise_on_error=False)
        queues, owners, processes, entries = (_names(reply) for reply in replies)
        return [
            *((keys.queue(name), "list") for name in queues),
            *((keys.inprogress(name), "list") for name in owners),
            *((keys.look(name), "string") for name in owners),
            *((keys.process(name), "hash") for name in owners | processes),
            *((keys.workers(name), "hash") for name in owners | processes),
            *((keys.periodic_last_slot(name), "string") for name in entries),
            *((keys.periodic_running(name), "string") for name in entries),
            *((keys.periodic_seen(name), "string") for name in entries),
            *((keys.periodic_reservation(name), "string") for name in entries),
        ]

    async def _check_all(self, expected: Iterable[tuple[str, str]]) -> int:
        pairs = sorted(expected)
        moved = 0
        for start in range(0, len(pairs), _BATCH):
            batch = pairs[start : start + _BATCH]
            async with self._link.redis.pipeline(transaction=False) as pipe:
                for key, _ in batch:
                    pipe.type(key)
                found = await pipe.execute(raise_on_error=False)
            for (key, wanted), kind in zip(batch, found, strict=True):
                # A key whose type we may not ask for is none of ours to move.
                if isinstance(kind, bytes) and kind.decode() not in ("none", wanted):
                    moved += await self._quarantine(key, wanted)
        return moved

    async def _quarantine(self, key: str, wanted: str) -> bool:
        suffix = f"{int(time.time() * 1000):013d}:{secrets.token_hex(4)}"
        new_name = self._keys.quarantine(key, suffix)
        found = await self._link.call(scripts.quarantine(key, new_name, wanted))
        if not found:
            return False  # another daemon was first
        self._log.emit(events.KEY_QUARANTINED, key=key, found=found.decode(), wanted=wanted, moved_to=new_name)
        await self._prune(key)
        return True

    async def _prune(self, key: str) -> None:
        """Keep the newest copies of one key. A name tells its time, and the pattern matches no other key's copies."""
        pattern = self._keys.quarantine(glob_escape(key), _SUFFIX)
        copies = [name async for name in self._link.redis.scan_iter(match=pattern, count=1000)]
        surplus = sorted(copies, reverse=True)[COPIES:]
        if surplus:
            await self._link.redis.delete(*surplus)


def fixed_keys(keys: Keys, now: float) -> dict[str, str]:
    """The keys whose names do not depend on other data, and the type of each."""
    return {
        keys.queues: "set",
        keys.live_queues: "zset",
        keys.paused_queues: "set",
        keys.schedule: "zset",
        keys.retry: "zset",
        keys.dead: "zset",
        keys.inprogress_identities: "set",
        keys.last_beat: "hash",
        keys.repeat_orphans: "list",
        keys.unsettled: "list",
        keys.quarantined_records: "list",
        keys.processes: "set",
        keys.processed: "string",
        keys.failed: "string",
        keys.throughput(now): "hash",
        **{keys.history(which): "zset" for which in ("all", "success", "failed")},
        keys.history_of_day(now): "hash",
        keys.cost_of_day(now): "hash",
        keys.periodic_schedule: "hash",
        keys.periodic_disabled: "set",
        keys.periodic_live: "zset",
        keys.recovery_lease: "string",
        keys.raw_burials: "set",
    }


def glob_escape(text: str) -> str:
    """The text as a pattern of the server's that matches itself alone."""
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", text)


def _names(reply: Any) -> set[str]:
    """The members of a listing; none if it could not be read."""
    if isinstance(reply, Exception):
        return set()
    return {name.decode("utf-8", "replace") for name in reply}
