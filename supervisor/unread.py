"""Telling that a job went back to a queue that nobody reads."""

from __future__ import annotations

from collections.abc import Collection

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.store.keys import LIVE_WITHIN, Keys

from .link import SERVER_TROUBLE, Link


async def tell_unread(link: Link, keys: Keys, log: Log, queues: Collection[str]) -> None:
    """Log each of these queues that no live daemon has stamped lately, by the server's clock. Best effort."""
    names = sorted(queues)
    if not names:
        return
    try:
        async with link.redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for name in names:
                pipe.zscore(keys.live_queues, name)
            now, *stamps = await pipe.execute()
    except SERVER_TROUBLE:
        return
    for name, stamp in zip(names, stamps, strict=True):
        if stamp is None or now[0] - stamp > LIVE_WITHIN:
            log.emit(events.QUEUE_UNREAD, queue=name)
