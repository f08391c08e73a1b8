"""Jobs that fork, die, start programs and look at their own process. Books go to WITNESS_URL's server."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
import uuid

import redis

from cogworkerd import App

random.seed(1)
random.random()

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.job(name="book")
def book(n: int, seconds: float = 0) -> None:
    witness.hincrby("t:start", str(n), 1)
    time.sleep(seconds)
    witness.hincrby("t:end", str(n), 1)


@app.job(name="mark")
def mark(n: int, seconds: float = 0) -> None:
    """Books each run with the process that it runs in."""
    witness.rpush(f"t:mark:{n}", f"start {os.getpid()}")
    if seconds:
        time.sleep(seconds)
    witness.rpush(f"t:mark:{n}", f"end {os.getpid()}")


@app.job(name="mark_doomed")
def mark_doomed(n: int, delay: float) -> None:
    """As `mark`, but at the end of its first run the process has `delay` seconds left to live."""
    witness.rpush(f"t:mark:{n}", f"start {os.getpid()}")
    child = os.getpid()
    if witness.sadd("t:doomed", n):
        witness.rpush("t:killed", child)
        witness.rpush(f"t:mark:{n}", f"end {child}")
        if os.fork() == 0:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
            os._exit(0)
    else:
        witness.rpush(f"t:mark:{n}", f"end {child}")


@app.job(name="noop")
def noop() -> None:
    pass


@app.job(name="hog")
def hog(key: str, seconds: float) -> None:
    """Stays in C code that holds the interpreter's lock."""
    witness.rpush(key, os.getpid())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(5 * 10**7))
    witness.rpush(f"{key}:done", os.getpid())


@app.job(name="die")
def die(how: str, key: str) -> None:
    """Ends its own process in the middle of the job."""
    witness.rpush(key, os.getpid())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if how == "exit":
        os._exit(0)
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(60)


@app.job(name="split", retry=0)
def split() -> None:
    """Both processes return."""
    os.fork()


@app.job(name="pool")
def pool(key: str) -> None:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        pids = list(workers.map(_pid, [0, 1]))
        witness.hset(key, "result", json.dumps(workers.map(abs, [-1, -2])))
    witness.hset(key, "pids", json.dumps(pids))


def _pid(_: int) -> int:
    return os.getpid()


@app.job(name="with_program")
def with_program(key: str) -> None:
    """Starts a program and waits for it."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as program:
        witness.rpush(key, os.getpid(), program.pid)


@app.job(name="with_heir")
def with_heir(key: str) -> None:
    """A process in a session of its own keeps all descriptors open for a while."""
    heir = os.fork()
    if heir == 0:
        os.setsid()
        time.sleep(15)
        os._exit(0)
    witness.rpush(key, os.getpid(), heir)
    time.sleep(60)


@app.job(name="stranger")
def stranger(status: int) -> None:
    """Leaves a process behind that nobody waits for."""
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1)
            os._exit(status)
        os._exit(0)
    os.waitpid(middle, 0)
    witness.incr("t:strangers")


@app.job(name="dice")
def dice(key: str, seconds: float = 0) -> None:
    witness.rpush(key, json.dumps([os.getpid(), random.random(), random.getrandbits(64), str(uuid.uuid4())]))
    witness.rpush(f"{key}:jids", str(noop.enqueue()))
    time.sleep(seconds)


@app.job(name="boom", retry=3)
def boom(key: str = "t:boom", seconds: float = 0) -> None:
    witness.incr(key)
    time.sleep(seconds)
    raise ValueError("boom")
