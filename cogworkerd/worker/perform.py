"""Running one job: find it, call it, and say what became of it."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import os
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from cogworkerd import context, events
from cogworkerd.errors import Expired, JobCancelled, UnknownJob
from cogworkerd.expiry import EXPIRES_AT, lateness
from cogworkerd.history import backtrace_of_error, entry_of
from cogworkerd.interrupts import Interrupt, error_of
from cogworkerd.locks import Locks
from cogworkerd.outcome import EXPIRED, SUCCESS, Kind, Outcome, Settlement
from cogworkerd.payload import UNPARSEABLE, Unparseable, dump, failures_of, parse, unparseable
from cogworkerd.receipt import Receipt
from cogworkerd.redact import is_masked, masker
from cogworkerd.retry import Verdict, asks_for_requeue, check_verdict, decide, is_last_attempt, raised_verdict
from cogworkerd.run_record import RunRecord
from cogworkerd.status import COMPLETE, FAILED, QUEUED, RETRYING, Progress
from cogworkerd.text import error_class, error_message, printable, traceback_text
from cogworkerd.worker.cursor import Cursor
from cogworkerd.worker.death_hooks import Death, death_of
from cogworkerd.worker.meter import Meter, waited
from cogworkerd.worker.reports import Held
from cogworkerd.worker.slot_page import SlotPage, run_number

if TYPE_CHECKING:
    from cogworkerd.app import App
    from cogworkerd.job import Job
    from cogworkerd.log import Log
    from cogworkerd.settings import Settings


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
        page: memory that the supervisor shares: what a run says of itself, orders for it.
        cursor_of: gives the cursor of the job of an id.
        stopping: its one element is true once the daemon was told to stop.
        show: called with a text for the process title: what runs now.

    Attributes:
        death: of the job performed last, if it goes to dead and there are hooks for that.
        record: of the run that ended last, for the supervisor to write down; None: there was no run.
        cursor: of the run that ended last; None: it had none.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        locks: Locks,
        log: Log,
        page: SlotPage,
        cursor_of: Callable[[str], Cursor] | None,
        stopping: list[bool],
        show: Callable[[str], None],
    ) -> None:
        self._app = app
        self._settings = settings
        self._locks = locks
        self._log = log
        self._page = page
        self._cursor_of = cursor_of
        self._stopping = stopping
        self._show = show
        self._pid = os.getpid()
        self._runner: asyncio.Runner | None = None
        self._meter = Meter()
        self._runs = 0
        self._payload: dict[str, Any] | None = None
        self._interruption: BaseException | None = None
        self._task: asyncio.Task[Any] | None = None
        self._noted = page.notes > 0
        self.death: Death | None = None
        self.record: RunRecord | None = None
        self.cursor: Cursor | None = None

    def perform(self, held: Held) -> Settlement:
        """Run the job to its end, whatever it raises.

        Returns:
            The outcome, ready to be reported and settled.

        Raises:
            Copy: this process is not the child any more.
        """
        self.death, self.record, self.cursor = None, None, None
        self._runs += 1
        self._interruption = None
        try:
            payload = parse(held.raw)
        except Unparseable as problem:
            return self._bury_unparseable(held, str(problem))
        late = lateness(payload, time.time()) if EXPIRES_AT in payload else None
        if late is not None:
            return self._drop_expired(payload, held, late)
        if self._noted:
            self._page.write(b"")  # what stands there is of an earlier run, which may have been of the same job
        self._noted = False
        progress = Progress(payload, held.queue, self._note)
        self.cursor = self._cursor_of(payload["jid"]) if self._cursor_of is not None else None
        job = context.context_of(payload, held.queue, self._stopping, progress, self.cursor)
        self._show(f"{printable(job.name, 60)} {printable(job.jid, 24)}")
        if payload.get("status") is True or failures_of(payload):
            progress.begin()
        context.enter(job)
        try:
            self._log.emit(events.JOB_START)
            started_at = time.time()
            self._meter.start(payload, started_at)
            outcome, error, receipt = self._run(job, payload, held)
        finally:
            context.leave()
        if outcome.kind is Kind.DEAD and error is not None and self._app.death_hooks_of(job.name):
            self.death = Death(job, error)
        self.record = self._recorded(payload, held.queue, progress, started_at, outcome, error, receipt)
        return self._locks.settlement(held.raw, payload, held.queue, outcome, time.time())

    def obey(self) -> None:
        """There may be an order for the run at hand: raise it in the job, or cancel the task of an async one.

        Called by a signal's handler. An order is obeyed once; a run that is over is left alone.
        """
        if self._payload is None or self._interruption is not None:
            return
        code = self._page.order_for(run_number(self._pid, self._runs))
        if not code:
            return
        self._interruption = error_of(Interrupt(code), self._payload, self._settings.timeout)
        if self._task is None:
            raise self._interruption
        task = self._task
        task.get_loop().call_soon_threadsafe(lambda: task.cancel("interrupted"))

    def _note(self, note: bytes) -> None:
        self._noted = True
        self._page.write(note)

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
    ) -> tuple[Outcome, BaseException | None, Receipt]:
        advice = _Advice(self._app.jobs.get(job.name), job, self._log)
        error = self._attempt(job, payload, advice)
        receipt = self._meter.stop()
        self.leave_if_copied()
        if error is None:
            self._log.emit(events.JOB_DONE, **_logged(receipt))
            return SUCCESS, None, receipt
        outcome = decide(payload, held.raw, held.queue, error, time.time(), advice.verdict_on(error))
        self._log_failure(payload, outcome, error, receipt)
        return outcome, error, receipt

    def _attempt(self, job: context.JobContext, payload: dict[str, Any], advice: _Advice) -> BaseException | None:
        """One run. Orders are obeyed from its beginning to its end.

        Returns:
            What it raised; where it was interrupted and did not end well, the interruption.
        """
        error: BaseException | None = None
        try:
            # An order is obeyed once a run, so that the inner handlers can be interrupted, the outer one cannot.
            try:
                self._payload = payload
                self.obey()  # it may have come before the run could take it
                # A copied context a run: what a job sets there does not leak into the next one.
                contextvars.copy_context().run(self._through_the_chain, job, payload, advice)
            except BaseException as raised:
                error = raised
            finally:
                self._payload = None
        except BaseException as raised:
            error = raised
            self._payload = None
        return self._reason_of(error)

    def _reason_of(self, error: BaseException | None) -> BaseException | None:
        """Why a run ended that raised this: where it was interrupted, for that, whatever came of its cleaning up. A job
        whose time was over may still ask to be requeued; one that was cancelled may not."""
        interruption = self._interruption
        if interruption is None or error is None or error is interruption:
            return error
        if isinstance(error, asyncio.CancelledError):
            return interruption.with_traceback(error.__traceback__)
        if asks_for_requeue(error) and not isinstance(interruption, JobCancelled):
            return error
        reason = copy.copy(interruption)  # the error's own context may lead to the original: no circles
        reason.__context__ = error
        return reason.with_traceback(error.__traceback__)

    def _through_the_chain(self, job: context.JobContext, payload: dict[str, Any], advice: _Advice) -> None:
        def innermost() -> None:
            try:
                self._call(job, payload)
            except BaseException as error:
                self.leave_if_copied()
                cancelled = self._interruption if isinstance(error, asyncio.CancelledError) else None
                advice.job_raised(cancelled or error)
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
            self._run_coroutine(self._as_task(coroutine), copied)
        finally:
            self._task = None
            _adopt(copied)

    async def _as_task(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.current_task()
        try:
            if self._interruption is not None:
                raise self._interruption
            await coroutine
        finally:
            self._task = None

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

    def _log_failure(self, payload: dict[str, Any], outcome: Outcome, error: BaseException, receipt: Receipt) -> None:
        if asks_for_requeue(error):
            self._log.emit(events.JOB_REQUEUED, reason=error_message(error, masker(payload))[:1000], **_logged(receipt))
            return
        fields: dict[str, Any] = {
            **_logged(receipt),
            "error": error_class(error),
            "message": error_message(error, masker(payload))[:1000],
        }
        if is_masked(payload):
            fields["exception"] = traceback_text(error, masker(payload))
        else:
            fields["exc_info"] = error
        if outcome.kind is Kind.RETRY:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(outcome.score))
            self._log.emit(events.JOB_FAILED, retry_at=stamp, **fields)
        else:
            event = events.JOB_DEAD if outcome.kind is Kind.DEAD else events.JOB_DISCARDED
            self._log.emit(event, **fields)

    def _recorded(
        self,
        payload: dict[str, Any],
        queue: str,
        progress: Progress,
        started_at: float,
        outcome: Outcome,
        error: BaseException | None,
        receipt: Receipt,
    ) -> RunRecord | None:
        """What the supervisor is to write down. Best effort: it never fails a job."""
        try:
            finished_at = time.time()
            name = payload["class"] if payload["class"] in self._app.jobs else ""
            entry, backtrace, status = b"", b"", b""
            requeued = outcome.kind is Kind.REQUEUE
            if self._settings.history and not requeued:
                entry = entry_of(
                    payload, queue, receipt.as_fields(), started_at, finished_at, self._settings.history_args, error
                )
                if error is not None:
                    backtrace = backtrace_of_error(error, payload, entry)
            if requeued:
                status = progress.fields(QUEUED) if progress.wanted else b""
            elif error is not None:
                state = RETRYING if outcome.kind is Kind.RETRY else FAILED
                shown = {"error_class": error_class(error), "error_message": error_message(error, masker(payload))}
                status = progress.fields(state, shown)
            elif progress.wanted:
                status = progress.fields(COMPLETE)
            return RunRecord(outcome.kind, finished_at, name, receipt, entry, backtrace, status)
        except Exception as problem:
            self._log.emit(events.RECORD_FAILED, exc_info=problem, jid=payload["jid"])
            return None

    def _drop_expired(self, payload: dict[str, Any], held: Held, late: float) -> Settlement:
        now = time.time()
        context.enter(context.context_of(payload, held.queue, self._stopping))
        try:
            self._log.emit(events.JOB_EXPIRED, late=round(late, 3))
        finally:
            context.leave()
        receipt = Receipt(0.0, 0.0, 0.0, 0, 0, 0, 0, waited(payload, now))
        progress = Progress(payload, held.queue, None)
        expired = Expired(f"not started in time: {late:.1f} s late")
        self.record = self._recorded(payload, held.queue, progress, now, EXPIRED, expired, receipt)
        return self._locks.settlement(held.raw, payload, held.queue, EXPIRED, now)

    def _bury_unparseable(self, held: Held, reason: str) -> Settlement:
        self._log.emit(events.JOB_UNPARSEABLE, queue=held.queue, reason=reason)
        now = time.time()
        entry = unparseable(held.raw, held.queue, reason, now)
        filed = dump(entry)
        if self._app.death_hooks_of(UNPARSEABLE):
            self.death = death_of(filed)
        return Settlement(held.raw, entry["jid"], (), Outcome(Kind.DEAD, now, filed))


def _logged(receipt: Receipt) -> dict[str, Any]:
    """A receipt as the log has it."""
    found = receipt.as_fields()
    found["seconds"] = found.pop("wall")
    return found


def _adopt(context: contextvars.Context) -> None:
    """Set in the current context what was set in a copy of it."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


_UNSET = object()
