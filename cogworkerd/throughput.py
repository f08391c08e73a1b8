"""Throughput: how many runs ended in each of the last 25 hours, counted by the scripts that settle them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cogworkerd.store.reading import counters

if TYPE_CHECKING:
    from cogworkerd.jobsets import Store

MOST_HOURS = 25
"""How long the counts live."""


@dataclass(frozen=True)
class Hour:
    """One hour. `start`: epoch seconds."""

    start: int
    processed: int
    failed: int


def read_throughput(store: Store, hours: int = 24, now: float | None = None) -> list[Hour]:
    """The last hours, the one that we are in last.

    Raises:
        redis.exceptions.RedisError: the server is away.
    """
    current = int(time.time() if now is None else now) // 3600 * 3600
    starts = [current - 3600 * back for back in range(min(hours, MOST_HOURS) - 1, -1, -1)]
    with store.client.pipeline(transaction=False) as pipe:
        for start in starts:
            pipe.hmget(store.keys.throughput(start), "processed", "failed")
        replies = pipe.execute(raise_on_error=False)
    return [Hour(start, *counters(reply, 2)) for start, reply in zip(starts, replies, strict=True)]
