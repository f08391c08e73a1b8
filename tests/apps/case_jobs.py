"""The application of the cases about failures, odd values and output. Its bookkeeping goes to WITNESS_URL's server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from typing import Any, NoReturn

import redis
import structlog

from cogworkerd import App, current_job

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.job(name="book")
def book(n: str, seconds: float = 0, talk: bool = False) -> None:
    witness.hincrby("t:start", str(n), 1)
    if talk:
        print(f"job {n} prints")
        print(f"job {n} complains", file=sys.stderr)
    time.sleep(seconds)
    witness.hincrby("t:end", str(n), 1)


@app.job(name="numbers", retry=3)
def numbers(*args: Any) -> None:
    if current_job().attempt == 1:
        raise ValueError("the first run fails")
    witness.set("t:numbers", repr(args))


@numbers.retry_in
def soon(attempt: int, error: Exception, job: object) -> float:
    return 0


class Stop(BaseException):
    pass


@app.job(name="base", retry=3)
def base(kind: str) -> None:
    """Raises what is no Exception."""
    if kind == "exit 0":
        sys.exit(0)
    if kind == "exit no":
        sys.exit("no")
    raise KeyboardInterrupt if kind == "interrupt" else Stop("x")


@app.job(name="cancelled", retry=3)
async def cancelled() -> None:
    raise asyncio.CancelledError


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __repr__(self) -> str:
        raise SystemExit(1)


class Pair(Exception):
    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


def _in_a_circle() -> NoReturn:
    first, second = ValueError("a"), KeyError("b")
    second.__cause__ = first
    raise first from second


@app.job(name="misbehave", retry=3)
def misbehave(kind: str) -> None:
    """Raises an exception that is hard to handle."""
    if kind == "Silent":
        raise Silent
    if kind == "Mute":
        raise Mute
    if kind == "Pair":
        raise Pair(1, 2)
    if kind == "OSError":
        with socket.socket() as open_socket:
            raise OSError(threading.Lock(), open_socket)
    if kind == "ValueError":
        _in_a_circle()
    if kind == "ExceptionGroup":
        raise ExceptionGroup("many", [ValueError(str(n)) for n in range(1000)])
    if kind == "KeyError":
        raise KeyError("a lone \ud800 surrogate")
    raise type("E", (Exception,), {"__module__": None})()


@app.job(name="large", retry=3)
def large(size: int) -> None:
    raise ValueError("x" * size)


@app.job(name="deep", retry=3)
def deep() -> None:
    deep.function()


@app.job(name="chain", retry=3)
def chain(length: int) -> None:
    error = ValueError("link 0")
    for n in range(1, length):
        link = ValueError(f"link {n}")
        link.__cause__ = error
        error = link
    raise error


@app.job(name="boom", retry=3)
def boom() -> None:
    raise ValueError("boom")


@base.retry_in
@cancelled.retry_in
@misbehave.retry_in
@large.retry_in
@deep.retry_in
@chain.retry_in
@boom.retry_in
def in_an_hour(attempt: int, error: BaseException, job: object) -> float:
    return 3600


class Bad:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@app.job(name="lines")
def lines() -> None:
    """Logs values that are hard to render."""
    values: dict[str, Any] = {
        "a": Bad(),
        "b": b"\xff",
        "c": "<\ud800>",
        "d": float("nan"),
        "e": {1: {2}},
        "f": "é\u2028",
        "event2": lambda: 0,
    }
    structlog.get_logger().info("by structlog", **values)
    shown = " ".join(f"{name}=%s" for name in values)
    logging.getLogger("case").info(f"by logging {shown}", *values.values())
    del values["a"]
    shown = " ".join(f"{name}=%s" for name in values)
    logging.getLogger("case").info(f"by logging without a {shown}", *values.values())
    witness.incr("t:lines")
