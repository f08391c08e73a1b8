"""C27 and C29: a terminal's Ctrl-C, and signals that come while the application is imported."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]

# Makes the terminal on descriptor 0 the controlling one, which a login shell has and a test's child has not.
ON_THE_TERMINAL = (
    "python3",
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])",
)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: the one that is typed on, and the daemon's."""
    ours, theirs = os.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def no_traces(running: Daemon) -> None:
    running.clean_log()
    assert "KeyboardInterrupt" not in running.text()
    assert not psutil.wait_procs(running.known, 5)[1]


@pytest.mark.parametrize("typed", [False, True])
def test_c27_1_ctrl_c_lets_the_running_job_end(
    daemon: Start, client: Client, witness: Client, terminal: tuple[int, int], typed: bool
) -> None:
    ours, theirs = terminal
    running = daemon("-c", "4", stdin=theirs, wrap=ON_THE_TERMINAL).ready()
    push_raw(client, "book", "a", 3)
    eventually(lambda: witness.hget("t:start", "a") == "1")
    if typed:
        os.write(ours, b"\x03")
    else:
        os.killpg(running.pid, signal.SIGINT)
    assert running.exited(10) == 0
    assert witness.hgetall("t:start") == witness.hgetall("t:end") == {"a": "1"}
    assert inprogress(client) == []
    no_traces(running)


@pytest.mark.parametrize(
    ("numbers", "pause"),
    [((signal.SIGINT, signal.SIGINT), 1.0), ((signal.SIGTERM, signal.SIGTERM, signal.SIGTERM), 0.02)],
    ids=["INT twice", "TERM three times"],
)
def test_c27_2_3_a_second_one_ends_the_job_and_puts_it_back(
    daemon: Start,
    client: Client,
    witness: Client,
    terminal: tuple[int, int],
    numbers: tuple[signal.Signals, ...],
    pause: float,
) -> None:
    running = daemon("-c", "1", stdin=terminal[1], wrap=ON_THE_TERMINAL).ready()
    jid = push_raw(client, "pidof", "t:p", 30)
    (pid,) = eventually(lambda: witness.lrange("t:p", 0, -1))
    other = push_raw(client, "book", 2)
    for place, number in enumerate(numbers):
        time.sleep(pause if place else 0)
        os.killpg(running.pid, number)
    assert running.exited(6) == 0
    assert not psutil.pid_exists(int(pid))
    queued = client.lrange("cogworker:queue:default", 0, -1)
    assert [other in queued[0], jid in queued[1]] == [True, True]
    assert len(queued) == 2
    assert inprogress(client) == []
    assert client.keys("cogworker:orphanings:*") == []
    no_traces(running)


def alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may wait to be reaped by whoever inherited it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


PRELOAD = pytest.mark.parametrize("preload", ["--preload", pytest.param("--no-preload", marks=pytest.mark.slow)])


def importing(daemon: Start, witness: Client, preload: str) -> Daemon:
    """A daemon whose app is just being imported."""
    running = daemon(
        "-c", "2", preload, target="life_slow_import:app", env={"IMPORT_SECONDS": "2"}, start_new_session=True
    )
    eventually(lambda: witness.llen("t:importing") == 1, 10)
    return running


def below(running: Daemon) -> list[psutil.Process]:
    try:
        return psutil.Process(running.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@PRELOAD
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_c29_a_stop_during_the_import_is_obeyed(
    daemon: Start, client: Client, witness: Client, preload: str, number: signal.Signals
) -> None:
    running = importing(daemon, witness, preload)
    children = below(running)
    os.killpg(running.pid, number) if number is signal.SIGINT else running.signal(number)
    assert running.exited(6) == 0
    eventually(lambda: not [child for child in children if alive(child)], 1)
    assert client.keys("*") == []
    no_traces(running)


@PRELOAD
@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR2", "SIGTTIN", "SIGWINCH"])
def test_c29_other_signals_during_the_import_do_no_harm(
    daemon: Start, client: Client, witness: Client, preload: str, name: str
) -> None:
    running = importing(daemon, witness, preload)
    running.signal(signal.Signals[name])
    running.ready()
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0
    no_traces(running)


@PRELOAD
def test_c29_tstp_during_the_import_makes_it_come_up_quiet(
    daemon: Start, client: Client, witness: Client, preload: str
) -> None:
    running = importing(daemon, witness, preload)
    states: set[str] = set()

    def ready() -> bool:
        states.update(process.status() for process in [psutil.Process(running.pid), *running.children()])
        return bool(running.lines("daemon.ready"))

    push_raw(client, "book", 1)
    running.signal(signal.SIGTSTP)
    eventually(ready, 15)
    assert psutil.STATUS_STOPPED not in states
    assert running.title().endswith(" quiet")
    rounds = len(running.lines("report"))
    eventually(lambda: len(running.lines("report")) >= rounds + 4)  # two slots, each has looked twice whether it may
    assert witness.hgetall("t:end") == {}
    running.signal(signal.SIGCONT)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0
    no_traces(running)
