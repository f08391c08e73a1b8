"""The application that the daemons of the runs perform. Its jobs tell the record when they start and how they end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cogworkerd import App, current_job
from tests.chaos import hooks
from tests.chaos.chaos_env import CRON, IN_SLOT, MIDDLEWARE, SLOT_SECONDS
from tests.chaos.record import Happening

SHORT = 0.1
LONG = 60.0
RETRY_IN = 0.1
_GONE_WITHIN = 0.3

app = App()
installed = hooks.install()
record = installed.record


def _tell(what: str, detail: str = "") -> None:
    job = current_job()
    record.add(Happening(what, job.jid, job.attempt, os.getpid(), detail))


def _start() -> int:
    """Tell that this run starts, and whether another one of the same job is still alive.

    Returns:
        How many runs of this job have started before.
    """
    job = current_job()
    before = [happening for happening in record.all() if happening.jid == job.jid]
    _tell("start")
    over = {happening.pid for happening in before if happening.what in ("end", "fail")}
    for happening in before:
        if happening.what == "start" and happening.pid not in over and _lives_on(happening.pid):
            _tell("overlap", f"process {happening.pid} is still running it")
    return sum(happening.what == "start" for happening in before)


def _lives_on(pid: int) -> bool:
    """Whether a process is there, and not just on its way out."""
    limit = time.monotonic() + _GONE_WITHIN
    while _runs(pid):
        if time.monotonic() > limit:
            return True
        time.sleep(0.005)
    return False


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@app.job(name="short")
def short(seconds: float) -> None:
    _start()
    time.sleep(seconds)
    _tell("end")


@app.job(name=IN_SLOT)
def in_slot(seconds: float) -> None:
    """A periodic one: tells its slot, too."""
    _start()
    _tell("slot", str(current_job().payload["periodic_slot"]))
    time.sleep(seconds)
    _tell("end")


if CRON in os.environ:
    app.periodic(os.environ[CRON], in_slot, args=[SLOT_SECONDS], unique="until_executed")

if MIDDLEWARE in os.environ:

    @app.client_middleware
    def passing(job: Any, call_next: Callable[[], None]) -> None:
        call_next()


@app.job(name="long_once")
def long_once() -> None:
    """Too long for anybody to wait for; short when it is run again."""
    time.sleep(LONG if _start() == 0 else SHORT)
    _tell("end")


@app.job(name="stubborn_once")
def stubborn_once() -> None:
    """The same, and it cannot be told to end: only a kill ends it."""
    if _start() == 0:
        _ignore_all_for(LONG)
    _tell("end")


@app.job(name="overdue", retry=False)
def overdue() -> None:
    """It goes on beyond its timeout and cannot be told to end."""
    _start()
    _ignore_all_for(LONG)


def _ignore_all_for(seconds: float) -> None:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            time.sleep(SHORT)
        except BaseException:
            continue


@app.job(name="doomed")
def doomed() -> None:
    """Its process dies when it is performed and not settled."""
    _start()
    installed.doom()
    _tell("end")


@app.job(name="flaky", retry=3)
def flaky(doom: bool = False) -> None:
    """Fails at first; with `doom` its process dies when that is reported and not settled."""
    _start()
    time.sleep(SHORT)
    if current_job().attempt == 1:
        _tell("fail")
        if doom:
            installed.doom()
        raise ValueError("the first attempt")
    _tell("end")


@flaky.retry_in
def soon(attempt: int, error: Exception, job: Any) -> float:
    return RETRY_IN


@app.job(name="fatal", retry=False)
def fatal() -> None:
    _start()
    time.sleep(SHORT)
    _tell("fail")
    raise ValueError("for good")
