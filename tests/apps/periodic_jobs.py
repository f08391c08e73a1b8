"""The application of the tests of periodic entries, and the book of its runs.

PERIODIC holds its entries, as `entries` writes them; MIDDLEWARE, where it is set, what client middleware does to each
of them. Tests import this module too, for what they ask of the book.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import redis

from cogworkerd import App, current_job
from cogworkerd.middleware import PendingJob
from cogworkerd.unique import periodic_id

LOOK_EVERY = 0.05
"""A run says so often in the book that it is still at work: nobody has to guess how far one came that was killed."""

app = App()
witness = redis.Redis.from_url(os.environ.get("WITNESS_URL", "redis://127.0.0.1"))


@app.job(name="tick", retry=3)
def tick(name: str, seconds: float = 0) -> None:
    job = current_job()
    number = witness.incr("t:number")
    began = time.time()
    run = {
        "name": name,
        "pjid": job.payload["periodic_pjid"],
        "slot": job.payload["periodic_slot"],
        "jid": job.jid,
        "pid": os.getpid(),
        "start": began,
    }
    while True:
        now = time.time()
        over = now >= began + seconds
        witness.hset("t:runs", str(number), json.dumps({**run, "end": now, "over": over}))
        if over:
            return
        time.sleep(min(LOOK_EVERY, began + seconds - now))


# ---- middleware -----------------------------------------------------------------------------------------------------


def once(name: str) -> bool:
    return bool(witness.sadd("t:once", name))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def meddle(job: PendingJob, call_next: Callable[[], None]) -> None:
    name = job.payload["args"][0]
    mode = MIDDLEWARE.get(name, "")
    push = {"name": name, "slot": job.payload["periodic_slot"], "pid": os.getpid(), "parent": os.getppid()}
    witness.rpush("t:pushes", json.dumps(push))
    if mode == "swallow" and witness.exists("t:swallow"):
        return
    if mode == "raise before" and once(name):
        raise ValueError("no luck before")
    if mode == "die before" and once(name):
        die()
    call_next()
    if mode == "raise after" and once(name):
        raise ValueError("no luck after")
    if mode == "die after" and once(name):
        die()


MIDDLEWARE: dict[str, str] = json.loads(os.environ.get("MIDDLEWARE", "{}"))
if MIDDLEWARE:
    app.client_middleware(meddle)

for entry in json.loads(os.environ.get("PERIODIC", "[]")):
    app.periodic(entry["cron"], entry["job"], args=entry["args"], **entry["options"])


# ---- for the tests --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A declaration: the job is called with the name, by which tests know the entry, and with the seconds it takes."""

    name: str
    cron: str = "* * * * * *"
    seconds: float = 0
    job: str = "tick"
    unique: bool = False
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def args(self) -> list[Any]:
        return [self.name, self.seconds]

    @property
    def pjid(self) -> str:
        return periodic_id(self.cron, self.job, self.args)

    def declaration(self) -> dict[str, Any]:
        options = {**dict(self.more), **({"unique": "until_executed"} if self.unique else {})}
        return {"cron": self.cron, "job": self.job, "args": self.args, "options": options}


@dataclass(frozen=True)
class Run:
    """A line of the book. `end`: when it was last seen at work; `over`: it came to its end."""

    name: str
    pjid: str
    slot: int
    jid: str
    pid: int
    start: float
    end: float
    over: bool


def environment(*entries: Entry, middleware: dict[str, str] | None = None) -> dict[str, str]:
    """For a daemon of this app. `middleware`: what is done to the pushes of each entry, by its name."""
    found = {"PERIODIC": json.dumps([entry.declaration() for entry in entries])}
    return {**found, "MIDDLEWARE": json.dumps(middleware)} if middleware else found


def runs(witness: Any, name: str | None = None) -> list[Run]:
    """What the book says, by the times at which they began."""
    found = [Run(**json.loads(line)) for line in witness.hvals("t:runs")]
    return sorted((run for run in found if name in (None, run.name)), key=lambda run: run.start)


def slots(witness: Any, name: str) -> list[int]:
    return [run.slot for run in runs(witness, name)]


def pushes(witness: Any, name: str) -> list[dict[str, Any]]:
    """What client middleware saw of an entry."""
    found = [json.loads(line) for line in witness.lrange("t:pushes", 0, -1)]
    return [push for push in found if push["name"] == name]


def meetings(found: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs that were at work at one time."""
    return [(one, next_one) for one, next_one in pairwise(found) if next_one.start < one.end]


def once_a_minute(ahead: float) -> tuple[str, int]:
    """An expression that fires so many seconds from now, and then not for a minute; and that slot."""
    slot = int(time.time() + ahead)
    return f"* * * * * {slot % 60}", slot
