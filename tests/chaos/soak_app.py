"""The application of the soak: jobs that keep books on themselves, and hooks that note what their child reports.

`SOAK_RECORD`, `SOAK_MARKS` and `SOAK_DAEMON` say where, and in whose name. The daemon imports this module before it
forks, so the hooks are in every child; the producer imports it without `SOAK_DAEMON` and gets the jobs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cogworkerd import App, current_job
from cogworkerd.middleware import PendingJob
from cogworkerd.outcome import Kind, Outcome, Settlement
from cogworkerd.worker.reports import Buffer, Report, Reporter, Result, job_of
from cogworkerd.worker.settle import Settler
from tests.chaos.soak_record import NOBODY, Marks, Record, identify

DAEMON = os.environ.get("SOAK_DAEMON", "")


class SoakFailure(Exception):
    """What a job of the soak raises on purpose."""


class NotingApp(App):
    """An app that remembers what it pushed last: whoever pushes must know the ids of jobs that were refused, too."""

    sent: Sequence[str] = ()

    def send(self, pending: PendingJob) -> str | None:
        self.sent = [pending.jid]
        return super().send(pending)

    def send_many(self, pending: Sequence[PendingJob]) -> list[str | None]:
        self.sent = [job.jid for job in pending]
        return super().send_many(pending)


app = NotingApp()


# ---- books ----------------------------------------------------------------------------------------------------------


@functools.cache
def _record() -> Record:
    """Opened at the first use, which is in a child."""
    return Record(os.environ["SOAK_RECORD"])


@functools.cache
def _marks() -> Marks:
    return Marks(os.environ["SOAK_MARKS"])


@contextlib.contextmanager
def _booked() -> Iterator[int]:
    """Book a run: its start, with whoever else runs the same job, and its end. Gives the attempt."""
    job = current_job()
    book = functools.partial(_record().note, jid=job.jid, attempt=job.attempt, daemon=DAEMON)
    rival = _marks().claim(job.jid)
    book("start", detail=f"beside {rival}" if rival else "")
    try:
        yield job.attempt
        book("end")
    except BaseException as error:
        book("fail", detail=type(error).__name__)
        raise
    finally:
        _marks().release(job.jid)


def _fail_until(attempt: int, failures: int) -> None:
    if attempt <= failures:
        raise SoakFailure(f"attempt {attempt} of {failures} that fail")


# ---- jobs -----------------------------------------------------------------------------------------------------------


@app.job(name="soak.work", retry=5)
def work(seconds: float = 0.0, failures: int = 0) -> None:
    """Take some time, then fail in the first `failures` attempts."""
    with _booked() as attempt:
        if seconds:
            time.sleep(seconds)
        _fail_until(attempt, failures)


@app.job(name="soak.async", queue="mail", retry=5)
async def async_work(seconds: float = 0.0, failures: int = 0) -> None:
    """The same on the child's event loop."""
    with _booked() as attempt:
        await asyncio.sleep(seconds)
        _fail_until(attempt, failures)


@app.job(name="soak.doomed", queue="low")
def doomed() -> None:
    """End the own process in every run, until the limit of orphanings is reached."""
    with _booked():
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


@work.retry_in
@async_work.retry_in
def soon(attempt: int, error: Exception, job: object) -> float:
    """Retries come within the soak, not within days."""
    return random.uniform(0.7, 1.5)


# ---- what the child reports -----------------------------------------------------------------------------------------


class _Child:
    """What the hooks know of the child that they are in: the job that it has reported as started."""

    job: tuple[str, int] = (NOBODY, 0)


def _note_frames(data: bytes) -> None:
    """Look at frames that were wholly written. A frame never spans two writes of the reporter."""
    buffer = Buffer()
    buffer.feed(data)
    for kind, body in buffer.frames():
        if kind is Report.STARTED:
            _Child.job = identify(job_of(body)[1])
        elif kind is Report.PERFORMED:
            jid, attempt = _Child.job
            if Outcome.decode(body).kind is Kind.REQUEUE:
                continue  # it is to run again
            _record().note("performed", jid, attempt, DAEMON, Outcome.decode(body).kind.name)


def _hook_reports() -> None:
    send = Reporter.send

    def send_and_note(self: Reporter, data: bytes) -> None:
        send(self, data)  # raises where not everything was written
        _note_frames(data)

    Reporter.send = send_and_note  # type: ignore[method-assign]


def _hook_settlements() -> None:
    settle = Settler.settle

    def settle_and_note(self: Settler, done: Settlement, fetch: bool) -> Any:
        result, found = settle(self, done, fetch)
        if result is Result.SETTLED:
            jid, attempt = _Child.job
            _record().note("settled", jid, attempt, DAEMON)
        return result, found

    Settler.settle = settle_and_note  # type: ignore[method-assign]


if DAEMON:
    _hook_reports()
    _hook_settlements()
