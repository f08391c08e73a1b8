"""Bells: a blocking look, which moves nothing, at each queue that no idle slot waits on.

`BLMOVE q q RIGHT RIGHT` takes the tail and puts it back where it was. When it answers, one idle child is unblocked;
its next look is at all queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio

from cogworkerd.store.connection import Server
from cogworkerd.store.keys import Keys

from .ledger import Ledger
from .link import SERVER_TROUBLE, Link

BLOCK = 5.0
_SETTLE = 0.01
_AFTER_RING = 1.0
_AFTER_TROUBLE = 1.0


class Bells:
    """One task a queue; each rings only while some slot is idle and none waits on its queue.

    Args:
        wake: unblocks one idle child.
        paused: gives the names of the paused queues.
    """

    def __init__(
        self,
        server: Server,
        link: Link,
        keys: Keys,
        ledger: Ledger,
        wake: Callable[[int], Awaitable[None]],
        paused: Callable[[], set[str]],
    ) -> None:
        self._redis: Any = redis.asyncio.Redis(connection_pool=server.async_pool(socket_timeout=BLOCK + 3.0))
        self._link = link
        self._keys = keys
        self._ledger = ledger
        self._wake = wake
        self._paused = paused
        self._changed = asyncio.Event()
        self._open = True
        self._dismissed = False

    def reports_came(self) -> None:
        """Some child's state has changed."""
        self._changed.set()

    def silence(self) -> None:
        """Ring no more: quiet or stopping."""
        self._open = False

    def dismiss(self) -> None:
        """Ring never again: with basic fetch each child waits on all queues itself."""
        self._dismissed = True

    def resume(self) -> None:
        self._open = True
        self._changed.set()

    async def watch(self, queue: str) -> None:
        """Look after one queue, for ever. After trouble it looks also when not needed, to know when it is over."""
        site, trouble = f"bell {queue}", False
        while True:
            if not trouble:
                await self._until_needed(queue)
            try:
                answered = await self._look(queue, _AFTER_TROUBLE if trouble else BLOCK)
            except SERVER_TROUBLE as error:
                self._link.failed(site, error)
                trouble = True
                await self._redis.connection_pool.disconnect(inuse_connections=False)  # a read-only primary is left
                await asyncio.sleep(_AFTER_TROUBLE)
                continue
            self._link.worked(site)
            trouble = False
            if answered and self._needed(queue):
                await self._ring()

    def _needed(self, queue: str) -> bool:
        if self._dismissed:
            return False
        idle = self._ledger.idle_slots()
        return bool(self._open and idle and queue not in self._ledger.waited_on() and queue not in self._paused())

    async def _until_needed(self, queue: str) -> None:
        while True:
            while not self._needed(queue):
                self._changed.clear()
                await self._changed.wait()
            await asyncio.sleep(_SETTLE)  # a child on its way from one queue to the next
            if self._needed(queue):
                return

    async def _look(self, queue: str, block: float) -> bool:
        key = self._keys.queue(queue)
        return await self._redis.execute_command("BLMOVE", key, key, "RIGHT", "RIGHT", block) is not None

    async def _ring(self) -> None:
        """Wake one idle child and wait for its report; best effort."""
        for slot in self._ledger.idle_slots():
            if self._ledger.slots[slot].client_id and self._ledger.slots[slot].waits_on:
                self._changed.clear()
                await self._wake(slot)
                try:
                    await asyncio.wait_for(self._changed.wait(), _AFTER_RING)
                except TimeoutError:
                    pass
                return
        await asyncio.sleep(_SETTLE)

    async def close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.aclose()
