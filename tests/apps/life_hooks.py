"""An application with hooks around a child's life. START and STOP say how they behave."""

from __future__ import annotations

import os
import time

import redis

from cogworkerd import App

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.on_child_start
def begin() -> None:
    witness.rpush("t:begin", os.getpid())
    how = os.environ.get("START", "")
    if how == "raises" or (how == "raises once" and witness.incr("t:once") == 1):
        raise RuntimeError("no pool to be had")
    if how == "hangs" and witness.incr("t:once") == 1:
        time.sleep(3600)


@app.on_child_stop
def end() -> None:
    how = os.environ.get("STOP", "")
    if how == "raises":
        raise RuntimeError("the flush failed")
    if how == "hangs":
        time.sleep(3600)
    witness.rpush("t:finish:first", os.getpid())


@app.on_child_stop
def end_too() -> None:
    witness.rpush("t:finish", os.getpid())


@app.job(name="book")
def book(n: int) -> None:
    begun = {int(pid) for pid in witness.lrange("t:begin", 0, -1)}
    witness.hset("t:begun", str(n), int(os.getpid() in begun))
