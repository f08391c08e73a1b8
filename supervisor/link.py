"""The supervisor's connections to the server, and one log line per outage and site."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis.asyncio
import redis.exceptions

from cogworkerd import events
from cogworkerd.log import Log, tell_outage
from cogworkerd.store.connection import Server
from cogworkerd.store.outages import Outage, Trouble, classify, is_authentication, is_wrong_type
from cogworkerd.store.scripts import Call, Runner

SERVER_TROUBLE = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)


class Link:
    """What the supervisor's coroutines share: a client, the scripts, and what is known about outages.

    Attributes:
        note: what the title says about the server: "" when all is well.
        wrong_type: called when a key holds another type than it should.
    """

    def __init__(self, server: Server, log: Log) -> None:
        self.server = server
        self.redis: Any = redis.asyncio.Redis(connection_pool=server.async_pool())
        self._run = Runner(self.redis)
        self._log = log
        self._sites: dict[str, Outage] = {}
        self._refusing = False
        self._leaving = False
        self.wrong_type: Callable[[], None] = lambda: None

    async def call(self, call: Call) -> Any:
        """Run a script."""
        if self._leaving:
            await self.leave()
        return await self._run(call)

    async def leave(self) -> None:
        """Hang up: the next command connects anew, to whoever is the primary then. One that turned read-only under us
        would refuse for ever."""
        self._leaving = False
        await self.redis.connection_pool.disconnect(inuse_connections=False)

    async def ask_info(self) -> dict[str, Any]:
        """The reply of INFO; empty where the server refuses it.

        Raises:
            RedisError, OSError: the server is away, or refuses this user altogether.
        """
        try:
            return dict(await self.redis.info())
        except redis.exceptions.ResponseError as refusal:
            if is_authentication(refusal):
                raise
        await self.redis.ping()
        return {}

    def failed(self, site: str, error: BaseException) -> Trouble:
        """Log an error of the server's once per outage and site; one of ours in full, each time."""
        trouble = classify(error)
        if trouble is Trouble.OTHER:
            self._log.emit(events.REDIS_ERROR, site=site, error=f"{type(error).__name__}: {error}")
            if is_wrong_type(str(error)):
                self.wrong_type()
        else:
            self._refusing = trouble is Trouble.REFUSING
            self._outage(site).failed(error)
            if trouble is Trouble.AWAY and isinstance(error, redis.exceptions.ResponseError):
                self._leaving = True
        return trouble

    def worked(self, site: str) -> None:
        if site in self._sites:
            self._sites[site].worked()

    def worked_all(self, prefix: str) -> None:
        """All sites that begin so are well."""
        for site in [site for site in self._sites if site.startswith(prefix)]:
            self.worked(site)

    @property
    def note(self) -> str:
        if not any(outage.lasting for outage in self._sites.values()):
            return ""
        return "Redis refuses writes" if self._refusing else "waiting for Redis"

    async def close(self) -> None:
        await self.redis.aclose()
        await self.redis.connection_pool.aclose()

    def _outage(self, site: str) -> Outage:
        if site not in self._sites:
            self._sites[site] = Outage(tell_outage(self._log, site))
        return self._sites[site]
