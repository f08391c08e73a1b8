"""C25: the supervisor as process 1 of a container, where it inherits strangers."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import psutil
import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _allowed() -> bool:
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _allowed(), reason="this user may not make a process namespace")


@pytest.fixture
def contained(daemon: Start) -> Start:
    """Start a daemon as process 1 of a namespace of its own; it ends with its `unshare`."""

    def start(*flags: str) -> Daemon:
        return daemon(*flags, target="life_jobs:app", wrap=CONTAINER)

    return start


def supervisor(running: Daemon) -> psutil.Process:
    """Process 1 of the namespace, as it is seen from outside."""
    found: psutil.Process = eventually(lambda: psutil.Process(running.pid).children())[0]
    return found


def slots(running: Daemon) -> list[int]:
    return sorted(child.pid for child in supervisor(running).children() if "slot" in " ".join(child.cmdline()))


def test_c25_strangers_are_reaped_and_nobody_is_blamed_for_them(
    contained: Start, client: Client, witness: Client
) -> None:
    running = contained("-c", "2").ready()
    assert client.smembers("cogworker:processes").pop().split(":")[1] == "1"
    before = slots(running)
    assert len(before) == 2
    for status in (3, 78, 4, 75, 70):
        push_raw(client, "stranger", status)
    eventually(lambda: witness.get("t:strangers") == "5")
    # Each lives for a second after its parent; then only the slots are left, and no zombie.
    eventually(lambda: len(supervisor(running).children(recursive=True)) == 2)
    assert zombies(running.pid) == []
    assert slots(running) == before
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert not running.lines("child.died")
    assert not running.lines("child.left")
    supervisor(running).send_signal(signal.SIGTERM)
    assert running.exited(10) == 0
    assert inprogress(client) == []
    running.clean_log()


def test_c25_a_child_that_is_killed_is_noticed_among_strangers(
    contained: Start, client: Client, witness: Client
) -> None:
    running = contained("-c", "2").ready()
    push_raw(client, "stranger", 3)
    push_raw(client, "mark", 1, 1)
    eventually(lambda: witness.llen("t:mark:1") == 1)
    busy = next(child for child in supervisor(running).children() if "[mark " in " ".join(child.cmdline()))
    busy.kill()
    eventually(lambda: witness.llen("t:mark:1") == 3, 10)
    eventually(lambda: zombies(running.pid) == [])
    assert len(running.lines("child.died")) == 1
    supervisor(running).send_signal(signal.SIGTERM)
    assert running.exited(10) == 0


def _catches(process: psutil.Process, number: signal.Signals) -> bool:
    with open(f"/proc/{process.pid}/status") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


def test_c25_a_stop_while_it_starts_is_obeyed(contained: Start, client: Client) -> None:
    """The kernel throws away what process 1 does not catch; from the first handler on nothing may be lost."""
    running = contained("-c", "2")
    eventually(lambda: _catches(supervisor(running), signal.SIGTERM), 10)
    supervisor(running).send_signal(signal.SIGTERM)
    assert running.exited(5) == 0
    running.clean_log()
    assert client.smembers("cogworker:processes") == set()


@pytest.mark.parametrize("moment", ["daemon.start", "child.started", "report"])
def test_c25_a_stop_soon_after_the_start_is_obeyed(contained: Start, client: Client, moment: str) -> None:
    running = contained("-c", "2")
    eventually(lambda: running.lines(moment), 10)
    supervisor(running).send_signal(signal.SIGTERM)
    assert running.exited(10) == 0
    assert client.smembers("cogworker:processes") == set()
    running.clean_log()
