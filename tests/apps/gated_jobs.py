"""Jobs that end when the test says so. Books go to WITNESS_URL's server."""

from __future__ import annotations

import os
import time

import redis

from cogworkerd import App

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.job(name="book")
def book(n: int, seconds: float = 0) -> None:
    witness.hincrby("t:start", str(n), 1)
    time.sleep(seconds)
    witness.hincrby("t:end", str(n), 1)


@app.job(name="gated")
def gated(n: int) -> None:
    """Lasts until t:gate is set."""
    witness.hincrby("t:start", str(n), 1)
    while not witness.exists("t:gate"):
        time.sleep(0.05)
    witness.hincrby("t:end", str(n), 1)
