"""What each signal does to the supervisor and to a child."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def presence(client: Client) -> dict[str, str]:
    """The presence hash of the only daemon."""
    (identity,) = client.smembers("cogworker:processes")
    found: dict[str, str] = client.hgetall(f"cogworker:process:{identity}")
    return found


def become_quiet(running: Daemon, client: Client) -> None:
    """TSTP, until the title says so and no child waits for a job any more."""
    running.signal(signal.SIGTSTP)
    eventually(lambda: running.title().endswith(" quiet"))
    eventually(
        lambda: not [entry for entry in client.client_list() if "-slot-" in entry["name"] and "b" in entry["flags"]]
    )


def idle_reports(running: Daemon) -> Counter[int]:
    """How often each slot has said that it looked whether there is anything to do."""
    return Counter(line["slot"] for line in running.lines("report") if line["kind"] == "IDLE")


def all_look_again(running: Daemon, times: int = 2) -> None:
    """Wait until every slot has had its chances to fetch."""
    before = idle_reports(running)
    eventually(lambda: all(idle_reports(running)[slot] >= n + times for slot, n in before.items()), 15)


def all_done(witness: Client, count: int) -> bool:
    return bool(witness.hlen("t:end") == count)


def nothing_left(running: Daemon, client: Client) -> None:
    """The daemon is gone in good order: no process, no registration."""
    assert not psutil.wait_procs(running.known, 5)[1]
    assert client.smembers("cogworker:processes") == set()
    assert client.smembers("cogworker:inprogress_identities") == set()
    assert client.keys("cogworker:process:*") == []
    assert inprogress(client) == []
    assert client.keys("cogworker:orphanings:*") == []
    assert not running.lines("child.died")
    running.clean_log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_term_and_int_end_an_idle_daemon(daemon: Start, client: Client, number: signal.Signals) -> None:
    running = daemon("-c", "3").ready()
    running.signal(number)
    assert running.exited(5) == 0
    assert running.lines("daemon.stopping")[0]["signal"] == number.name
    nothing_left(running, client)


def test_term_lets_the_running_job_end_and_fetches_no_other(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "1").ready()
    push_raw(client, "book", 1, 2)
    push_raw(client, "book", 2)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    running.signal(signal.SIGTERM)
    eventually(lambda: running.title().endswith("[1/1 busy] stopping"))
    assert running.exited(10) == 0
    assert witness.hgetall("t:start") == witness.hgetall("t:end") == {"1": "1"}
    assert client.llen("cogworker:queue:default") == 1
    assert client.get("cogworker:stats:processed") == "1"
    nothing_left(running, client)


def test_a_drain_that_is_over_kills_the_job_and_puts_it_back_without_blame(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1", "--shutdown-timeout", "1").ready()
    jid = push_raw(client, "pidof", "t:p", 60)
    push_raw(client, "book", 2)
    (pid,) = eventually(lambda: witness.lrange("t:p", 0, -1))
    running.signal(signal.SIGTERM)
    assert running.exited(4) == 0
    assert not psutil.pid_exists(int(pid))
    assert jid in client.lindex("cogworker:queue:default", -1)
    assert client.llen("cogworker:queue:default") == 2
    assert inprogress(client) == []
    assert client.keys("cogworker:orphanings:*") == []
    running.clean_log()


def test_a_second_term_ends_the_wait(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "2").ready()
    jid = push_raw(client, "pidof", "t:p", 60)
    (pid,) = eventually(lambda: witness.lrange("t:p", 0, -1))
    running.signal(signal.SIGTERM)
    eventually(lambda: running.title().endswith("stopping"))
    running.signal(signal.SIGTERM)
    assert running.exited(6) == 0
    assert not psutil.pid_exists(int(pid))
    assert [jid in raw for raw in client.lrange("cogworker:queue:default", 0, -1)] == [True]
    assert inprogress(client) == []
    assert client.keys("cogworker:orphanings:*") == []
    running.clean_log()


def test_tstp_finishes_what_runs_and_fetches_nothing_until_cont(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "2").ready()
    push_raw(client, "book", 1, 1)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    become_quiet(running, client)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    eventually(lambda: client.get("cogworker:stats:processed") == "1")
    push_raw(client, "book", 2)
    client.zadd("cogworker:schedule", {'{"class": "book", "args": [3], "queue": "default", "jid": "due"}': 1})
    all_look_again(running)
    assert client.llen("cogworker:queue:default") == 1
    assert client.zcard("cogworker:schedule") == 1
    assert witness.hgetall("t:start") == {"1": "1"}
    eventually(lambda: presence(client)["quiet"] == "true", 6)  # the next beat
    running.signal(signal.SIGCONT)
    eventually(lambda: witness.hgetall("t:end") == {"1": "1", "2": "1", "3": "1"})
    eventually(lambda: running.title().endswith("busy]"))
    assert running.stop() == 0
    nothing_left(running, client)


@pytest.mark.slow
def test_the_presence_hash_says_quiet_and_busy(daemon: Start, client: Client, witness: Client) -> None:
    """By the next beat."""
    running = daemon("-c", "2").ready()
    assert (presence(client)["quiet"], presence(client)["busy"]) == ("false", "0")
    push_raw(client, "book", 1, 20)
    eventually(lambda: presence(client)["busy"] == "1", 6)
    running.signal(signal.SIGTSTP)
    eventually(lambda: presence(client)["quiet"] == "true", 6)
    running.signal(signal.SIGCONT)
    eventually(lambda: presence(client)["quiet"] == "false", 6)
    assert presence(client)["busy"] == "1"


@pytest.mark.slow
def test_quiet_and_resume_may_be_asked_for_twice(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "1").ready()
    running.signal(signal.SIGCONT)
    become_quiet(running, client)
    become_quiet(running, client)
    running.signal(signal.SIGCONT)
    running.signal(signal.SIGCONT)
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0
    nothing_left(running, client)


def test_a_job_that_arrives_at_the_moment_of_tstp_is_neither_lost_nor_run_twice(
    daemon: Start, client: Client, witness: Client
) -> None:
    """A fetch that comes too late is given back (R25, P8)."""
    running = daemon("-c", "4").ready()
    for n in range(0, 100, 10):
        running.signal(signal.SIGTSTP)
        for m in range(n, n + 10):
            push_raw(client, "book", m)
        running.signal(signal.SIGCONT)
        eventually(partial(all_done, witness, n + 10), 10)
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}
    eventually(lambda: inprogress(client) == [])
    assert running.stop() == 0
    nothing_left(running, client)


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGCONT), (signal.SIGCONT, signal.SIGTERM)])
@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_term_and_cont_together_on_a_quiet_daemon_fetch_nothing(
    daemon: Start, client: Client, witness: Client, numbers: tuple[signal.Signals, ...], frozen: bool
) -> None:
    """systemd sends both; CONT has the lower place in the loop's queue. Frozen: both are pending when it wakes."""
    running = daemon("-c", "2").ready()
    become_quiet(running, client)
    push_raw(client, "book", 1)
    if frozen:
        running.signal(signal.SIGSTOP)
        eventually(lambda: psutil.Process(running.pid).status() == psutil.STATUS_STOPPED)
    for number in numbers:
        running.signal(number)
    assert running.exited(5) == 0
    assert witness.hgetall("t:start") == {}
    assert client.llen("cogworker:queue:default") == 1
    assert not running.lines("daemon.resumed")
    nothing_left(running, client)


def readiness(running: Daemon) -> list[int]:
    """How many slots had a ready child, after each change that the log tells of since the roll began."""
    ready: set[int] = set()
    counts: list[int] = []
    rolling = False
    for line in running.lines():
        rolling = rolling or line["event"] == "roll.started"
        if line["event"] in ("child.left", "child.died"):
            ready.discard(line["slot"])
        elif line["event"] == "report" and line["kind"] == "READY":
            ready.add(line["slot"])
        if rolling:
            counts.append(len(ready))
    return counts


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGUSR2, marks=pytest.mark.slow)])
def test_hup_and_usr2_roll_slot_by_slot_and_leave_the_running_job_alone(
    daemon: Start, client: Client, witness: Client, number: signal.Signals
) -> None:
    running = daemon("-c", "3").ready()
    before = set(running.child_pids())
    push_raw(client, "pidof", "t:p", 2)
    (pid,) = eventually(lambda: witness.lrange("t:p", 0, -1))
    running.signal(number)
    eventually(lambda: running.lines("roll.done"), 20)
    assert witness.lrange("t:p", 0, -1) == witness.lrange("t:p:done", 0, -1) == [pid]
    after = set(running.child_pids())
    assert len(after) == 3
    assert not after & before
    assert min(readiness(running)) == 2
    assert {line["child"] for line in running.lines("child.left")} == before
    assert len(running.lines("renewal.done")) == (number is signal.SIGUSR2)
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0
    nothing_left(running, client)


@pytest.mark.slow
def test_a_hup_during_a_roll_is_remembered(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "2").ready()
    push_raw(client, "book", 1, 2)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("roll.started"))
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("roll.done"), 20)
    assert Counter(line["slot"] for line in running.lines("child.left")) == {1: 2, 2: 2}
    assert witness.hgetall("t:end") == {"1": "1"}
    assert running.stop() == 0
    nothing_left(running, client)


@pytest.mark.slow
def test_a_stop_in_the_middle_of_a_roll_is_a_stop(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "2").ready()
    for n in range(2):
        push_raw(client, "book", n, 2)
    eventually(lambda: witness.hlen("t:start") == 2)
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("roll.started"))
    assert running.stop(8) == 0
    assert witness.hgetall("t:end") == {"0": "1", "1": "1"}
    nothing_left(running, client)


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGUSR2, marks=pytest.mark.slow)])
def test_without_preload_a_roll_brings_new_code(
    daemon: Start, client: Client, witness: Client, tmp_path: Path, number: signal.Signals
) -> None:
    source = Path(__file__).parent.parent / "apps" / "jobs.py"
    module = tmp_path / "rolled.py"
    module.write_text(source.read_text())
    running = daemon("-c", "2", "--no-preload", target="rolled:app", app_dir=tmp_path).ready()
    module.write_text(source.read_text().replace('"t:end", str(n), 1', '"t:end:new", str(n), 1'))
    os.utime(module, (time.time() + 10, time.time() + 10))  # bytecode of the same second and size must not win
    running.signal(number)
    eventually(lambda: running.lines("roll.done"), 20)
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end:new", "1") == "1")
    assert len(running.lines("renewal.done")) == (number is signal.SIGUSR2)
    assert running.stop() == 0
    nothing_left(running, client)


@pytest.mark.slow
def test_a_roll_keeps_a_quiet_daemon_quiet(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "2").ready()
    become_quiet(running, client)
    push_raw(client, "book", 1)
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("roll.done"), 20)
    all_look_again(running)
    assert witness.hgetall("t:start") == {}
    running.signal(signal.SIGCONT)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0
    nothing_left(running, client)


def stacks(running: Daemon) -> dict[int, dict[str, Any]]:
    """The last stack that was logged, by child."""
    return {line["child"]: line for line in running.lines("child.stack")}


def test_ttin_logs_the_stack_of_every_slot(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "3", target="life_jobs:app").ready()
    sleeping = push_raw(client, "mark", 1, 3)
    hogging = push_raw(client, "hog", "t:hog", 1)
    start = eventually(lambda: witness.lindex("t:mark:1", 0))
    sleeper, hog = int(start.split()[1]), int(eventually(lambda: witness.lindex("t:hog", 0)))
    running.signal(signal.SIGTTIN)
    eventually(lambda: len(running.lines("child.stack")) == 3)
    found = stacks(running)
    assert set(found) == set(running.child_pids())
    assert {line["slot"] for line in found.values()} == {1, 2, 3}
    assert (found[sleeper]["phase"], found[sleeper]["jid"]) == ("started", sleeping)
    assert re.search(r"life_jobs.py.*line \d+ in mark", "\n".join(found[sleeper]["frames"]))
    assert (found[hog]["phase"], found[hog]["jid"]) == ("started", hogging)
    assert re.search(r"life_jobs.py.*line \d+ in hog", "\n".join(found[hog]["frames"]))
    (idle,) = set(found) - {sleeper, hog}
    assert (found[idle]["phase"], found[idle]["jid"]) == ("idle", "")
    assert "wait_for_job" in "\n".join(found[idle]["frames"])
    eventually(lambda: witness.lrange("t:mark:1", 0, -1) == [f"start {sleeper}", f"end {sleeper}"])
    eventually(lambda: witness.lrange("t:hog:done", 0, -1) == [str(hog)], 15)
    assert running.stop() == 0
    nothing_left(running, client)


def logged(running: Daemon, count: int) -> bool:
    return len(running.lines("child.stack")) == count


@pytest.mark.slow
def test_ttin_again_logs_only_the_new_stack(daemon: Start) -> None:
    running = daemon("-c", "1").ready()
    for count in (1, 2, 3):
        running.signal(signal.SIGTTIN)
        eventually(partial(logged, running, count))
    for line in running.lines("child.stack"):
        assert sum("most recent call first" in text for text in line["frames"]) == 1
    assert running.stop() == 0


def test_term_to_a_child_ends_it_after_its_job_and_it_is_replaced(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "2").ready()
    before = set(running.child_pids())
    push_raw(client, "pidof", "t:p", 1)
    busy = int(eventually(lambda: witness.lindex("t:p", 0)))
    (idle,) = before - {busy}
    for pid in before:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: len(running.children()) == 2 and not before & set(running.child_pids()), 10)
    assert witness.lrange("t:p:done", 0, -1) == [str(busy)]
    eventually(lambda: {line["child"] for line in running.lines("child.left")} == {busy, idle})
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert witness.lrange("t:p", 0, -1) == [str(busy)]
    assert running.stop() == 0
    nothing_left(running, client)


@pytest.mark.parametrize(
    "name",
    [
        "INT",
        "TSTP",
        "USR1",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("HUP", "TTIN", "CONT", "USR2", "WINCH")),
    ],
)
def test_other_signals_to_a_child_change_nothing(daemon: Start, client: Client, witness: Client, name: str) -> None:
    running = daemon("-c", "2").ready()
    before = running.child_pids()
    push_raw(client, "pidof", "t:p", 0.5)
    eventually(lambda: witness.llen("t:p") == 1)
    for pid in before:
        os.kill(pid, signal.Signals[f"SIG{name}"])
    eventually(lambda: witness.lrange("t:p:done", 0, -1) == witness.lrange("t:p", 0, -1))
    for n in range(4):
        push_raw(client, "book", n)
    eventually(lambda: witness.hlen("t:end") == 4)
    assert running.child_pids() == before
    assert running.stop() == 0
    nothing_left(running, client)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_the_server_cannot_be_reached_at_boot_is_obeyed(daemon: Start, number: signal.Signals) -> None:
    """R12."""
    running = daemon("-c", "2", url="redis://127.0.0.1:1/0")
    eventually(lambda: running.title().endswith(" waiting for Redis"), 10)
    running.signal(number)
    assert running.exited(5) == 0
    assert running.children() == []
    running.clean_log()


@pytest.mark.slow
def test_signals_while_the_server_cannot_be_reached_at_boot_are_kept(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    server = make_server()
    server.stop()
    running = daemon("-c", "1", url=server.url)
    eventually(lambda: running.title().endswith(" waiting for Redis"), 10)
    for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTSTP):
        running.signal(number)
    eventually(lambda: running.title().endswith(" quiet waiting for Redis"))
    server.start()
    with server.client() as client:
        push_raw(client, "book", 1)
        running.ready()
        eventually(lambda: running.title().endswith("[0/1 busy] quiet"))
        all_look_again(running)
        assert witness.hgetall("t:start") == {}
        running.signal(signal.SIGCONT)
        eventually(lambda: witness.hget("t:end", "1") == "1")
        assert running.stop() == 0
        nothing_left(running, client)


def test_a_stop_while_the_server_pauses_writes_leaves_the_server_alive(
    daemon: Start, server: Server, client: Client
) -> None:
    """Redis 7.0 crashes on a CLIENT UNBLOCK without ERROR of a client whose command waits for the end of a pause."""
    running = daemon("-c", "2").ready()
    client.execute_command("CLIENT", "PAUSE", 1500, "WRITE")
    pid = client.info("server")["process_id"]
    assert running.stop() == 0
    assert client.info("server")["process_id"] == pid
    running.clean_log()
