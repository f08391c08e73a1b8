"""An application that uses all that a daemon needs rights for besides performing jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import redis

from cogworkerd import App

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.client_middleware
def passing(job: Any, call_next: Callable[[], None]) -> None:
    call_next()


@app.periodic("* * * * * *", unique="until_executed", retry=0)
@app.job
def tick() -> None:
    witness.rpush("t:tick", "x")
    once.enqueue()
    raise ValueError("for the death hook")


@app.job(unique="until_executed")
def once() -> None:
    witness.rpush("t:once", "x")


@app.on_death
def told(job: Any, error: BaseException) -> None:
    witness.rpush("t:death", job.name)
