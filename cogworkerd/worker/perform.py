"""Running one job: find it, call it, and say what became of it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from cogworkerd import context, events
from cogworkerd.errors import UnknownJob
from cogworkerd.locks import Locks
from cogworkerd.outcome import SUCCESS, Kind, Outcome, Settlement
from cogworkerd.payload import UNPARSEABLE, Unparseable, dump, parse, unparseable
from cogworkerd.retry import Verdict, check_verdict, decide, is_last_attempt, raised_verdict
from cogworkerd.text import error_class, error_message, printable
from cogworkerd.worker.death_hooks import Death, death_of
from cogworkerd.worker.reports import Held

if TYPE_CHECKING:
    from cogworkerd.app import App
    from cogworkerd.job import Job
    from cogworkerd.log import Log


class Copy(BaseException):
    """This process is a copy of the child that a job forked; it must leave at once."""


class _Advice:
    """What the job says of its failure, by what it raised or by its `retry_in` hook. The hook is asked when the job
    raises, before any middleware sees the error; of an error that came from elsewhere it is asked at the end. A
    middleware that raises another error does not change that, unless it raises a decision of its own."""

    def __init__(self, job: Job[..., Any] | None, run: context.JobContext, log: Log) -> None:
        self._hook = job.retry_hook if job is not None else None
        self._run = run
        self._log = log
        self._asked = False
        self._verdict: Verdict = None

    def job_raised(self, error: BaseException) -> None:
        decided, verdict = raised_verdict(error)
        if decided:
            self._asked, self._verdict = True, verdict
        elif self._hook is not None and not is_last_attempt(self._run.payload):
            self._asked, self._verdict = True, self._ask(error)

    def verdict_on(self, error: BaseException) -> Callable[[int], Verdict]:
        return lambda _: self._verdict if self._asked else self._ask(error)

    def _ask(self, error: BaseException) -> Verdict:
        if self._hook is None:
            return None
        try:
            # What the hook sets does not leak into the next job.
            asked = contextvars.copy_context().run(self._hook, self._run.attempt, error, self._run)
            return check_verdict(asked)
        except BaseException as problem:
            self._log.emit(
                events.JOB_HOOK_FAILED,
                exc_info=problem,
                error=error_class(problem),
                message=error_message(problem),
            )
            return None


class Performer:
    """Performs jobs of one app in one child.

    Args:
        stopping: its one element is true once the daemon was told to stop.
        show: called with a text for the process title: what runs now.

    Attributes:
        death: of the job performed last, if it goes to dead and there are hooks for that.
    """

    def __init__(self, app: App, locks: Locks, log: Log, stopping: list[bool], show: Callable[[str], None]) -> None:
        self._app = app
        self._locks = locks
        self._log = log
        self._stopping = stopping
        self._show = show
        self._pid = os.getpid()
        self._runner: asyncio.Runner | None = None
        self.death: Death | None = None

    def perform(self, held: Held) -> Settlement:
        """Run the job to its end, whatever it raises.

        Returns:
            The outcome, ready to be reported and settled.

        Raises:
            Copy: this process is not the child any more.
        """
        self.death = None
        try:
            payload = parse(held.raw)
        except Unparseable as problem:
            return self._bury_unparseable(held, str(problem))
        job = context.context_of(payload, held.queue, self._stopping)
        self._show(f"{printable(job.name, 60)} {printable(job.jid, 24)}")
        context.enter(job)
        try:
            self._log.emit(events.JOB_START)
            outcome, error = self._run(job, payload, held)
        finally:
            context.leave()
        if outcome.kind is Kind.DEAD and error is not None and self._app.death_hooks_of(job.name):
            self.death = Death(job, error)
        return self._locks.settlement(held.raw, payload, held.queue, outcome, time.time())

    def close(self) -> None:
        """End the event loop, if there was ever an async job."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def leave_if_copied(self) -> None:
        """Raise Copy if this process is not the child any more."""
        if os.getpid() != self._pid:
            raise Copy

    def _run(
        self, job: context.JobContext, payload: dict[str, Any], held: Held
    ) -> tuple[Outcome, BaseException | None]:
        started = time.monotonic()
        advice = _Advice(self._app.jobs.get(job.name), job, self._log)
        try:
            # A copied context a run: what a job sets there does not leak into the next one.
            contextvars.copy_context().run(self._through_the_chain, job, payload, advice)
        except BaseException as error:
            self.leave_if_copied()
            return self._failed(payload, held, error, advice, time.monotonic() - started), error
        self.leave_if_copied()
        self._log.emit(events.JOB_DONE, seconds=round(time.monotonic() - started, 6))
        return SUCCESS, None

    def _through_the_chain(self, job: context.JobContext, payload: dict[str, Any], advice: _Advice) -> None:
        def innermost() -> None:
            try:
                self._call(job, payload)
            except BaseException as error:
                self.leave_if_copied()
                advice.job_raised(error)
                raise
            self.leave_if_copied()

        self._app.server_chain.run(job, innermost)

    def _call(self, job: context.JobContext, payload: dict[str, Any]) -> None:
        registered = self._app.jobs.get(job.name)
        if registered is None:
            raise UnknownJob(f"{printable(job.name)} is not registered here: no job of this app has that name")
        args, kwargs = payload["args"], payload.get("kwargs") or {}
        if registered.is_async:
            self._run_async(registered, args, kwargs)
        else:
            registered.function(*args, **kwargs)

    def _run_async(self, job: Job[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        if self._runner is None:
            self._runner = asyncio.Runner()
        coroutine = job.function(*args, **kwargs)
        if not inspect.iscoroutine(coroutine):
            return
        # The context that middleware set variables in is entered already, so the loop gets a copy of it; what the job
        # sets there is handed back.
        copied = contextvars.copy_context()
        try:
            self._run_coroutine(coroutine, copied)
        finally:
            _adopt(copied)

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any], copied: contextvars.Context) -> None:
        assert self._runner is not None
        try:
            self._runner.run(coroutine, context=copied)
        except Exception:
            raise
        except BaseException:
            # SystemExit and its like break out of the loop's own machinery: the next async job gets a fresh loop.
            if os.getpid() == self._pid:
                self.close()
            raise

    def _failed(
        self, payload: dict[str, Any], held: Held, error: BaseException, advice: _Advice, seconds: float
    ) -> Outcome:
        outcome = decide(payload, held.raw, held.queue, error, time.time(), advice.verdict_on(error))
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
        filed = dump(entry)
        if self._app.death_hooks_of(UNPARSEABLE):
            self.death = death_of(filed)
        return Settlement(held.raw, entry["jid"], (), Outcome(Kind.DEAD, now, filed))


def _adopt(context: contextvars.Context) -> None:
    """Set in the current context what was set in a copy of it."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


_UNSET = object()
