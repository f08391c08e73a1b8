"""`current_job()`: what a job's function can ask about the run it is in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Protocol

from cogworkerd.payload import failures_of
from cogworkerd.status import Progress


class Cursor(Protocol):
    """Where a job's cursor is kept."""

    def get(self) -> Any: ...

    def set(self, value: Any) -> None: ...


class JobContext:
    """One run of a job; outside a job a detached one, which is false in a boolean test.

    Attributes:
        jid: the job's id; "" when detached.
        name: the job's name.
        queue: the queue it was fetched from.
        attempt: 1 in the first run; 0 when detached.
        tags: the job's tags.
        payload: the whole payload as it was fetched, read-only.
    """

    __slots__ = ("_cursor", "_progress", "_stopping", "attempt", "jid", "name", "payload", "queue", "tags")

    def __init__(
        self,
        payload: Mapping[str, Any],
        queue: str,
        attempt: int,
        stopping: list[bool],
        progress: Progress | None = None,
        cursor: Cursor | None = None,
    ) -> None:
        self.payload = MappingProxyType(dict(payload))
        self.jid: str = payload.get("jid", "")
        self.name: str = payload.get("class", "")
        self.queue = queue
        self.attempt = attempt
        tags = payload.get("tags")
        self.tags: tuple[str, ...] = tuple(tags) if isinstance(tags, list) else ()
        self._stopping = stopping
        self._progress = progress
        self._cursor = cursor

    def progress(self, pct: float | None = None, message: str | None = None) -> None:
        """Say how far the job is, in its status: no round trip, a few microseconds.

        Args:
            pct: 0 to 100; None leaves it as it was.
            message: a line about it; None leaves it as it was.

        Raises:
            TypeError: pct is no finite number.
        """
        if self._progress is not None:
            self._progress.report(pct, message)

    def store(self, **fields: Any) -> None:
        """Keep values in the job's status: texts as they are, everything else as JSON; 32 KiB in all.

        Raises:
            TypeError: a value is not JSON. ValueError: a name is reserved, or it is too much.
        """
        if self._progress is not None:
            self._progress.store(fields)

    @property
    def cursor(self) -> Any:
        """Where a long loop is. What is set here is there in the next run of this job, after a retry, a deploy or a
        crash, for a week: JSON, at most 64 KiB. To set it is a round trip, so set it once a chunk. None: nothing was
        set.

        Raises:
            redis.exceptions.RedisError: the server is away.
            TypeError, ValueError: what is set is not JSON, or too long.
        """
        return self._cursor.get() if self._cursor is not None else None

    @cursor.setter
    def cursor(self, value: Any) -> None:
        if self._cursor is not None:
            self._cursor.set(value)

    @property
    def stopping(self) -> bool:
        """Whether the daemon was told to stop: a long job may look at this and end early."""
        return self._stopping[0]

    @property
    def enqueued_at(self) -> float | None:
        """When the job was last put on its queue, in epoch seconds."""
        value = self.payload.get("enqueued_at")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value)
        except OverflowError:
            return None  # another program's idea of a time

    @property
    def log(self) -> logging.Logger:
        """A standard logger for the job's own lines; they carry jid, job, queue and attempt."""
        return logging.getLogger(self.name or "cogworkerd.job")

    def __bool__(self) -> bool:
        return bool(self.jid)

    def __repr__(self) -> str:
        return f"<JobContext {self.name} {self.jid}>" if self else "<JobContext detached>"


_NEVER_STOPPING = [False]
_DETACHED = JobContext({}, "", 0, _NEVER_STOPPING)
_current: ContextVar[JobContext] = ContextVar("cogworkerd_job", default=_DETACHED)


def current_job() -> JobContext:
    """The run that the caller is in, or a detached context outside of a job."""
    return _current.get()


def enter(context: JobContext) -> None:
    _current.set(context)


def leave() -> None:
    _current.set(_DETACHED)


def context_of(
    payload: Mapping[str, Any],
    queue: str,
    stopping: list[bool],
    progress: Progress | None = None,
    cursor: Cursor | None = None,
) -> JobContext:
    return JobContext(payload, queue, failures_of(payload) + 1, stopping, progress, cursor)
