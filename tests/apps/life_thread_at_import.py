"""An application whose import starts a thread that stays."""

from __future__ import annotations

import os
import threading
import time

import redis

from cogworkerd import App

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
threading.Thread(target=time.sleep, args=(3600,), name="the-metrics-thread", daemon=True).start()


@app.job(name="threads")
def threads(n: int) -> None:
    """Books the names of the threads that this process has."""
    witness.hset("t:threads", str(n), " ".join(sorted(thread.name for thread in threading.enumerate())))
