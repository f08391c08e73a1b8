"""Signals and orders that come at any moment of a renewal."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.process.renewal.deploys import (
    AS_DAEMON,
    Folder,
    Start,
    ask,
    came,
    ended,
    go,
    held,
    never,
    pids_below,
    recorded,
    refused,
    rolled,
)
from tests.process.test_renewal import each_once, in_order, ready_slots, renewed
from tests.support import Client, eventually, inprogress, push_raw

pytestmark = pytest.mark.timeout(180)

# ---- signals --------------------------------------------------------------------------------------------


def drained(deployed: Start, folder: Folder, client: Client, witness: Client, count: int) -> None:
    """A second daemon does what is left; every job of all has run once."""
    folder.deploy(9)
    last = deployed("-c", "2")
    eventually(lambda: witness.hlen("t:end") == count, 30)
    eventually(lambda: inprogress(client) == [], 20)
    each_once(witness, count)
    assert client.keys("cogworker:orphanings:*") == []
    assert last.stop() == 0


def test_a_stop_right_after(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    running = deployed("-c", "2")
    push_raw(client, "work", 1, 1.0)
    eventually(lambda: witness.hexists("t:start", "1"))
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    running.signal(signal.SIGTERM)
    assert running.exited() == 0
    assert witness.hgetall("t:end") == {"1": "1"}
    running.clean_log()
    drained(deployed, folder, client, witness, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_stop_at_any_moment(seed: int, deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    """TERM up to two seconds after USR2, which is before, at and after the exec."""
    chance = random.Random(seed)
    running = deployed("-c", "2")
    for number in range(30):
        push_raw(client, "work", number, chance.uniform(0, 0.4))
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    time.sleep((seed + chance.random()) / 6)  # the moment is the case
    assert running.stop() == 0
    running.clean_log()
    drained(deployed, folder, client, witness, 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_stop_while_the_new_program_starts(
    name: str, deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """It comes at the import, before the new program can handle it."""
    _stop_at_the_import(f"os.kill(os.getpid(), signal.{name})\n", deployed, folder, client, witness)


@pytest.mark.slow
def test_a_stop_while_the_new_program_turns_preload_off(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """It is becoming another program once more, to be rid of a thread."""
    code = (
        "import threading\n    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "    from cogworkerd.supervisor.handover import Handover\n    _write = Handover.write\n"
        "    Handover.write = lambda self: (time.sleep(0.3), _write(self))[1]\n"
        "    if setproctitle.getproctitle().startswith('cogworkerd:supervisor'):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    _stop_at_the_import(code, deployed, folder, client, witness)


def _stop_at_the_import(code: str, deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    running = deployed("-c", "2")
    held(client, witness, 1)
    folder.deploy(2, more=AS_DAEMON + code)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    came(running, "daemon.stopping", within=10)
    go(witness, 1)
    assert running.exited() == 0
    assert running.lines("daemon.stopped")
    running.clean_log()
    drained(deployed, folder, client, witness, 1)


@pytest.mark.slow
def test_signals_while_the_new_program_starts_are_kept(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """TSTP, CONT, HUP and USR2 at its import."""
    running = deployed("-c", "2")
    names = ("SIGHUP", "SIGUSR2", "SIGTSTP")
    code = "".join(f"os.kill(os.getpid(), signal.{name}); " for name in names)
    folder.deploy(
        2,
        more=AS_DAEMON + code + "(HERE / 'deployed.py').write_text(Path(__file__).read_text()"
        ".replace('RELEASE = 2', 'RELEASE = 3'))\n",
    )
    running.signal(signal.SIGUSR2)
    came(running, "daemon.quiet")
    came(running, "renewal.done", 2)
    rolled(running)
    push_raw(client, "work", 1)
    assert "quiet" in running.title()
    running.signal(signal.SIGCONT)
    ended(witness, 1)
    in_order(running, client, 1)


@pytest.mark.slow
@pytest.mark.parametrize("others", [(), (signal.SIGHUP,), (signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT)])
def test_many_at_once(
    others: tuple[signal.Signals, ...], deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The newest code runs in the end."""
    running = deployed("-c", "2")
    held(client, witness, 1)
    for number in range(2, 8):
        folder.deploy(number)
        running.signal(signal.SIGUSR2)
        for other in others:
            running.signal(other)
    ask(running)
    go(witness, 1)
    rolled(running)
    push_raw(client, "work", 2)
    ended(witness, 1, 2)
    assert witness.hget("t:release", "2") == "7"
    each_once(witness, 2)
    in_order(running, client, 2)


def test_quiet_lasts_over_a_renewal(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    running = deployed("-c", "2")
    held(client, witness, 1)
    running.signal(signal.SIGTSTP)
    came(running, "daemon.quiet")
    push_raw(client, "work", 2)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    go(witness, 1)
    renewed(running)
    assert "quiet" in running.title()
    assert client.llen("cogworker:queue:default") == 1
    assert not witness.hexists("t:start", "2")
    running.signal(signal.SIGCONT)
    ended(witness, 1, 2)
    assert witness.hget("t:release", "2") == "2"
    assert "quiet" not in running.title()
    each_once(witness, 2)
    in_order(running, client, 2)


@pytest.mark.slow
def test_in_the_middle_of_a_roll_that_waits_for_a_long_job(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    before = set(running.child_pids())
    pids = held(client, witness, 1)
    running.signal(signal.SIGHUP)
    eventually(lambda: set(running.child_pids()) & before == {pids[1]}, 10)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    push_raw(client, "work", 2)
    ended(witness, 2)
    go(witness, 1)
    renewed(running)
    each_once(witness, 2)
    in_order(running, client, 2)


@pytest.mark.slow
def test_no_second_slot_goes_down_where_a_roll_before_has_told_one(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """The first roll has told the slot with the long job, which may go down at any moment: the second waits for it."""
    slow = "@app.on_child_start\ndef slow():\n    time.sleep(1.5)\n"
    folder.deploy(1, more=slow)
    running = deployed("-c", "2")
    before = set(running.child_pids())
    pids = held(client, witness, 1)
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("child.left") and set(running.child_pids()) & before == {pids[1]}, 10)
    # The other one is ready again, and the slot with the job is the next to be told.
    eventually(lambda: len([1 for line in running.lines("report") if line["kind"] == "READY"]) == 3, 10)
    left = len(running.lines("child.left"))
    folder.deploy(2, more=slow)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    eventually(lambda: len(running.lines("roll.started")) == 2)
    assert len(running.lines("child.left")) == left
    go(witness, 1)
    renewed(running)
    ended(witness, 1)
    each_once(witness, 1)
    assert min(ready_slots(running)) == 1
    in_order(running, client, 1)


@pytest.mark.slow
def test_a_stop_while_it_comes_to_rest_drains_as_any_stop(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Timeouts go on during the drain."""
    rests = (
        "import asyncio\nfrom cogworkerd.supervisor.supervisor import Supervisor\n"
        "_rest = Supervisor._come_to_rest\n"
        "async def _slow(self):\n    await _rest(self)\n    witness.set('t:resting', 1)\n    await asyncio.sleep(1)\n"
        "Supervisor._come_to_rest = _slow\n"
    )
    folder.deploy(1, more=rests)
    running = deployed("-c", "2", "--shutdown-timeout", "20")
    held(client, witness, 1, timeout=4, retry=False)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    eventually(lambda: witness.exists("t:resting"), 15)
    running.signal(signal.SIGTERM)
    assert running.exited() == 0
    (line,) = running.lines("job.interrupted")
    assert line["order"] == "timeout"
    assert float(witness.hget("t:seconds", "1")) < 6
    assert client.zcard("cogworker:dead") == 1


@pytest.mark.slow
def test_reports_while_it_leaves_are_not_lost(deployed: Start, folder: Folder, client: Client, witness: Client) -> None:
    """Hanging up takes a while; what children say meanwhile counts."""
    slow = (
        "import asyncio\nfrom cogworkerd.supervisor.supervisor import Supervisor\n"
        "_close = Supervisor._close_connections\n"
        "async def _slowly(self):\n    witness.set('t:closing', 1)\n    await asyncio.sleep(0.5)\n"
        "    await _close(self)\n"
        "Supervisor._close_connections = _slowly\n"
    )
    folder.deploy(1, more=slow)
    running = deployed("-c", "2")
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    pushed = 0
    while not running.lines("renewal.done"):
        for _ in range(20):
            push_raw(client, "work", pushed, 0.01)
            pushed += 1
        eventually(lambda: client.llen("cogworker:queue:default") < 5, 20)
    renewed(running)
    eventually(lambda: witness.hlen("t:end") == pushed, 20)
    each_once(witness, pushed)
    recorded(client, pushed)
    in_order(running, client, pushed)


@pytest.mark.slow
def test_a_child_that_says_hello_while_it_leaves_is_known_as_ready(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Its job is not killed for a hello that was heard."""
    slow = (
        "import asyncio\nfrom cogworkerd.supervisor.supervisor import Supervisor\n"
        "_close = Supervisor._close_connections\n"
        "async def _slowly(self):\n    witness.set('t:closing', 1)\n    await asyncio.sleep(1)\n"
        "    await _close(self)\n"
        "Supervisor._close_connections = _slowly\n"
        "@app.on_child_start\ndef gate():\n"
        "    while witness.exists('t:gate') and not witness.exists('t:closing'):\n        time.sleep(0.01)\n"
    )
    folder.deploy(1, more=slow)
    running = deployed("-c", "2", "--boot-timeout", "6")
    witness.set("t:gate", 1)
    victim = running.child_pids()[0]
    os.kill(victim, signal.SIGTERM)
    came(running, "child.started", 3)
    folder.deploy(2)
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    witness.delete("t:gate")
    renewed(running, within=15)
    assert running.lines("child.killed") == []
    assert running.stop() == 0
    running.clean_log()


@pytest.mark.slow
def test_code_that_was_refused_last_is_not_what_runs(
    deployed: Start, folder: Folder, client: Client, witness: Client
) -> None:
    """Good code was found fit and waits for the end of a death hook; broken code comes meanwhile, and is tried, too."""
    hook = (
        "@app.on_death\ndef slow_hook(job, error):\n"
        "    witness.set('t:hook', 1)\n"
        "    while not witness.exists('t:hook:go'):\n        time.sleep(0.02)\n"
    )
    folder.deploy(1, more=hook)
    running = deployed("-c", "1", "--max-orphanings", "1")
    for times in ("1", "2"):
        eventually(lambda: running.child_pids(), 10)
        if times == "1":
            push_raw(client, "hold", 1)
        eventually(lambda times=times: witness.hget("t:start", "1") == times, 15)
        os.kill(int(witness.hget("t:pid", "1")), signal.SIGKILL)
    eventually(lambda: witness.exists("t:hook"), 10)
    before = pids_below(running)
    folder.deploy(2, more=hook)
    running.signal(signal.SIGUSR2)
    (check,) = eventually(lambda: pids_below(running) - before, 10)
    eventually(lambda: check not in pids_below(running), 10)
    folder.write("import nowhere_to_be_found\n")
    running.signal(signal.SIGUSR2)
    came(running, "renewal.started", 2)
    witness.set("t:hook:go", 1)
    assert "nowhere_to_be_found" in refused(running)
    never(lambda: running.lines("renewal.without_app"), 4)
    assert running.stop() == 0
