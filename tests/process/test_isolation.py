"""Processes that share nothing by accident: descriptors, connections, threads, masks, random numbers, forks of jobs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]


def descriptors(pid: int) -> dict[str, set[int]]:
    """The inodes behind a process's descriptors (standard ones left out) by kind: pipe, socket, memory file, epoll."""
    found: dict[str, set[int]] = {"pipe": set(), "socket": set(), "memfd": set(), "anon_inode": set(), "null": set()}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
            inode = entry.stat().st_ino
        except FileNotFoundError:
            continue
        if int(entry.name) <= 2:
            continue
        if target.startswith(f"/proc/{pid}/"):
            continue  # by which it measures itself
        kind = target.partition(":")[0].lstrip("/")
        if target == os.devnull:
            kind = "null"
        assert kind in found, f"{pid} has {entry.name} -> {target}"
        found[kind].add(inode)
    return found


def signs_of_life() -> set[int]:
    """Inodes of the abstract sockets that are named after identities: all processes of one daemon hold the same."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return {int(line.split()[6]) for line in lines if line.split()[-1].startswith("@cogworkerd-")}


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def assert_descriptors_are_apart(running: Daemon) -> None:
    parent = descriptors(running.pid)
    children = {pid: descriptors(pid) for pid in running.child_pids()}
    life = signs_of_life()
    for pid, own in children.items():
        # Its ends of two pipes of its own: for reports, and for the parent's life.
        assert len(own["pipe"] & parent["pipe"]) == 2
        assert own["socket"] & parent["socket"] <= life
        assert not own["anon_inode"], "the parent's epoll is shared: a child must not have it"
        # The page of orders, and the stack of its slot.
        assert len(own["memfd"] & parent["memfd"]) == 3
        for other, theirs in children.items():
            if other != pid:
                assert not own["pipe"] & theirs["pipe"]
                assert own["socket"] & theirs["socket"] <= life
                assert len(own["memfd"] & theirs["memfd"]) == 1


def test_c22_children_hold_no_descriptor_that_is_not_theirs(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "4").ready()
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert_descriptors_are_apart(running)
    # A child that is forked later could inherit what the parent has opened since.
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("roll.done"), 20)
    assert_descriptors_are_apart(running)
    ready = reports_of_ready(running)
    os.kill(running.child_pids()[0], signal.SIGKILL)
    eventually(lambda: reports_of_ready(running) == ready + 1)
    assert_descriptors_are_apart(running)
    assert running.stop() == 0
    running.clean_log()


def reports_of_ready(running: Daemon) -> int:
    return len([line for line in running.lines("report") if line["kind"] == "READY"])


def supervisors_connections(running: Daemon, client: Client) -> set[str]:
    """The ids of the supervisor's connections, found by their ports."""
    ports = {link.laddr.port for link in psutil.Process(running.pid).net_connections("tcp") if link.laddr}
    return {entry["id"] for entry in client.client_list() if int(entry["addr"].rpartition(":")[2]) in ports}


@pytest.mark.parametrize("jobs", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_c22_hundreds_of_forks_leave_the_supervisors_connections_alone(
    daemon: Start, client: Client, jobs: int
) -> None:
    running = daemon("-c", "4", "-q", "default", "--max-jobs-per-child", "1").ready()

    def perform(count: int, done: int) -> None:
        for _ in range(count):
            push_raw(client, "noop")
        eventually(lambda: client.get("cogworker:stats:processed") == str(done + count), 120)
        eventually(lambda: len([entry for entry in client.client_list() if "-slot-" in entry["name"]]) == 4, 15)

    perform(20, 0)  # the supervisor makes its connections when it needs them
    before, all_before = supervisors_connections(running, client), len(client.client_list())
    assert before
    perform(jobs, 20)
    assert before <= supervisors_connections(running, client)
    eventually(lambda: len(client.client_list()) <= all_before + 1)
    assert not running.lines("redis.away")
    assert_descriptors_are_apart(running)
    assert running.stop() == 0
    running.clean_log()


def test_c21_a_job_that_forks_and_returns_twice_leaves_one_slot(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "2", target="life_jobs:app").ready()
    before = running.child_pids()
    push_raw(client, "split", retry=0)
    for n in range(50):
        push_raw(client, "book", n, 0.05)
    eventually(lambda: witness.hlen("t:end") == 50, 20)
    push_raw(client, "pool", "t:pool")
    eventually(lambda: witness.hget("t:pool", "pids"))
    assert json.loads(witness.hget("t:pool", "result")) == [1, 2]
    assert not [pid for pid in json.loads(witness.hget("t:pool", "pids")) if psutil.pid_exists(pid)]
    eventually(lambda: client.get("cogworker:stats:processed") == "52")
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}
    assert inprogress(client) == []
    eventually(lambda: len(psutil.Process(running.pid).children(recursive=True)) == 2, 3)
    assert running.child_pids() == before
    assert zombies(running.pid) == []
    (forked,) = running.lines("job.forked")
    assert forked["level"] == "warning"
    assert not running.lines("child.killed")
    assert not running.lines("job.stray")
    assert running.stop() == 0
    running.clean_log()


def test_c72_every_child_and_every_respawn_has_random_numbers_of_its_own(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "8", "--max-jobs-per-child", "1", target="life_jobs:app").ready()
    for _ in range(8):
        push_raw(client, "dice", "t:dice", 1)
    eventually(lambda: witness.llen("t:dice") == 8)
    for _ in range(32):
        push_raw(client, "dice", "t:dice")
    eventually(lambda: witness.llen("t:dice:jids") == 40, 60)
    rows = [json.loads(text) for text in witness.lrange("t:dice", 0, -1)]
    for column in zip(*rows, strict=True):
        assert len(set(column)) == 40
    assert len(set(witness.lrange("t:dice:jids", 0, -1))) == 40
    assert len({pid for pid, *_ in rows[:8]}) == 8
    assert running.stop() == 0


@pytest.mark.slow
def test_c72_the_next_tries_of_jobs_that_fail_together_are_spread(daemon: Start, client: Client) -> None:
    running = daemon("-c", "4", target="life_jobs:app").ready()
    for _ in range(20):
        push_raw(client, "boom", retry=3)
    eventually(lambda: client.zcard("cogworker:retry") == 20)
    scores = [score for _, score in client.zrange("cogworker:retry", 0, -1, withscores=True)]
    assert max(scores) - min(scores) > 5
    assert running.stop() == 0


def test_the_supervisor_has_one_thread_also_under_load_and_with_a_host_name(
    daemon: Start, client: Client, server: Server, witness: Client
) -> None:
    running = daemon("-c", "2", url=f"redis://localhost:{server.port}/0").ready()
    counts = set()

    def worked(count: int) -> bool:
        counts.add(status(running.pid)["Threads"])
        counts.update(status(pid)["Threads"] for pid in running.child_pids())
        return bool(witness.hlen("t:end") == count)

    eventually(lambda: status(running.pid)["Threads"] == "1")  # a look-up has a thread that ends with it
    for n in range(1000):
        push_raw(client, "book", n)
    eventually(lambda: worked(1000), 60)
    assert counts == {"1"}
    assert running.stop() == 0
    running.clean_log()


def test_masks_groups_and_ignored_signals_of_children_are_their_own(daemon: Start) -> None:
    running = daemon("-c", "2").ready()
    for round_ in range(2):
        for pid in (running.pid, *running.child_pids()):
            masks = status(pid)
            assert int(masks["SigBlk"], 16) == 0
            assert int(masks["SigPnd"], 16) == int(masks["ShdPnd"], 16) == 0
        assert {os.getpgid(pid) for pid in running.child_pids()} == set(running.child_pids())
        if round_ == 0:
            running.signal(signal.SIGHUP)
            eventually(lambda: running.lines("roll.done"), 20)
    assert running.stop() == 0


def test_an_import_that_leaves_a_thread_makes_the_daemon_start_anew_without_preload(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "2", target="life_thread_at_import:app").ready()
    (warning,) = running.lines("preload.threads")
    assert warning["level"] == "warning"
    assert warning["threads"] == "the-metrics-thread"
    for n in range(10):
        push_raw(client, "threads", n)
    eventually(lambda: witness.hlen("t:threads") == 10)
    assert set(witness.hvals("t:threads")) == {"MainThread the-metrics-thread"}
    assert status(running.pid)["Threads"] == "1"
    running.signal(signal.SIGUSR2)
    eventually(lambda: running.lines("roll.done"), 20)
    assert len(running.lines("preload.threads")) == 2, "each program says it once"
    (done,) = running.lines("renewal.done")
    assert done["adopted"] == 2
    assert running.stop() == 0
    running.clean_log()


def test_a_client_that_was_opened_at_import_works_in_every_child(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "4", target="life_client_at_import:app").ready()
    assert witness.get("t:import") == str(running.pid)
    for _ in range(4):
        push_raw(client, "ident", 0.5)
    eventually(lambda: witness.hlen("t:idents") == 4)
    idents = witness.hgetall("t:idents")
    assert sorted(int(pid) for pid in idents) == running.child_pids()
    assert len(set(idents.values())) == 4
    for _ in range(8):
        push_raw(client, "ident", 0)
    eventually(lambda: client.get("cogworker:stats:processed") == "12")
    assert witness.hgetall("t:idents") == idents
    assert running.stop() == 0
    running.clean_log()


def test_hooks_run_in_each_child_before_its_first_job_and_before_it_leaves(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "2", target="life_hooks:app").ready()
    first = set(running.child_pids())
    for n in range(4):
        push_raw(client, "book", n)
    eventually(lambda: witness.hlen("t:begun") == 4)
    assert set(witness.hvals("t:begun")) == {"1"}
    running.signal(signal.SIGHUP)
    eventually(lambda: running.lines("roll.done"), 20)
    everyone = first | set(running.child_pids())
    assert {int(pid) for pid in witness.lrange("t:finish", 0, -1)} == first
    assert running.stop() == 0
    for key in ("t:begin", "t:finish", "t:finish:first"):
        assert sorted(int(pid) for pid in witness.lrange(key, 0, -1)) == sorted(everyone)
    running.clean_log()


def test_a_start_hook_that_raises_is_a_failed_start_and_the_next_child_comes_later(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1", target="life_hooks:app", env={"START": "raises once"})
    running.ready()
    (failed,) = running.lines("child.hook_failed")
    assert "begin" in failed["hook"]
    assert "no pool to be had" in failed["exception"]
    (died,) = running.lines("child.died")
    assert died["respawn_in"] >= 1
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:begun", "1") == "1")
    assert witness.llen("t:begin") == 2
    assert running.stop() == 0


@pytest.mark.slow
def test_a_start_hook_that_always_raises_fetches_nothing_and_the_daemon_can_be_stopped(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1", target="life_hooks:app", env={"START": "raises"})
    push_raw(client, "book", 1)
    eventually(lambda: len(running.lines("child.died")) == 3, 15)
    assert [line["respawn_in"] for line in running.lines("child.died")] == [1, 2, 4]
    assert not running.lines("daemon.ready")
    assert client.llen("cogworker:queue:default") == 1
    assert running.stop(5) == 0
    assert client.llen("cogworker:queue:default") == 1


def test_a_start_hook_that_hangs_is_ended_at_the_boot_deadline(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "1", "--boot-timeout", "2", target="life_hooks:app", env={"START": "hangs"})
    running.ready()
    (killed,) = running.lines("child.killed")
    assert "2 s" in killed["why"]
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:begun", "1") == "1")
    assert running.stop() == 0


def test_a_stop_while_a_start_hook_hangs_ends_in_time(daemon: Start, witness: Client) -> None:
    running = daemon("-c", "1", "--shutdown-timeout", "1", target="life_hooks:app", env={"START": "hangs"})
    eventually(lambda: witness.llen("t:begin") == 1, 10)
    assert running.stop(4) == 0


@pytest.mark.parametrize(("how", "told"), [("raises", "the flush failed"), ("hangs", "more than 2 s")])
def test_a_stop_hook_that_raises_or_hangs_keeps_neither_the_next_hook_nor_the_stop(
    daemon: Start, client: Client, witness: Client, how: str, told: str
) -> None:
    running = daemon("-c", "2", target="life_hooks:app", env={"STOP": how}).ready()
    pids = running.child_pids()
    assert running.stop(8) == 0
    failed = running.lines("child.hook_failed")
    assert len(failed) == 2
    for line in failed:
        assert "on_child_stop end" in line["hook"]
        assert told in line["exception"]
    assert sorted(int(pid) for pid in witness.lrange("t:finish", 0, -1)) == pids
    assert not running.lines("child.killed")
    assert client.smembers("cogworker:inprogress_identities") == set()


@pytest.mark.slow
def test_a_child_that_waits_long_is_not_a_busy_loop(daemon: Start) -> None:
    """Neither the idle supervisor nor an idle or a quiet child uses the processor for nothing."""
    running = daemon("-c", "2", "--log-level", "info").ready()
    processes = [psutil.Process(running.pid), *running.children()]
    for number in (None, signal.SIGTSTP):
        if number is not None:
            running.signal(number)
            eventually(lambda: running.title().endswith(" quiet"))
        before = [sum(process.cpu_times()[:2]) for process in processes]
        time.sleep(2)
        used = [sum(process.cpu_times()[:2]) - start for process, start in zip(processes, before, strict=True)]
        assert max(used) < 0.5, used
    assert running.stop() == 0
