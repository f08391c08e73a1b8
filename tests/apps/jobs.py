"""The application of the process tests. Its own bookkeeping goes to the server that WITNESS_URL names."""

from __future__ import annotations

import asyncio
import os
import time

import redis

from cogworkerd import App, current_job

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.job(name="book")
def book(n: int, seconds: float = 0) -> None:
    witness.hincrby("t:start", str(n), 1)
    time.sleep(seconds)
    witness.hincrby("t:end", str(n), 1)


@app.job(name="pidof")
def pidof(key: str, seconds: float) -> None:
    witness.rpush(key, os.getpid())
    time.sleep(seconds)
    witness.rpush(f"{key}:done", os.getpid())


@app.job(name="noop")
def noop() -> None:
    pass


@app.job(name="boom", retry=3)
def boom(message: str = "boom") -> None:
    raise ValueError(message)


@app.job(name="fatal", retry=False)
def fatal() -> None:
    raise ValueError("for good")


@app.job(name="flaky", retry=3)
def flaky(n: int) -> None:
    job = current_job()
    witness.rpush(f"t:flaky:{n}", job.attempt)
    if job.attempt == 1:
        raise ValueError("once")


@flaky.retry_in
def at_once(attempt: int, error: Exception, job: object) -> float:
    return 0


@app.job(name="later")
async def later(n: int, seconds: float = 0.01) -> None:
    await asyncio.sleep(seconds)
    witness.hincrby("t:end", str(n), 1)


@app.job(name="mailed", queue="mail")
def mailed(n: int) -> None:
    witness.hincrby("t:end", str(n), 1)
