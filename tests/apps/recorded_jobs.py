"""Jobs whose runs leave traces: CPU, memory, progress, failures of all kinds. Books go to WITNESS_URL's server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import redis

from cogworkerd import App, Bury, Discard, current_job
from cogworkerd.errors import Requeue

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
BURN = """
import time
while time.process_time() < {seconds}: pass
"""


def wait_for_gate() -> None:
    """Say that the run is under way, and wait until t:gate is set."""
    witness.rpush("t:pids", os.getpid())
    while not witness.exists("t:gate"):
        time.sleep(0.02)


def is_first_run() -> bool:
    return witness.incr(f"t:runs:{current_job().jid}") == 1


@app.job(name="fine")
def fine(n: int = 0) -> None:
    witness.rpush("t:pids", os.getpid())


@app.job(name="fails", retry=5)
def fails(how: str = "") -> None:
    if how == "bury":
        raise Bury("no such customer")
    if how == "discard":
        raise Discard("stale")
    raise ValueError("no luck")


@app.job(name="flaky", retry=3)
def flaky() -> None:
    """Fails in its first run, and stays in its second until t:gate is set."""
    current_job().store(runs=current_job().attempt)
    if current_job().attempt == 1:
        raise ValueError("once")
    wait_for_gate()


@flaky.retry_in
def at_once(attempt: int, error: BaseException, job: object) -> float:
    return 0


@app.job(name="crashes")
def crashes(always: bool = False) -> None:
    """Its process dies in its first run, or in all of them."""
    if always or is_first_run():
        os.kill(os.getpid(), signal.SIGKILL)


@app.job(name="requeues")
def requeues() -> None:
    if is_first_run():
        raise Requeue("not yet")


@app.job(name="burns")
def burns(seconds: float, mebibytes: int) -> None:
    held = bytearray(b"x") * (mebibytes * 2**20)
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    del held
    witness.rpush("t:pids", os.getpid())


@app.job(name="spawns")
def spawns(seconds: float) -> None:
    subprocess.run([sys.executable, "-I", "-c", BURN.format(seconds=seconds)], check=True)


@app.job(name="steps", status=True)
def steps() -> None:
    job = current_job()
    job.progress(25, "a quarter")
    job.store(rows=1000, name="caf\u00e9", found=["a", {"b": None}])
    wait_for_gate()
    job.progress(75)


@app.job(name="says_nothing")
def says_nothing() -> None:
    wait_for_gate()


@app.job(name="odd_name")
def odd_name() -> None:
    """Stores a value under a name that cannot be written."""
    try:
        current_job().store(**{"\ud800": 1})
    except (TypeError, ValueError):
        pass
    wait_for_gate()


@app.job(name="secretive", retry=1, redact=["token", "key", "rest"])
def secretive(how: str, token: str, *rest: str, key: str = "") -> None:
    """Ends as it is told, with all its secrets in what it says of it."""
    wait_for_gate()
    text = f"{token} and {key} and {rest[0]} are no good"
    if how == "retry":
        raise ValueError(text)
    if how == "bury":
        raise Bury(text)
    if how == "cause":
        raise KeyError("wrapped") from ValueError(text)
    if how == "requeue" and is_first_run():
        raise Requeue(text)
    if how == "long":
        raise ValueError("x" * 9985 + token + "y" * 100)  # cut in the middle of the secret
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
