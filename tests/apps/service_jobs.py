"""An application whose job tells what it could speak to a service manager with."""

from __future__ import annotations

import os

import redis

from cogworkerd import App

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@app.job(name="told")
def told() -> None:
    witness.rpush("t:told", str({name: value for name, value in os.environ.items() if name in _VARIABLES}))


@app.job(name="eats")
def eats() -> None:
    """All the memory that there is."""
    eaten = []
    while True:
        eaten.append(bytearray(2**22))
