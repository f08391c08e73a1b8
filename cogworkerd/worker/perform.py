"""Running one job: find it, call it, and say what became of it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cogworkerd import context, events
from cogworkerd.errors import UnknownJob
from cogworkerd.locks import Locks
from cogworkerd.outcome import SUCCESS, Kind, Outcome, Settlement
from cogworkerd.payload import Unparseable, dump, parse, unparseable
from cogworkerd.retry import Verdict, check_verdict, decide
from cogworkerd.text import error_class, error_message, printable
from cogworkerd.worker.reports import Held

if TYPE_CHECKING:
    from cogworkerd.app import App
    from cogworkerd.job import Job
    from cogworkerd.log import Log


class Copy(BaseException):
    """This process is a copy of the child that a job forked; it must leave at once."""


class Performer:
    """Performs jobs of one app in one child.

    Args:
        stopping: its one element is true once the daemon was told to stop.
        show: called with a text for the process title: what runs now.
    """

    def __init__(self, app: App, locks: Locks, log: Log, stopping: list[bool], show: Callable[[str], None]) -> None:
        self._app = app
        self._locks = locks
        self._log = log
        self._stopping = stopping
        self._show = show
        self._pid = os.getpid()
        self._runner: asyncio.Runner | None = None

    def perform(self, held: Held) -> Settlement:
        """Run the job to its end, whatever it raises.

        Returns:
            The outcome, ready to be reported and settled.

        Raises:
            Copy: this process is not the child any more.
        """
        try:
            payload = parse(held.raw)
        except Unparseable as problem:
            return self._bury_unparseable(held, str(problem))
        job = context.context_of(payload, held.queue, self._stopping)
        self._show(f"{printable(job.name, 60)} {printable(job.jid, 24)}")
        context.enter(job)
        try:
            self._log.emit(events.JOB_START)
            outcome = self._run(job, payload, held)
        finally:
            context.leave()
        return self._locks.settlement(held.raw, payload, held.queue, outcome, time.time())

    def close(self) -> None:
        """End the event loop, if there was ever an async job."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _run(self, job: context.JobContext, payload: dict[str, Any], held: Held) -> Outcome:
        started = time.monotonic()
        try:
            self._call(job, payload)
        except BaseException as error:
            if os.getpid() != self._pid:
                raise Copy
            return self._failed(job, payload, held, error, time.monotonic() - started)
        if os.getpid() != self._pid:
            raise Copy
        self._log.emit(events.JOB_DONE, seconds=round(time.monotonic() - started, 6))
        return SUCCESS

    def _call(self, job: context.JobContext, payload: dict[str, Any]) -> None:
        registered = self._app.jobs.get(job.name)
        if registered is None:
            raise UnknownJob(f"{printable(job.name)} is not registered here: no job of this app has that name")
        args, kwargs = payload["args"], payload.get("kwargs") or {}
        if registered.is_async:
            self._run_async(registered, args, kwargs)
        else:
            # A copied context a run: what a job sets there does not leak into the next one.
            contextvars.copy_context().run(registered.function, *args, **kwargs)

    def _run_async(self, job: Job[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        if self._runner is None:
            self._runner = asyncio.Runner()
        coroutine = job.function(*args, **kwargs)
        if not inspect.iscoroutine(coroutine):
            return
        try:
            self._runner.run(coroutine, context=contextvars.copy_context())
        except Exception:
            raise
        except BaseException:
            # SystemExit and its like break out of the loop's own machinery: the next async job gets a fresh loop.
            if os.getpid() == self._pid:
                self.close()
            raise

    def _failed(
        self, job: context.JobContext, payload: dict[str, Any], held: Held, error: BaseException, seconds: float
    ) -> Outcome:
        registered = self._app.jobs.get(job.name)
        hook = registered.retry_hook if registered is not None else None

        def ask_hook(attempt: int) -> Verdict:
            try:
                return check_verdict(hook(attempt, error, job)) if hook is not None else None
            except BaseException as problem:
                self._log.emit(
                    events.JOB_HOOK_FAILED,
                    exc_info=problem,
                    error=error_class(problem),
                    message=error_message(problem),
                )
                return None

        outcome = decide(payload, held.raw, held.queue, error, time.time(), ask_hook)
        self._log_failure(outcome, error, seconds)
        return outcome

    def _log_failure(self, outcome: Outcome, error: BaseException, seconds: float) -> None:
        fields: dict[str, Any] = {
            "seconds": round(seconds, 6),
            "error": error_class(error),
            "message": error_message(error)[:1000],
        }
        if outcome.kind is Kind.RETRY:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(outcome.score))
            self._log.emit(events.JOB_FAILED, exc_info=error, retry_at=stamp, **fields)
        else:
            event = events.JOB_DEAD if outcome.kind is Kind.DEAD else events.JOB_DISCARDED
            self._log.emit(event, exc_info=error, **fields)

    def _bury_unparseable(self, held: Held, reason: str) -> Settlement:
        self._log.emit(events.JOB_UNPARSEABLE, queue=held.queue, reason=reason)
        now = time.time()
        entry = unparseable(held.raw, held.queue, reason, now)
        return Settlement(held.raw, entry["jid"], (), Outcome(Kind.DEAD, now, dump(entry)))
