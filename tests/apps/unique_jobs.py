"""Unique jobs. Their bookkeeping goes to WITNESS_URL's server."""

from __future__ import annotations

import os
import time

import redis

from cogworkerd import App

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.job(name="gated", unique="until_executed")
def gated(n: int) -> None:
    """Lasts until t:gate is set."""
    witness.rpush(f"t:pids:{n}", os.getpid())
    while not witness.exists("t:gate"):
        time.sleep(0.05)
    witness.hincrby("t:end", str(n), 1)


@app.job(name="fatal", unique="until_executed", retry=False)
def fatal(n: int) -> None:
    raise ValueError("for good")


@app.job(name="boom", unique="until_executed", retry=3)
def boom(n: int) -> None:
    raise ValueError("boom")


@boom.retry_in
def in_an_hour(attempt: int, error: Exception, job: object) -> float:
    return 3600


@app.job(name="hog", unique="until_executed")
def hog(seconds: float, grain: int) -> None:
    """Holds the interpreter: no other thread of this process gets a turn while a sum is made."""
    witness.incr("t:hog")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(grain))
    witness.incr("t:hog:done")
