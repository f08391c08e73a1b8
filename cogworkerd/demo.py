"""The app of `cogworkerd demo`: reads and analyses files. One in fifty fails once; one waits to be killed."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import redis

from cogworkerd.app import App
from cogworkerd.context import JobContext, current_job

app = App()

FAIL_EVERY = 50
RESULTS = "cogworker:x:demo:results"
VICTIM = "cogworker:x:demo:victim"
RETRIES = "cogworker:x:demo:retries"
_KILLED_WITHIN = 20.0


class Unlucky(Exception):
    """What one job in fifty raises in its first run."""


def _client() -> redis.Redis:
    return app.settings.server().client()


@app.job(name="demo.analyse", retry=3)
def analyse(number: int, path: str) -> None:
    """Count lines and words of one file, and digest it."""
    if number % FAIL_EVERY == FAIL_EVERY - 1 and current_job().attempt == 1:
        raise Unlucky(f"file {number} fails in its first run")
    data = Path(path).read_bytes()
    lines, words, digest = data.count(b"\n"), len(data.split()), hashlib.sha256(data).hexdigest()
    with _client() as client:
        # One field a file: a job that runs twice counts once.
        client.hset(RESULTS, path, f"{lines} {words} {len(data)} {digest}")
        if current_job().attempt > 1:
            client.incr(RETRIES)


@analyse.retry_in
def after_a_second(attempt: int, error: Exception, job: JobContext) -> float:
    return 1.0


@app.job(name="demo.victim")
def victim(number: int, path: str) -> None:
    """Like analyse; in its first run it waits for the demo to kill its process."""
    with _client() as client:
        if client.hsetnx(VICTIM, "pid", os.getpid()):
            deadline = time.monotonic() + _KILLED_WITHIN
            while time.monotonic() < deadline:
                time.sleep(0.05)
        client.hset(VICTIM, "came_back", 1)
    analyse(number, path)
