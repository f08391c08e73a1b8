"""Middleware: plain functions around a push (client) and around a run (server), in the order of their registration.

`def timing(job, call_next)`: `call_next()` goes on with the rest and returns None when that is over; it raises what the
rest raises. A middleware that does not call it stops the rest. The first one registered is the outermost.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cogworkerd import payload as payloads
from cogworkerd.settings import check_queue_name

CallNext = Callable[[], None]
J = TypeVar("J")
_END_OF_TIME = 1e12  # epoch seconds, some 30,000 years from now
Middleware = Callable[[J, CallNext], Any]


class PendingJob:
    """A job on its way to the server: what a client middleware gets. It may change the job, or stop it.

    Attributes:
        payload: the whole job, to be read and changed: `job.payload["meta"] = {...}`.
        due: when it is to run, in epoch seconds; None: now.
    """

    def __init__(self, payload: dict[str, Any], due: float | None) -> None:
        self.payload = payload
        self.due = due

    @property
    def jid(self) -> str:
        return str(self.payload["jid"])

    @property
    def name(self) -> str:
        return str(self.payload["class"])

    @property
    def queue(self) -> str:
        """The queue it goes to; it may be set."""
        return str(self.payload["queue"])

    @queue.setter
    def queue(self, name: str) -> None:
        self.payload["queue"] = name

    def __repr__(self) -> str:
        return f"<PendingJob {self.name} {self.jid}>"

    def check(self) -> None:
        """Check what middleware may have changed.

        Raises:
            TypeError, ValueError: it is not a job any more; the text has the place.
        """
        if not isinstance(self.payload, dict):
            kind = type(self.payload).__name__
            raise TypeError(f"a client middleware left a payload of type {kind}: allowed is a dict")
        payload = payloads.check_json(self.payload, "payload")
        where = f"{payload.get('class')!r:.80}: a client middleware left"
        if not isinstance(payload.get("class"), str) or not payload["class"]:
            raise ValueError(f'{where} "class" = {payload.get("class")!r:.80}: allowed is the name of a job')
        if not isinstance(payload.get("args"), list) or not isinstance(payload.get("kwargs", {}), dict):
            raise ValueError(f'{where} "args" or "kwargs" of another type: allowed are a list and a dict')
        jid = payload.get("jid")
        if not isinstance(jid, str) or not 0 < len(jid) <= payloads.MAX_JID:
            raise ValueError(f'{where} "jid" = {jid!r:.80}: allowed is a text of 1 to {payloads.MAX_JID} characters')
        try:
            check_queue_name(payload.get("queue"))
        except ValueError as error:
            raise ValueError(f'{where} "queue" = {payload.get("queue")!r:.80}: {error}')
        self._check_due(where)
        self._follow_due(payload)
        self.payload = payload

    def _check_due(self, where: str) -> None:
        if self.due is None:
            return
        if isinstance(self.due, bool) or not isinstance(self.due, int | float):
            raise TypeError(f"{where} due = {self.due!r:.80}: allowed are epoch seconds or None")
        if not abs(self.due) < _END_OF_TIME:
            raise ValueError(f"{where} due = {self.due!r:.80}: allowed are epoch seconds or None")

    def _follow_due(self, payload: dict[str, Any]) -> None:
        """The times in the payload follow `due`: a job that is due later has `at`, any other has `enqueued_at`."""
        now = time.time()
        if self.due is not None and self.due > now:
            payload["at"] = self.due
            payload.pop("enqueued_at", None)
            return
        self.due = None
        payload.pop("at", None)
        payload.setdefault("enqueued_at", now)


class Chain(Generic[J]):
    """The middleware of one kind.

    Args:
        kind: how errors name it.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._links: list[Middleware[J]] = []

    def __bool__(self) -> bool:
        return bool(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def add(self, middleware: Middleware[J]) -> None:
        """Put one inside those that are there.

        Raises:
            TypeError: it is no plain function of two arguments.
        """
        name = getattr(middleware, "__qualname__", repr(middleware))
        if not callable(middleware):
            raise TypeError(f"{self._kind} takes a function (job, call_next), not {type(middleware).__name__}")
        if is_async(middleware):
            raise TypeError(
                f"{self._kind} {name} is async: middleware is a plain function, also around async jobs; "
                "call_next() returns when the job is over"
            )
        try:
            inspect.signature(middleware).bind(None, None)
        except TypeError:
            raise TypeError(f"{self._kind} {name} must take two arguments: (job, call_next)")
        except ValueError:
            pass  # a builtin that does not tell its signature
        self._links.append(middleware)

    def run(self, job: J, innermost: CallNext) -> None:
        """Run the chain around `innermost`. Raises what comes out of it."""
        self._enter(0, job, innermost)

    def _enter(self, index: int, job: J, innermost: CallNext) -> None:
        if index == len(self._links):
            innermost()
            return
        called = False

        def call_next() -> None:
            nonlocal called
            if called:
                raise RuntimeError(f"{self._kind} {self._links[index]!r} has called call_next() a second time")
            called = True
            self._enter(index + 1, job, innermost)

        self._links[index](job, call_next)


def is_async(function: Any) -> bool:
    """Whether calling this makes a coroutine or an asynchronous generator, of which nothing would run."""
    call = getattr(function, "__call__", None)  # noqa: B004  its own method, where it is an object
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (function, call) if each
    )
