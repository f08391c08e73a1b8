"""The child's one connection to the server: scripts, and the wait for a job on one queue."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import redis.exceptions

from cogworkerd.store.connection import Server
from cogworkerd.store.scripts import Call

BLOCK_MARGIN = 3.0
"""How many seconds longer than the server may block a read waits for its answer."""


class Channel:
    """A raw connection of redis-py, which costs a third less than its client for each command.

    It connects at the first use and again after an error; nothing is ever repeated.

    Args:
        server: where to.
        name: for CLIENT LIST.
        on_connect: called with the connection's id after each connect; 0 where the server does not tell it.
    """

    def __init__(self, server: Server, name: str, on_connect: Callable[[int], None]) -> None:
        self._pool = server.pool()
        self._connection: Any = self._pool.make_connection()
        self._name = name
        self._on_connect = on_connect
        self._connection.register_connect_callback(self._introduce)

    def leave(self) -> None:
        """Hang up: the next command connects anew, to whoever is the primary then."""
        self._connection.disconnect()

    def call(self, call: Call) -> Any:
        """Run a script.

        Raises:
            redis.exceptions.RedisError: as the server or the line has it. After a ResponseError other than NOSCRIPT,
            and after any lost line, the script may have taken effect.
        """
        command = call.command()
        try:
            return self._exchange(command)
        except redis.exceptions.NoScriptError:
            self._exchange(("SCRIPT LOAD", call.script.text))
            return self._exchange(command)

    def command(self, *command: Any) -> Any:
        """Send one command, on behalf of a job that may be interrupted at any moment: then the line is dropped, or its
        answer would be taken for that of the next command.

        Raises:
            redis.exceptions.RedisError: as the server or the line has it.
        """
        try:
            return self._exchange(command)
        except redis.exceptions.ResponseError:
            raise
        except BaseException:
            self._connection.disconnect()
            raise

    def wait_for_job(
        self, queue_key: str, list_key: str, paused_key: str, queue: str, block: float
    ) -> tuple[Any, bool]:
        """Block until the queue has a job, and move it to the list.

        The question whether the queue is paused travels behind: the server answers it when the wait is over.

        Returns:
            The job or None, and whether the queue is paused.
        """
        connection = self._connected()
        commands = [
            ("BLMOVE", queue_key, list_key, "RIGHT", "LEFT", repr(block)),
            ("SISMEMBER", paused_key, queue),
        ]
        connection.send_packed_command(connection.pack_commands(commands))
        try:
            job = connection.read_response(disable_decoding=True, timeout=block + BLOCK_MARGIN)
        except redis.exceptions.ResponseError as error:
            self._raise_unless_woken(error)
            job = None
        return job, self._read_ignoring_refusal() == 1

    def wait_for_any(self, queue_keys: Sequence[str], paused_key: str, block: float) -> tuple[Any, Any]:
        """Block until one of these queues has a job, and pop it. For basic fetch.

        Returns:
            [key, job] or None, and the names of the paused queues when the wait was over (None if it was refused).
        """
        connection = self._connected()
        commands = [("BRPOP", *queue_keys, math.ceil(block)), ("SMEMBERS", paused_key)]
        connection.send_packed_command(connection.pack_commands(commands))
        try:
            popped = connection.read_response(disable_decoding=True, timeout=math.ceil(block) + BLOCK_MARGIN)
        except redis.exceptions.ResponseError as error:
            self._raise_unless_woken(error)
            popped = None
        return popped, self._read_ignoring_refusal()

    def _raise_unless_woken(self, error: redis.exceptions.ResponseError) -> None:
        """The wait ended without a job, if the supervisor ended it; any other refusal is raised."""
        if not str(error).startswith("UNBLOCKED"):
            self._read_ignoring_refusal()
            raise error

    def drop_if_stale(self) -> None:
        """Notice a line that was closed while a job ran, before something is sent on it."""
        try:
            stale = self._connection.can_read(timeout=0)
        except (redis.exceptions.RedisError, OSError):
            stale = True
        if stale:
            self._connection.disconnect()

    def close(self) -> None:
        self._connection.disconnect()

    def _exchange(self, command: tuple[Any, ...]) -> Any:
        connection = self._connected()
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)

    def _connected(self) -> Any:
        """The connection, connected. One that asks sentinels finds its server here and nowhere else: left to its first
        command it would go to the default address."""
        self._connection.connect()
        return self._connection

    def _read_ignoring_refusal(self) -> Any:
        with contextlib.suppress(redis.exceptions.ResponseError):
            return self._connection.read_response(disable_decoding=True)
        return None

    def _introduce(self, connection: Any) -> None:
        client_id = 0
        with contextlib.suppress(redis.exceptions.ResponseError):
            connection.send_command("CLIENT", "SETNAME", self._name)
            connection.read_response()
        with contextlib.suppress(redis.exceptions.ResponseError, ValueError):
            connection.send_command("CLIENT", "ID")
            client_id = int(connection.read_response())
        self._on_connect(client_id)
