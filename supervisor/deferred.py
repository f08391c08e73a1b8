"""Deferred releases: locks that the server did not let a settlement release, tried again on every beat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import redis.exceptions

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.store import scripts
from cogworkerd.store.outages import is_wrong_type
from cogworkerd.store.scripts import Unreleased

from .link import Link


class DeferredReleases:
    """What is still to be released, each with its owner: a lock that has another owner by then is left alone."""

    def __init__(self, link: Link, log: Log) -> None:
        self._link = link
        self._log = log
        self._waiting: dict[tuple[str, str], Unreleased] = {}

    @property
    def waiting(self) -> list[Unreleased]:
        return list(self._waiting.values())

    def restore(self, locks: Iterable[Unreleased]) -> None:
        """Take over what others had to release."""
        self._waiting.update({(lock.key, lock.owner): lock for lock in locks})

    async def call(self, call: scripts.Call, owner: str) -> Any:
        """Run a script that may release locks, and remember those that it could not.

        Args:
            owner: jid of the job whose locks they are.

        Returns:
            The script's answer.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        answer, unreleased = scripts.split_answer(await self._link.call(call), owner)
        self.add(unreleased)
        return answer

    def add(self, locks: Iterable[Unreleased]) -> None:
        """Remember locks. One that can never be released, since its key holds another type, is dropped."""
        for lock in locks:
            if is_wrong_type(lock.error):
                self._log.emit(events.LOCK_DROPPED, lock=lock.key, jid=lock.owner, error=lock.error)
            elif (lock.key, lock.owner) not in self._waiting:
                self._waiting[lock.key, lock.owner] = lock
                self._log.emit(events.LOCK_DEFERRED, lock=lock.key, jid=lock.owner, error=lock.error)

    async def retry(self) -> None:
        """One round. Whoever is refused again waits for the next one; a lost line ends the round.

        Raises:
            ConnectionError, TimeoutError, OSError: the server is away.
        """
        for name, lock in list(self._waiting.items()):
            try:
                await self._link.call(scripts.release_lock(lock.key, lock.owner))
            except redis.exceptions.ResponseError as error:
                if is_wrong_type(str(error)):
                    del self._waiting[name]
                    self._log.emit(events.LOCK_DROPPED, lock=lock.key, jid=lock.owner, error=str(error))
                continue
            del self._waiting[name]
