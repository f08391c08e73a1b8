"""Innocent jobs, and one that takes its whole daemon along."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import redis

from cogworkerd import App, current_job

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


def begin() -> None:
    """Say who runs, since when, beside whom."""
    jid = current_job().jid
    witness.rpush("t:runs", f"{jid} {os.getppid()}")
    witness.hset("t:now", jid, os.getppid())
    witness.rpush("t:beside", f"{jid} {os.getppid()} {sorted(_beside(os.getppid()) - {jid})}")


def _beside(supervisor: int) -> set[str]:
    running = witness.hgetall("t:now").items()
    return {jid.decode() for jid, parent in running if int(parent) == supervisor}  # type: ignore[union-attr]


@app.job(name="innocent")
def innocent(seconds: float) -> None:
    begin()
    time.sleep(seconds)
    witness.hincrby("t:end", current_job().jid, 1)
    witness.hdel("t:now", current_job().jid)


@app.job(name="killer")
def killer() -> None:
    """Waits until it may, then kills the supervisor and every child of its."""
    begin()
    while not witness.exists("t:gate"):
        time.sleep(0.01)
    supervisor = os.getppid()
    children = [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    os.kill(supervisor, signal.SIGKILL)
    for pid in children:
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
