"""Pushing jobs: one or many, now or later, blocking or from asyncio.

The push of a job to its queue is the one write that matters. It is sent once and never repeated by us. Listing the
queue travels behind it in the same packet and can fail without consequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import redis
import redis.asyncio
import redis.exceptions

from cogworkerd.errors import PushFailed, PushUnknown
from cogworkerd.locks import JobLocks
from cogworkerd.store import scripts
from cogworkerd.store.connection import Server
from cogworkerd.store.keys import Keys
from cogworkerd.store.scripts import StatusWrite

log = logging.getLogger("cogworkerd.client")

CHUNK_JOBS = 1000
CHUNK_BYTES = 2**20

Command = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """One job, ready to go.

    Attributes:
        raw: the payload.
        due: epoch seconds, or None for now.
        lock: of a unique job: its unique lock and how long it is held.
        status: what its status hash is to say, if it has one.
    """

    jid: str
    queue: str
    raw: bytes
    due: float | None
    lock: JobLocks | None = None
    status: StatusWrite | None = None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Jobs that travel in one packet: their statuses (so that none is written after the job has begun), the commands
    that push, the listings of their queues. Only the middle ones must work."""

    pushes: list[Push]
    statuses: list[Command]
    pushing: list[Command]
    listings: list[Command]

    @property
    def commands(self) -> list[Command]:
        return self.statuses + self.pushing + self.listings

    @property
    def end_of_pushing(self) -> int:
        """How many answers have come when those that matter have."""
        return len(self.statuses) + len(self.pushing)

    def answers(self, replies: list[Any]) -> list[Any]:
        """Those of the commands that push."""
        return replies[len(self.statuses) : self.end_of_pushing]


def _chunks(pushes: Iterable[Push], keys: Keys) -> Iterator[_Chunk]:
    batch: list[Push] = []
    size = 0
    for push in pushes:
        if batch and (len(batch) >= CHUNK_JOBS or size + len(push.raw) > CHUNK_BYTES):
            yield _chunk(batch, keys)
            batch, size = [], 0
        batch.append(push)
        size += len(push.raw)
    if batch:
        yield _chunk(batch, keys)


def _chunk(pushes: list[Push], keys: Keys) -> _Chunk:
    plain = [push for push in pushes if push.lock is None]
    later = [part for push in plain if push.due is not None for part in (repr(push.due), push.raw)]
    now: dict[str, list[bytes]] = {}
    for push in plain:
        if push.due is None:
            now.setdefault(push.queue, []).append(push.raw)
    commands: list[Command] = [("LPUSH", keys.queue(queue), *raws) for queue, raws in now.items()]
    if later:
        commands.append(("ZADD", keys.schedule, *later))
    unique = [push for push in pushes if push.lock is not None]
    commands.extend(_unique_commands(unique, keys))
    statuses = [command for push in plain if push.status is not None for command in push.status.commands()]
    queues = dict.fromkeys([*now, *(push.queue for push in unique if push.due is None)])
    return _Chunk(pushes, statuses, commands, [("SADD", keys.queues, *queues)] if queues else [])


def _unique_commands(pushes: list[Push], keys: Keys) -> Iterator[Command]:
    """One script a job: its lock and its push are one step. The first command brings the script along, so that no
    server has to be asked whether it knows it, and nothing ever has to be sent again."""
    name, source = "EVAL", scripts.PUSH_UNIQUE.text
    for push in pushes:
        call = scripts.push_unique(keys, push.lock or JobLocks(), push.queue, push.raw, push.due, push.status)
        yield name, source, len(call.keys), *call.keys, *call.args
        name, source = "EVALSHA", scripts.PUSH_UNIQUE.sha


class _Progress:
    """What is known about the jobs of one call."""

    def __init__(self) -> None:
        self.pushed: list[str] = []
        self.duplicates: set[str] = set()

    def unknown(self, chunk: _Chunk, error: BaseException) -> PushUnknown:
        return PushUnknown([push.jid for push in chunk.pushes], str(error) or type(error).__name__, self.pushed)

    def not_sent(self, error: redis.exceptions.RedisError) -> redis.exceptions.RedisError:
        return PushFailed(str(error), self.pushed) if self.pushed else error

    def take(self, chunk: _Chunk, replies: list[Any]) -> None:
        """Judge the replies of one chunk.

        Raises:
            RedisError: a command that pushes was refused; PushFailed when jobs of the same call went through before.
        """
        self._note_duplicates(chunk, replies)
        refused = [reply for reply in chunk.answers(replies) if isinstance(reply, Exception)]
        if refused:
            self._take_partly(chunk, replies)
            raise PushFailed(str(refused[0]), self.pushed) if self.pushed else refused[0]
        self.pushed.extend(push.jid for push in chunk.pushes if push.jid not in self.duplicates)
        for command, reply in zip(chunk.listings, replies[chunk.end_of_pushing :], strict=True):
            if isinstance(reply, Exception):
                log.warning("could not list the queues %s: %s", ", ".join(command[2:]), reply)
        for reply in replies[: len(chunk.statuses)]:
            if isinstance(reply, Exception):
                log.warning("could not write the status of a job: %s", reply)

    def _take_partly(self, chunk: _Chunk, replies: list[Any]) -> None:
        worked = {raw for command, reply in self._pairs(chunk, replies) for raw in command[2:]}
        self.pushed.extend(push.jid for push in chunk.pushes if push.raw in worked and push.jid not in self.duplicates)

    def _note_duplicates(self, chunk: _Chunk, replies: list[Any]) -> None:
        unique = [push for push in chunk.pushes if push.lock is not None]
        answers = chunk.answers(replies)[len(chunk.pushing) - len(unique) :]
        self.duplicates.update(push.jid for push, answer in zip(unique, answers, strict=True) if answer == 0)

    @staticmethod
    def _pairs(chunk: _Chunk, replies: list[Any]) -> list[tuple[Command, Any]]:
        pairs = zip(chunk.pushing, chunk.answers(replies), strict=True)
        return [(command, reply) for command, reply in pairs if not isinstance(reply, Exception)]


def _listing_lost(chunk: _Chunk, replies: list[Any]) -> bool:
    """The answers that matter have come; only the listing's is missing."""
    return len(replies) >= chunk.end_of_pushing


class Client:
    """Pushes to one server. Safe across threads, forks and event loops.

    Args:
        server: where to.
        keys: the names of the keys.
    """

    def __init__(self, server: Server, keys: Keys) -> None:
        self.server = server
        self.keys = keys
        self._lock = threading.Lock()
        self._pool: redis.ConnectionPool | None = None
        self._async_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPool] = weakref.WeakKeyDictionary()

    def push(self, pushes: Iterable[Push]) -> set[str]:
        """Send jobs, in chunks of bounded number and size, each in one packet.

        Returns:
            The ids of those that were not pushed, since their unique locks are held: duplicates.

        Raises:
            PushUnknown: sent, but the answer never came.
            PushFailed: an earlier chunk went through, this one did not.
            redis.exceptions.RedisError: nothing was pushed.
        """
        progress = _Progress()
        pool = self._sync_pool()
        for chunk in _chunks(pushes, self.keys):
            try:
                connection = pool.get_connection()
            except redis.exceptions.RedisError as error:
                raise progress.not_sent(error)
            try:
                replies = self._exchange(connection, chunk, progress)
            finally:
                pool.release(connection)
            progress.take(chunk, replies)
        return progress.duplicates

    @staticmethod
    def _exchange(connection: Any, chunk: _Chunk, progress: _Progress) -> list[Any]:
        replies: list[Any] = []
        try:
            commands = chunk.commands
            connection.send_packed_command(connection.pack_commands(commands))
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except redis.exceptions.ResponseError as refusal:
                    replies.append(refusal)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            connection.disconnect()
            if not _listing_lost(chunk, replies):
                raise progress.unknown(chunk, error)
            replies.extend([error] * (len(chunk.commands) - len(replies)))
        except BaseException:
            connection.disconnect()  # half-read: never to be used for somebody else's reply
            raise
        return replies

    async def apush(self, pushes: Iterable[Push]) -> set[str]:
        """The same from a running event loop."""
        progress = _Progress()
        pool = await self._loop_pool()
        for chunk in _chunks(pushes, self.keys):
            try:
                connection = await pool.get_connection()
            except redis.exceptions.RedisError as error:
                raise progress.not_sent(error)
            try:
                replies = await self._aexchange(connection, chunk, progress)
            finally:
                await pool.release(connection)
            progress.take(chunk, replies)
        return progress.duplicates

    @staticmethod
    async def _aexchange(connection: Any, chunk: _Chunk, progress: _Progress) -> list[Any]:
        replies: list[Any] = []
        try:
            commands = chunk.commands
            await connection.send_packed_command(connection.pack_commands(commands))
            for _ in commands:
                try:
                    replies.append(await connection.read_response())
                except redis.exceptions.ResponseError as refusal:
                    replies.append(refusal)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            await connection.disconnect(nowait=True)
            if not _listing_lost(chunk, replies):
                raise progress.unknown(chunk, error)
            replies.extend([error] * (len(chunk.commands) - len(replies)))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return replies

    def _sync_pool(self) -> redis.ConnectionPool:
        pool = self._pool
        if pool is None:
            with self._lock:
                pool = self._pool = self._pool or self.server.pool()
        return pool

    async def _loop_pool(self) -> redis.asyncio.ConnectionPool:
        loop = asyncio.get_running_loop()
        held = self._async_pools.get(loop)
        if held is None:
            held = self._async_pools[loop] = _LoopPool(self.server.async_pool())
            await held.open()
        return held.pool

    def after_fork(self) -> None:
        """Forget what belongs to the parent: a lock that may be held there, and its event loops' pools.

        The pools are kept alive, not closed: closing an asyncio connection in a child makes the parent deaf to it.
        """
        self._lock = threading.Lock()
        _PARENTS_POOLS.append(self._async_pools)
        self._async_pools = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Close the blocking connections. Those of event loops close with their loops."""
        if self._pool is not None:
            self._pool.disconnect()


_PARENTS_POOLS: list[Any] = []


class _LoopPool:
    """A pool that closes when its event loop does.

    `asyncio.run` and `Runner` finish the asynchronous generators of their loop before they close it, so one that waits
    in its `try` gets to close the pool while the loop still turns.
    """

    def __init__(self, pool: redis.asyncio.ConnectionPool) -> None:
        self.pool = pool
        self._life = self._live()

    async def open(self) -> None:
        await anext(self._life)

    async def _live(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                await self.pool.aclose()
