"""The limit on dead jobs (`dead_max`): when there are more, the oldest ones go."""

from __future__ import annotations

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.store.keys import Keys

from .link import Link

TRIM_EVERY = 5.0


class DeadLimit:
    """Keeps the dead set of one server within its limit. Any number of daemons may do so at once.

    Args:
        most: how many dead jobs are kept.
    """

    def __init__(self, link: Link, keys: Keys, most: int, log: Log) -> None:
        self._link = link
        self._keys = keys
        self._most = most
        self._log = log

    async def trim(self) -> None:
        """Let the oldest ones go.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        removed = await self._link.redis.zremrangebyrank(self._keys.dead, 0, -self._most - 1)
        if removed:
            self._log.emit(events.DEAD_TRIMMED, count=removed, most=self._most)
