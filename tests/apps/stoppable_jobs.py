"""Jobs that are to be stopped while they run, and what they do about it. Books go to WITNESS_URL's server.

SLOW_KILL in the environment holds the supervisor up for so many seconds just before it kills a child (with preload on:
the module is the supervisor's, too), as a log that does not take its line would.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import redis

from cogworkerd import App, JobContext, current_job
from cogworkerd.errors import Bury, Discard, JobTimeout, Requeue, Retry, Stopped
from cogworkerd.supervisor.slot import Slot

FOR_EVER = 600
QUESTIONS = 0.02

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])

if "SLOW_KILL" in os.environ:
    patched: Any = Slot
    _kill = patched.kill

    def _kill_late(self: Any, *args: Any, **kwargs: Any) -> None:
        witness.incr("t:kills")
        time.sleep(float(os.environ["SLOW_KILL"]))
        _kill(self, *args, **kwargs)

    patched.kill = _kill_late


def mark(word: str) -> None:
    """Note that the job at hand came this far."""
    witness.rpush(f"t:marks:{current_job().jid}", word)


def note_process(pid: int) -> None:
    witness.rpush(f"t:processes:{current_job().jid}", pid)


# ---- offenders ------------------------------------------------------------------------------------------


def _sleep() -> None:
    time.sleep(FOR_EVER)


def _loop() -> None:
    while True:
        pass


def _power() -> None:
    pow(7, 10**8)


def _hold_the_interpreter() -> None:
    """A C call that neither lets the interpreter go nor looks at signals."""
    all(itertools.repeat(True))


def _stay_in_c() -> None:
    """A C call that lets the interpreter go and does not look at signals."""
    hashlib.pbkdf2_hmac("sha1", b"password", b"salt", 2**31 - 1)


def _deadlock() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def _join() -> None:
    thread = threading.Thread(target=_sleep, daemon=True)
    thread.start()
    thread.join()


def _ignore() -> NoReturn:
    while True:
        try:
            time.sleep(FOR_EVER)
        except BaseException as error:
            mark(type(error).__name__)


def _own_handler() -> None:
    signal.signal(signal.SIGUSR2, lambda number, frame: mark("own handler"))
    _sleep()


def _ignored_signal() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    _sleep()


def _default_handler() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    mark("ready")
    _sleep()


def _blocked_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _sleep()


def _no_stack() -> None:
    """The signal that asks for a stack would end the process."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    mark("ready")
    _ignore()


def _stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    _sleep()


def _program() -> None:
    with subprocess.Popen(["sleep", str(FOR_EVER)]) as program:
        note_process(program.pid)
        try:
            program.wait()
        finally:
            program.kill()


def _family() -> None:
    """Its relatives do not go of themselves."""
    relative = os.fork()
    if relative == 0:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            _sleep()
        finally:
            os._exit(0)
    note_process(relative)
    with subprocess.Popen(["sleep", str(FOR_EVER)]) as program:
        note_process(program.pid)
        _ignore()


def _clean_up() -> None:
    try:
        _sleep()
    finally:
        mark("cleaned up")


def _clean_up_for_long() -> None:
    try:
        _sleep()
    finally:
        mark("cleaning")
        _sleep()


def _clean_up_badly() -> None:
    try:
        _sleep()
    finally:
        mark("cleaned up")
        raise KeyError("the cleanup")


def _die_in_the_cleanup() -> None:
    try:
        _sleep()
    finally:
        mark("cleaned up")
        os._exit(3)


def _swallow() -> None:
    try:
        _sleep()
    except BaseException as error:
        mark(type(error).__name__)


def _swallow_exceptions() -> None:
    while True:
        try:
            _sleep()
        except Exception as error:
            mark(type(error).__name__)


def _decide(decision: BaseException) -> Callable[[], None]:
    def decides() -> None:
        try:
            _sleep()
        except JobTimeout as error:
            raise decision from error

    return decides


OFFENDERS: dict[str, Callable[[], None]] = {
    "sleeps": _sleep,
    "loops": _loop,
    "makes a power": _power,
    "holds the interpreter": _hold_the_interpreter,
    "stays in C": _stay_in_c,
    "is deadlocked": _deadlock,
    "joins a thread": _join,
    "ignores": _ignore,
    "own handler": _own_handler,
    "ignored signal": _ignored_signal,
    "default handler": _default_handler,
    "blocked signals": _blocked_signals,
    "no stack": _no_stack,
    "stops itself": _stopped,
    "waits for a program": _program,
    "has a family": _family,
    "cleans up": _clean_up,
    "cleans up for long": _clean_up_for_long,
    "cleans up badly": _clean_up_badly,
    "dies in the cleanup": _die_in_the_cleanup,
    "swallows": _swallow,
    "swallows exceptions": _swallow_exceptions,
    "decides Retry": _decide(Retry("later", delay=3600)),
    "decides Bury": _decide(Bury()),
    "decides Discard": _decide(Discard()),
}


def offend_as(kind: str) -> None:
    mark("began")
    OFFENDERS[kind]()
    mark("ended")


@app.job(name="offend")
def offend(kind: str) -> None:
    offend_as(kind)


@app.job(name="offend_once")
def offend_once(kind: str) -> None:
    """Offends in its first run only."""
    if witness.llen(f"t:marks:{current_job().jid}"):
        mark("again")
    else:
        offend_as(kind)


@app.job(name="asking", retry=3)
def asking(kind: str) -> None:
    offend_as(kind)


@asking.retry_in
def in_an_hour(attempt: int, error: BaseException, job: JobContext) -> float:
    mark(f"asked with {type(error).__name__} after run {attempt}")
    return 3600


@app.job(name="mourned")
def mourned(kind: str) -> None:
    offend_as(kind)


@mourned.on_death
def mourn(job: JobContext, error: BaseException) -> None:
    witness.rpush(f"t:marks:{job.jid}", f"mourned {getattr(error, 'error_class', type(error).__name__)}")


# ---- async offenders ------------------------------------------------------------------------------------


async def _async_sleep() -> None:
    await asyncio.sleep(FOR_EVER)


async def _async_ignore() -> None:
    """Swallows its cancellation once."""
    try:
        await asyncio.sleep(FOR_EVER)
    except asyncio.CancelledError:
        mark("CancelledError")
    await asyncio.sleep(FOR_EVER)


async def _async_swallow() -> None:
    try:
        await asyncio.sleep(FOR_EVER)
    except asyncio.CancelledError:
        mark("CancelledError")


async def _async_block() -> None:
    time.sleep(FOR_EVER)


async def _async_clean_up() -> None:
    try:
        await asyncio.sleep(FOR_EVER)
    finally:
        await asyncio.sleep(0.1)
        mark("cleaned up")


async def _async_clean_up_badly() -> None:
    try:
        await asyncio.sleep(FOR_EVER)
    finally:
        mark("cleaned up")
        raise KeyError("the cleanup")


async def _async_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_async_clean_up())
        await asyncio.sleep(FOR_EVER)


async def _async_thread() -> None:
    await asyncio.to_thread(_sleep)


ASYNC_OFFENDERS: dict[str, Callable[[], Awaitable[None]]] = {
    "sleeps": _async_sleep,
    "ignores once": _async_ignore,
    "swallows": _async_swallow,
    "blocks its loop": _async_block,
    "cleans up": _async_clean_up,
    "cleans up badly": _async_clean_up_badly,
    "has a group": _async_group,
    "waits for a thread": _async_thread,
}


@app.job(name="offend_async")
async def offend_async(kind: str) -> None:
    mark("began")
    await ASYNC_OFFENDERS[kind]()
    mark("ended")


# ---- others ---------------------------------------------------------------------------------------------


@app.job(name="last")
def last(seconds: float) -> None:
    mark("began")
    time.sleep(seconds)
    mark("ended")


@app.job(name="last_stubbornly")
def last_stubbornly(seconds: float) -> None:
    """Lasts that long, whatever is raised in it."""
    end = time.monotonic() + seconds
    mark("began")
    while (left := end - time.monotonic()) > 0:
        try:
            time.sleep(left)
        except BaseException:
            mark("ignored")
    mark("ended")


@app.job(name="last_asynchronously")
async def last_asynchronously(seconds: float) -> None:
    mark("began")
    await asyncio.sleep(seconds)
    mark("ended")


@app.job(name="last_until_killed")
def last_until_killed() -> None:
    """Ends when the supervisor is about to kill its process (see SLOW_KILL)."""
    mark("began")
    while not witness.exists("t:kills"):
        try:
            time.sleep(QUESTIONS)
        except JobTimeout:
            mark("ignored")
    mark("ended")


@app.job(name="meet")
def meet(where: str, count: int) -> None:
    """Ends when so many are there: each has a slot of its own."""
    witness.incr(where)
    while int(witness.get(where) or 0) < count:
        time.sleep(QUESTIONS)


@app.job(name="gated")
def gated() -> None:
    mark("began")
    while not witness.exists("t:gate"):
        time.sleep(QUESTIONS)
    mark("ended")


# ---- stops ----------------------------------------------------------------------------------------------


@app.job(name="yield_to_a_stop")
def yield_to_a_stop() -> None:
    mark("began")
    while not current_job().stopping:
        if witness.exists("t:gate"):
            mark("ended")
            return
        time.sleep(QUESTIONS)
    raise Requeue("the daemon stops")


@app.job(name="yield_asynchronously")
async def yield_asynchronously() -> None:
    mark("began")
    while not current_job().stopping:
        if witness.exists("t:gate"):
            mark("ended")
            return
        await asyncio.sleep(QUESTIONS)
    raise Requeue("the daemon stops")


@app.job(name="requeue_twice")
def requeue_twice() -> None:
    mark("began")
    if witness.llen(f"t:marks:{current_job().jid}") <= 2:
        raise Requeue


@app.job(name="told_to_stop")
def told_to_stop(then: str) -> None:
    mark("began")
    try:
        _sleep()
    except Stopped as error:
        mark("Stopped")
        if then == "swallow":
            _ignore()
        if then == "return":
            return
        if then == "fail":
            raise KeyError("the cleanup") from error
        raise


# ---- the cases ------------------------------------------------------------------------------------------


@app.job(name="change_signals")
def change_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 3600)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    witness.rpush("t:pids", os.getpid())


@app.job(name="tell_signals")
def tell_signals() -> None:
    told = [subprocess.run(["false"], check=False).returncode, signal.getitimer(signal.ITIMER_REAL)[0]]
    witness.rpush("t:told", repr(told))
    witness.rpush("t:pids", os.getpid())


@app.job(name="sleeper")
def sleeper() -> None:
    witness.rpush("t:pids", os.getpid())
    time.sleep(60)


@app.job(name="greedy", retry=1, timeout=2)
def greedy() -> None:
    witness.rpush("t:greedy", time.time())
    while True:
        try:
            time.sleep(60)
        except Exception:
            pass


@app.job(name="book")
def book(n: str, seconds: float = 0) -> None:
    witness.hincrby("t:start", n, 1)
    time.sleep(seconds)
    witness.hincrby("t:end", n, 1)
