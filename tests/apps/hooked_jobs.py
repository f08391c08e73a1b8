"""Jobs with middleware and death hooks around them. Books go to WITNESS_URL's server, each line with its process.

What the inner middleware does to a job is told by the job's `meta`, {"do": "skip"} say.
HOOK_LIMIT in the environment shortens the time that a hook has in an errand (with preload on: it is the supervisor's).
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from cogworkerd import App, Bury, Discard, JobContext, Retry, current_job
from cogworkerd.supervisor import death_hooks
from cogworkerd.worker import settle

CallNext = Callable[[], None]

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
jobs = redis.Redis.from_url(os.environ["COGWORKERD_REDIS_URL"])
shade: contextvars.ContextVar[str] = contextvars.ContextVar("shade", default="none")
raised: dict[str, BaseException] = {}
"""What each job of this process has raised last, by its id."""

if "HOOK_LIMIT" in os.environ:
    changed: Any = death_hooks
    changed.HOOK_LIMIT = float(os.environ["HOOK_LIMIT"])


def note(key: str, **said: Any) -> None:
    witness.rpush(key, json.dumps({**said, "pid": os.getpid(), "parent": os.getppid()}))


def _note_death(hook: str, job: JobContext, error: BaseException) -> None:
    note(
        "t:deaths",
        hook=hook,
        name=job.name,
        jid=job.jid,
        attempt=job.attempt,
        queue=job.queue,
        error=type(error).__name__,
        told=getattr(error, "error_class", ""),
        text=str(error) if type(error).__str__ in (Exception.__str__, BaseException.__str__) else "",
        same=raised.get(job.jid) is error,
        dead=sum(job.jid.encode() in entry for entry in jobs.zrange("cogworker:dead", 0, -1)),
        current=current_job() is job,
        threads=threading.active_count(),
    )


# ---- middleware -----------------------------------------------------------------------------------------


@app.server_middleware
def outer(job: JobContext, call_next: CallNext) -> None:
    key = f"t:chain:{job.jid}"
    note(key, at="outer", shade=shade.get())
    shade.set("blue")
    try:
        call_next()
    except BaseException as error:
        note(key, at="outer saw", error=type(error).__name__, shade=shade.get())
        raise
    note(key, at="outer out", shade=shade.get())


@app.server_middleware
def inner(job: JobContext, call_next: CallNext) -> None:
    meta = job.payload.get("meta") or {}
    do = meta.get("do")
    if do == "skip":
        return
    try:
        call_next()
    except BaseException as error:
        raised[job.jid] = error
        if do == "swallow":
            return
        if do == "replace":
            raise KeyError("instead") from error
        raise
    if do == "twice":
        call_next()
    if do == "linger" and witness.llen(f"t:chain:{job.jid}") < 4:
        note(f"t:chain:{job.jid}", at="lingering")
        time.sleep(60)
    if do == "exit":
        raise SystemExit(3)


@app.on_child_start
def started() -> None:
    note("t:started")


@app.job(name="look")
def look(leave: str = "") -> str:
    note(f"t:chain:{current_job().jid}", at="job", shade=shade.get())
    shade.set(leave or shade.get())
    return "a result"


@app.job(name="alook")
async def alook(leave: str = "") -> str:
    note(f"t:chain:{current_job().jid}", at="job", shade=shade.get())
    await asyncio.sleep(0.05)
    shade.set(leave or shade.get())
    await asyncio.sleep(0.05)
    note(f"t:chain:{current_job().jid}", at="job ends", shade=shade.get())
    return "a result"


# ---- failures -------------------------------------------------------------------------------------------


@app.job(name="fails", retry=3)
def fails(what: str = "", delay: float = 0) -> None:
    """Fails as it is told to."""
    if what == "retry":
        raise Retry("again", delay=delay)
    if what == "bury":
        raise Bury("no such customer")
    if what == "discard":
        raise Discard("stale")
    raise ValueError("no luck")


@fails.retry_in
def in_an_hour(attempt: int, error: BaseException, job: JobContext) -> float:
    note("t:asked", attempt=attempt, error=type(error).__name__)
    return 3600


@app.job(name="killed")
def killed() -> None:
    witness.incr("t:runs")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(name="waits")
def waits(seconds: float) -> None:
    witness.rpush("t:waits", os.getpid())
    time.sleep(seconds)


# ---- death hooks ----------------------------------------------------------------------------------------


@app.job(name="fatal", retry=False)
def fatal(hook: str = "", seconds: float = 0) -> None:
    """Its first hook does what it is told: "raise", "exit", "kill", "hang", "fork"."""
    if seconds:
        witness.rpush("t:waits", os.getpid())
        time.sleep(seconds)
    raise ValueError("for good")


@fatal.on_death
@killed.on_death
def first(job: JobContext, error: BaseException) -> None:
    _note_death("first", job, error)
    do = job.payload["args"][0] if job.payload["args"] else ""
    if do == "raise":
        raise RuntimeError("a hook that fails")
    if do == "exit":
        raise SystemExit(4)
    if do == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "hang":
        time.sleep(600)
    if do == "fork" and os.fork() == 0:
        return  # the copy must not go on as if it were the child


@fatal.on_death
def second(job: JobContext, error: BaseException) -> None:
    _note_death("second", job, error)


@app.on_death
def of_all(job: JobContext, error: BaseException) -> None:
    _note_death("of all", job, error)


# ---- a child that dies between PERFORMED and its hooks --------------------------------------------------


@app.job(name="doomed", retry=False)
def doomed(when: str) -> None:
    """Its process dies "before" the settlement or "after" it."""
    raise ValueError("doomed")


patched: Any = settle.Settler
_settle = patched.settle


def _settle_or_die(self: Any, done: Any, fetch: bool) -> Any:
    when = json.loads(done.raw)["args"][0] if b'"doomed"' in done.raw else ""
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = _settle(self, done, fetch)
    if when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return found


patched.settle = _settle_or_die

# ---- exceptions that misbehave --------------------------------------------------------------------------

case_jobs: Any = importlib.import_module("case_jobs")
misbehave = app.job(name="misbehave", retry=3)(case_jobs.misbehave.function)
misbehave.retry_in(in_an_hour)
