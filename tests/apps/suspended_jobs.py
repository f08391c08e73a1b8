"""An application whose child suspends itself between a fetch and the report of it, when the witness asks for that."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import redis

from cogworkerd import App
from cogworkerd.worker.reports import Report, Reporter

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
_send = Reporter.send
_KIND = 4  # where the kind stands in a frame, behind its length


def _suspend_before_started(self: Reporter, data: bytes) -> None:
    started = len(data) > _KIND and data[_KIND] == Report.STARTED
    if started and witness.getdel("t:suspend"):
        witness.rpush("t:suspended", os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    _send(self, data)


patched: Any = Reporter
patched.send = _suspend_before_started


@app.job(name="book")
def book(n: int, seconds: float = 0) -> None:
    witness.hincrby("t:start", str(n), 1)
    time.sleep(seconds)
    witness.hincrby("t:end", str(n), 1)
