"""An application that takes its time to be imported; it says when its import begins."""

from __future__ import annotations

import os
import time

import redis

from cogworkerd import App

witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
witness.rpush("t:importing", os.getpid())
_end = time.monotonic() + float(os.environ["IMPORT_SECONDS"])
while time.monotonic() < _end:
    time.sleep(0.05)

app = App()


@app.job(name="book")
def book(n: int) -> None:
    witness.hincrby("t:end", str(n), 1)
