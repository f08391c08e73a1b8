"""Remote control: orders that come by the channel `cogworker:signal:<identity>`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, NoReturn

import redis.asyncio
import redis.exceptions

from cogworkerd import events
from cogworkerd.log import Log
from cogworkerd.orders import ORDERS
from cogworkerd.store.connection import Server
from cogworkerd.store.keys import Keys
from cogworkerd.text import printable

from .link import SERVER_TROUBLE, Link
from .requests import MOST_BYTES

LISTEN = 10.0
"""Seconds without a message after which the line is tried with a PING."""

_AGAIN = 1.0
_AFTER_REFUSAL = 60.0
_SITE = "remote control"


class Remote:
    """Listens on a connection of its own, since a subscription takes it whole.

    Args:
        obey: called with each order that is one of ORDERS.
        ask: called with each JSON object that came: a request.
    """

    def __init__(
        self,
        server: Server,
        link: Link,
        keys: Keys,
        identity: str,
        obey: Callable[[str], None],
        ask: Callable[[dict[str, Any]], None],
        log: Log,
    ) -> None:
        self._ask = ask
        self._redis: Any = redis.asyncio.Redis(connection_pool=server.async_pool(socket_timeout=LISTEN + 3.0))
        self._link = link
        self._channel = keys.signal(identity)
        self._obey = obey
        self._log = log
        self._refused = False

    async def listen(self) -> NoReturn:
        """Obey for ever. A subscription that is lost is made anew after a second, and its outage is told once."""
        while True:
            pubsub = self._redis.pubsub()
            try:
                await self._take_orders(pubsub)
            except redis.exceptions.ResponseError as error:
                self._tell_refusal(error)
                await asyncio.sleep(_AFTER_REFUSAL)
            except SERVER_TROUBLE as error:
                self._link.failed(_SITE, error)
                await asyncio.sleep(_AGAIN)
            finally:
                with contextlib.suppress(*SERVER_TROUBLE):
                    await pubsub.aclose()

    async def _take_orders(self, pubsub: Any) -> NoReturn:
        await pubsub.subscribe(self._channel)
        while True:
            message = await pubsub.get_message(timeout=LISTEN)
            if message is None:
                await pubsub.ping()
            elif message["type"] == "subscribe":
                self._link.worked(_SITE)
                self._refused = False
            elif message["type"] == "message":
                self._take(message["data"])

    def _take(self, data: bytes) -> None:
        order = data.decode("utf-8", "replace")
        request = _request_in(data)
        if request is not None:
            self._log.emit(events.REMOTE_ORDER, order=printable(str(request.get("order")), 100))
            self._ask(request)
        elif order in ORDERS:
            self._log.emit(events.REMOTE_ORDER, order=order)
            self._obey(order)
        else:
            self._log.emit(events.REMOTE_UNKNOWN, order=printable(order, 100))

    def _tell_refusal(self, error: redis.exceptions.ResponseError) -> None:
        """A user without the right to subscribe is no trouble of the server's: everything else works."""
        if not self._refused:
            self._refused = True
            self._log.emit(events.REMOTE_REFUSED, error=str(error))

    async def close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.aclose()


def _request_in(data: bytes) -> dict[str, Any] | None:
    """The JSON object that a message is, if it is one."""
    if not data.startswith(b"{") or len(data) > MOST_BYTES:
        return None
    try:
        request = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None
