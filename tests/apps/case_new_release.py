"""A later release of an application: it knows a job that the others do not."""

from __future__ import annotations

import os

import redis

from cogworkerd import App

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.job(name="newjob")
def newjob(n: int) -> None:
    witness.hincrby("t:end", str(n), 1)
