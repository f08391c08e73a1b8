"""The ward: where jobs run whose daemon has died while they ran. One at a time, with nobody beside them.

Which of them killed the daemon nobody knows. So each gets a daemon for itself: a further supervisor with one slot,
which reads only the queues of suspects and leaves when they are empty. If that one dies, it is known who did it, and
only such deaths count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cogworkerd import events
from cogworkerd.embedded import EmbeddedServer
from cogworkerd.errors import CogworkerdError
from cogworkerd.log import Log
from cogworkerd.store.keys import Keys, origin_of, suspects_of

from .link import Link
from .origin import WARD, Origin
from .systemd import VARIABLES

_LOOK_EVERY = 0.02
_AFTER_KILL = 2.0
_BACKOFF_MOST = 60.0


@dataclass(frozen=True)
class WardOrder:
    """What a ward is told by the supervisor that starts it.

    Attributes:
        parent: pid of that supervisor: it lives no longer.
        queues: whose suspects it runs, with their weights.
        private: the embedded server that both use.
    """

    parent: int
    queues: tuple[tuple[str, int], ...]
    private: EmbeddedServer | None = None

    def encode(self) -> str:
        private = vars(self.private) if self.private is not None else None
        return json.dumps({"parent": self.parent, "queues": self.queues, "private": private})

    @classmethod
    def decode(cls, text: str) -> WardOrder:
        """Read what `encode` wrote.

        Raises:
            CogworkerdError: it is something else.
        """
        try:
            found: Mapping[str, Any] = json.loads(text)
            queues = tuple((str(name), int(weight)) for name, weight in found["queues"])
            private = EmbeddedServer(**found["private"]) if found["private"] is not None else None
            return cls(int(found["parent"]), queues, private)
        except (ValueError, TypeError, KeyError):
            raise CogworkerdError(f"{WARD} is for a daemon's own use")


class Ward:
    """At most one for each daemon.

    Args:
        private: the embedded server, if there is one.
        queues: what this daemon reads, with weights.
        paused: gives the names of the paused queues.
        died: called when a ward was killed: what it ran can be taken back.
        pid: of one that an earlier program of this process has started.
    """

    def __init__(
        self,
        origin: Origin,
        private: EmbeddedServer | None,
        link: Link,
        keys: Keys,
        queues: Callable[[], Iterable[tuple[str, int]]],
        paused: Callable[[], set[str]],
        died: Callable[[], None],
        log: Log,
        pid: int | None = None,
    ) -> None:
        self._origin = origin
        self._private = private
        self._link = link
        self._keys = keys
        self._queues = queues
        self._paused = paused
        self._died = died
        self._log = log
        self._shown: tuple[str, ...] = ()
        self._failures = 0
        self._not_before = 0.0
        self.pid = pid

    async def open_if_needed(self) -> None:
        """Start one if there are suspects in queues that we read, and none is at work for us.

        Raises:
            RedisError, OSError: the server's trouble.
        """
        self.look()
        read = [(name, weight) for name, weight in self._queues() if name not in self._paused()]
        if self.pid is not None or not read or time.monotonic() < self._not_before:
            return
        async with self._link.redis.pipeline(transaction=False) as pipe:
            for name, _ in read:
                pipe.llen(self._keys.queue(suspects_of(name)))
            counts = await pipe.execute()
        if not any(counts):
            await self._hide()
        queues = tuple(queue for queue, count in zip(read, counts, strict=True) if count)
        if queues and self.pid is None:
            self._open(queues, sum(counts))

    def _open(self, queues: tuple[tuple[str, int], ...], suspects: int) -> None:
        told = WardOrder(os.getpid(), queues, self._private).encode()
        kept = () if self._private is None else (self._private.life,)
        try:
            process = self._origin.start_beside({WARD: told}, but=VARIABLES, pass_fds=kept)
        except OSError as error:
            self._log.emit(events.WARD_FAILED, error=self._origin.reason(error))
            return
        process.returncode = 0  # from here on the pid counts, and no warning that the process still runs
        self.pid = process.pid
        self._shown = tuple(suspects_of(name) for name, _ in queues)
        self._log.emit(events.WARD_OPENED, ward=self.pid, suspects=suspects)

    async def _hide(self) -> None:
        """Queues of suspects are listed among the others only while they are needed."""
        if self._shown:
            await self._link.redis.srem(self._keys.queues, *self._shown)
            self._shown = ()

    def look(self) -> None:
        """Take in its end."""
        if self.pid is None:
            return
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            ended, status = self.pid, 0
        if not ended:
            return
        code = os.waitstatus_to_exitcode(status)
        self._log.emit(events.WARD_CLOSED, ward=self.pid, status=code)
        self.pid = None
        # One that says so itself could not start: the code on the disk is broken, and will be for a while.
        self._failures = self._failures + 1 if code > 0 else 0
        self._not_before = time.monotonic() + min(2.0**self._failures, _BACKOFF_MOST) if code > 0 else 0.0
        if code < 0:
            self._died()

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def end(self, deadline: float) -> None:
        """Wait until it has left, as it was told to; kill it if it does not.

        Args:
            deadline: monotonic seconds.
        """
        self.look()
        while self.pid is not None and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY)
            self.look()
        self.signal(signal.SIGKILL)
        limit = time.monotonic() + _AFTER_KILL
        while self.pid is not None and time.monotonic() < limit:
            await asyncio.sleep(_LOOK_EVERY)
            self.look()


async def nobody_is_suspected(link: Link, keys: Keys, identity: str, queues: Iterable[str]) -> bool:
    """In a ward: whether there is nothing left to do, now. Suspects of a paused queue wait for another ward.

    Raises:
        RedisError, OSError: the server's trouble.
    """
    names = list(queues)
    async with link.redis.pipeline(transaction=True) as pipe:
        pipe.smembers(keys.paused_queues)
        pipe.llen(keys.inprogress(identity))
        for name in names:
            pipe.llen(keys.queue(name))
        paused, held, *waiting = await pipe.execute()
    open_ = (count for name, count in zip(names, waiting, strict=True) if origin_of(name).encode() not in paused)
    return not held and not any(open_)
