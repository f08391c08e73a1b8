"""An application that opens a connection while it is imported and goes on using it in its jobs."""

from __future__ import annotations

import os
import time

import redis

from cogworkerd import App

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
witness.set("t:import", os.getpid())


@app.job(name="ident")
def ident(seconds: float) -> None:
    """Books which connection of the witness's server this process has."""
    for _ in range(100):
        witness.echo("x" * 100)
    witness.hset("t:idents", str(os.getpid()), witness.client_id())
    time.sleep(seconds)
