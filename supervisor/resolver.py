"""An event loop that looks host names up without a thread at rest.

asyncio looks names up in an executor whose threads stay, and a process with threads must not fork. Here each look-up
has a thread that ends with it. Literal addresses and unix sockets need none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import threading
from typing import Any

LOOKUP_TIMEOUT = 5.0
_RES_OPTIONS = "RES_OPTIONS"


class ResolvingLoop(asyncio.SelectorEventLoop):
    """A selector loop of our own; `fork_is_safe` is false while a look-up is under way."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()  # epoll or kqueue: both have a descriptor
        super().__init__(self.selector)
        self._lookups: set[threading.Thread] = set()
        self._last_good: dict[tuple[Any, ...], list[Any]] = {}
        self._set_options = _RES_OPTIONS not in os.environ
        os.environ.setdefault(_RES_OPTIONS, "timeout:1 attempts:1")

    def restore_environment(self) -> None:
        """In a child: jobs look names up as the system says, not as impatiently as the supervisor."""
        if self._set_options:
            os.environ.pop(_RES_OPTIONS, None)

    @property
    def fork_is_safe(self) -> bool:
        self._lookups = {thread for thread in self._lookups if thread.is_alive()}
        return not self._lookups

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """As asyncio's, 5 s at most; after a failure the last good answer serves."""
        question = (host, port, *sorted(options.items()))
        try:
            answer = await asyncio.wait_for(self._look_up(host, port, options), LOOKUP_TIMEOUT)
        except (TimeoutError, OSError) as error:
            if question in self._last_good:
                return self._last_good[question]
            if isinstance(error, TimeoutError):
                raise OSError(f"the name server did not answer for {host!r} within {LOOKUP_TIMEOUT:g} s")
            raise
        self._last_good[question] = answer
        return answer

    async def _look_up(self, host: Any, port: Any, options: dict[str, Any]) -> list[Any]:
        future: asyncio.Future[list[Any]] = self.create_future()

        def deliver(answer: list[Any] | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer or [])

        def ask() -> None:
            answer, error = None, None
            try:
                answer = socket.getaddrinfo(host, port, **options)
            except Exception as problem:
                error = problem
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self.call_soon_threadsafe(deliver, answer, error)

        thread = threading.Thread(target=ask, name="cogworkerd-lookup", daemon=True)
        self._lookups.add(thread)
        thread.start()
        return await future
