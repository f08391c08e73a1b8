"""Jobs that crash, grow, or come too late, and what they do about it. Books go to WITNESS_URL's server.

BALLAST in the environment is how many MiB the module holds. PERIODIC is the expression of an entry that comes too late
after a second, if it is not started.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable

import redis

from cogworkerd import App, JobContext, current_job

FOR_EVER = 600
QUESTIONS = 0.02
MIB = 2**20

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
ballast = b"x" * (int(os.environ.get("BALLAST", "0")) * MIB)
kept: list[bytes] = []


def mark(word: str) -> None:
    """Note that the job at hand came this far, and in which process."""
    witness.rpush(f"t:marks:{current_job().jid}", f"{word} {os.getpid()}")


def pages(megabytes: float) -> bytes:
    """Memory that is really there."""
    return b"y" * int(megabytes * MIB)


@app.on_death
def mourn(job: JobContext, error: BaseException) -> None:
    witness.rpush("t:deaths", job.jid)


# ---- crashes --------------------------------------------------------------------------------------------


def _read_null() -> None:
    ctypes.string_at(0)


def _abort() -> None:
    os.abort()


def _read_beyond_the_file() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as view:
            file.truncate(0)
            view[:1]


def _divide() -> None:
    os.kill(os.getpid(), signal.SIGFPE)


def _exit_3() -> None:
    os._exit(3)


def _exit_0() -> None:
    os._exit(0)


def _wait() -> None:
    time.sleep(FOR_EVER)


CRASHES: dict[str, Callable[[], None]] = {
    "reads null": _read_null,
    "aborts": _abort,
    "reads beyond its file": _read_beyond_the_file,
    "divides": _divide,
    "exits with 3": _exit_3,
    "exits with 0": _exit_0,
    "waits": _wait,
}


@app.job(name="crash")
def crash(kind: str) -> None:
    current_job().progress(40, "half way")
    mark("began")
    CRASHES[kind]()


@app.job(name="crash_silently")
def crash_silently(kind: str) -> None:
    """Says nothing of its progress."""
    mark("began")
    CRASHES[kind]()


@app.job(name="crash_once")
def crash_once() -> None:
    mark("began")
    if witness.llen(f"t:marks:{current_job().jid}") == 1:
        _read_null()
    mark("ended")


@app.job(name="tell_once")
def tell_once() -> None:
    """Says only in its first run how far it is."""
    mark("began")
    if witness.llen(f"t:marks:{current_job().jid}") == 1:
        current_job().progress(40, "of the first run")
    _exit_3()


@app.job(name="count_runs")
def count_runs() -> None:
    """Says which of its runs it is, and crashes."""
    mark("began")
    run = witness.llen(f"t:marks:{current_job().jid}")
    current_job().progress(run)
    current_job().store(run=run)
    _exit_3()


@app.job(name="crash_asynchronously")
async def crash_asynchronously(kind: str) -> None:
    current_job().progress(40, "half way")
    await asyncio.sleep(0)
    CRASHES[kind]()


@app.job(name="crash_in_a_thread")
def crash_in_a_thread(kind: str) -> None:
    current_job().progress(40, "half way")
    thread = threading.Thread(target=CRASHES[kind])
    thread.start()
    thread.join()


@app.job(name="crash_among_threads")
def crash_among_threads(count: int) -> None:
    """In the main thread, while others wait."""
    for _ in range(count):
        threading.Thread(target=_wait, daemon=True).start()
    _read_null()


@app.job(name="crash_deep")
def crash_deep(depth: int) -> None:
    if depth:
        crash_deep.function(depth - 1)
    else:
        _read_null()


@app.job(name="crash_later")
def crash_later() -> None:
    """Leaves a thread behind that crashes when the gate is open."""
    current_job().progress(40, "half way")
    threading.Thread(target=_crash_at_the_gate, daemon=True).start()


def _crash_at_the_gate() -> None:
    while not witness.exists("t:gate"):
        time.sleep(QUESTIONS)
    _read_null()


@app.job(name="crash_in_a_copy")
def crash_in_a_copy() -> None:
    """A process that it forks crashes; it goes on."""
    copy = os.fork()
    if copy == 0:
        _read_null()
    os.waitpid(copy, 0)
    mark("ended")


@app.job(name="answer_late")
def answer_late() -> None:
    """The signal that asks for a stack reaches it when nobody waits any more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    mark("began")
    while not witness.exists("t:gate"):
        time.sleep(QUESTIONS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    mark("answered")
    _wait()


# ---- growth ---------------------------------------------------------------------------------------------


@app.job(name="peak")
def peak(megabytes: int) -> None:
    """Has that much for a moment, and crashes without it."""
    grown = pages(megabytes)
    del grown
    _exit_3()


@app.job(name="grow")
def grow(n: int, megabytes: float, seconds: float = 0) -> None:
    """Leaves that much behind in its process."""
    witness.hincrby("t:start", str(n), 1)
    kept.append(pages(megabytes))
    time.sleep(seconds)
    witness.rpush("t:pids", os.getpid())
    witness.hincrby("t:end", str(n), 1)


@app.job(name="swell")
def swell(n: int, megabytes: float, seconds: float) -> None:
    """Has that much while it runs, and gives it back."""
    witness.hincrby("t:start", str(n), 1)
    grown = pages(megabytes)
    time.sleep(seconds)
    del grown
    witness.rpush("t:pids", os.getpid())
    witness.hincrby("t:end", str(n), 1)


@app.job(name="bomb")
def bomb(step: float = 10, most: int = 1000) -> None:
    """Grows and grows, whatever is raised in it; a program of its own looks on."""
    mark("began")
    program = subprocess.Popen(["sleep", str(FOR_EVER)])
    witness.rpush(f"t:processes:{current_job().jid}", program.pid)
    grown: list[bytes] = []
    while True:
        try:
            if len(grown) * step < most:
                grown.append(pages(step))
            time.sleep(QUESTIONS)
        except BaseException as error:
            mark(type(error).__name__)


@app.job(name="eat")
def eat() -> None:
    """All the memory that there is."""
    current_job().progress(40, "half way")
    while True:
        kept.append(pages(4))


@app.job(name="eat_in_a_program")
def eat_in_a_program() -> None:
    """A program of its own is killed for lack of memory; it goes on."""
    program = ["python3", "-c", "kept = []\nwhile True: kept.append(b'y' * 2**22)"]
    status = subprocess.run(program, check=False).returncode
    mark(f"program ended by {-status}")


# ---- others ---------------------------------------------------------------------------------------------


@app.job(name="note")
def note(n: int = 0) -> None:
    witness.hincrby("t:ran", str(n), 1)
    mark("ran")


@app.job(name="fail")
def fail() -> None:
    mark("began")
    raise ValueError("no luck")


@app.job(name="last")
def last(seconds: float) -> None:
    mark("began")
    time.sleep(seconds)
    mark("ended")


@app.job(name="gated")
def gated() -> None:
    mark("began")
    while not witness.exists("t:gate"):
        time.sleep(QUESTIONS)


@app.job(name="meet")
def meet(where: str, count: int) -> None:
    """Ends when so many are there: each has a slot of its own."""
    witness.incr(where)
    while int(witness.get(where) or 0) < count:
        time.sleep(QUESTIONS)


@app.job(name="hurry", expires_in=1)
def hurry() -> None:
    witness.rpush("t:hurry", current_job().payload["periodic_slot"])


if "PERIODIC" in os.environ:
    app.periodic(os.environ["PERIODIC"], hurry, unique="until_executed")
