"""Children that die, and supervisors that die: every job comes back, and only the culprit is blamed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]


def alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may wait to be reaped by whoever inherited it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def booked(witness: Client, keys: list[str], count: int) -> bool:
    """Whether each of these lists has so many entries."""
    return all(witness.llen(key) == count for key in keys)


def replaced(running: Daemon, gone: set[int]) -> bool:
    """Whether eight children live and none of these is among them."""
    pids = set(running.child_pids())
    return len(pids) == 8 and not pids & gone


def test_the_job_of_a_killed_child_is_back_within_a_second_and_only_it_is_blamed(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "3").ready()
    culprit = push_raw(client, "pidof", "t:culprit", 2)
    push_raw(client, "pidof", "t:other", 3)
    pid = int(eventually(lambda: witness.lindex("t:culprit", 0)))
    other = eventually(lambda: witness.lindex("t:other", 0))
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: witness.llen("t:culprit") == 2, 1)
    assert client.keys("cogworker:orphanings:*") == [f"cogworker:orphanings:{culprit}"]
    assert client.get(f"cogworker:orphanings:{culprit}") == "1"
    assert 604_000 < client.ttl(f"cogworker:orphanings:{culprit}") <= 604_800
    eventually(lambda: witness.llen("t:culprit:done") == witness.llen("t:other:done") == 1)
    eventually(lambda: client.get("cogworker:stats:processed") == "2")
    assert witness.lrange("t:other", 0, -1) == [other]
    assert client.keys("cogworker:orphanings:*") == []  # a job that is settled is not blamed any more
    assert inprogress(client) == []
    (died,) = running.lines("child.died")
    assert died["child"] == pid
    assert "SIGKILL" in died["reason"]
    (orphaned,) = running.lines("job.orphaned")
    assert (orphaned["jid"], orphaned["job"], orphaned["blame"]) == (culprit, "pidof", True)
    eventually(lambda: len(running.children()) == 3)
    assert zombies(running.pid) == []
    assert running.stop() == 0
    running.clean_log()


def test_the_job_of_a_killed_child_goes_to_the_front_of_its_queue(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1").ready()
    jid = push_raw(client, "pidof", "t:p", 1)
    pid = int(eventually(lambda: witness.lindex("t:p", 0)))
    running.signal(signal.SIGTSTP)  # or the next child might fetch before the job is back
    eventually(lambda: running.lines("daemon.quiet"))
    for n in range(3):
        push_raw(client, "book", n)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: client.llen("cogworker:queue:default") == 4)
    assert json.loads(client.lindex("cogworker:queue:default", -1))["jid"] == jid
    running.signal(signal.SIGCONT)
    eventually(lambda: witness.hlen("t:end") == 3)
    assert running.stop() == 0


def test_an_idle_child_that_is_killed_is_replaced_and_nothing_is_blamed(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "2").ready()
    before = running.child_pids()
    os.kill(before[0], signal.SIGKILL)
    eventually(lambda: len(running.children()) == 2 and before[0] not in running.child_pids())
    assert before[1] in running.child_pids()
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert client.keys("cogworker:orphanings:*") == []
    assert running.stop() == 0
    running.clean_log()


@pytest.mark.parametrize(
    ("how", "told"),
    [("SIGKILL", "signal 9 (SIGKILL)"), ("SIGSEGV", "signal 11 (SIGSEGV)"), ("exit", "exit status 0")],
)
def test_a_job_that_ends_its_process_again_and_again_is_dead_in_the_end(
    daemon: Start, client: Client, witness: Client, how: str, told: str
) -> None:
    running = daemon("-c", "2", "--max-orphanings", "2", target="life_jobs:app").ready()
    jid = push_raw(client, "die", how, "t:die", retry=5, odd=[1])
    ((entry, score),) = eventually(lambda: client.zrange("cogworker:dead", 0, -1, withscores=True), 15)
    job: dict[str, Any] = json.loads(entry)
    assert (job["jid"], job["class"], job["odd"]) == (jid, "die", [1])
    assert job["error_class"] == "ProcessDied"
    assert told in job["error_message"]
    assert "peak RSS" in job["error_message"]
    assert abs(score - time.time()) < 60
    assert witness.llen("t:die") == 3
    assert len(set(witness.lrange("t:die", 0, -1))) == 3
    assert client.zcard("cogworker:retry") == 0
    assert client.llen("cogworker:queue:default") == 0
    assert inprogress(client) == []
    eventually(lambda: [line["blame"] for line in running.lines("job.orphaned")] == [True] * 3)
    assert client.get("cogworker:stats:failed") == "1"
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    eventually(lambda: len(running.children()) == 2)
    assert zombies(running.pid) == []
    assert running.stop() == 0
    assert client.keys("cogworker:orphanings:*") == []
    assert "Traceback" not in running.text()


def test_the_programs_that_a_killed_childs_job_had_started_end_with_it(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1", target="life_jobs:app").ready()
    push_raw(client, "with_program", "t:p")
    eventually(lambda: witness.llen("t:p") == 2)
    pid, program = (int(text) for text in witness.lrange("t:p", 0, -1))
    process = psutil.Process(program)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(process))
    eventually(lambda: witness.llen("t:p") == 4)
    running.signal(signal.SIGTERM)
    running.signal(signal.SIGINT)
    assert running.exited(8) == 0
    last = int(witness.lindex("t:p", -1))
    eventually(lambda: not psutil.pid_exists(last) or not alive(psutil.Process(last)))


@pytest.mark.slow
def test_a_death_is_noticed_although_a_grandchild_holds_the_pipe_open(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1", "--max-orphanings", "1", target="life_jobs:app").ready()
    push_raw(client, "with_heir", "t:p")
    heirs = []
    try:
        for run in range(2):
            eventually(partial(booked, witness, ["t:p"], 2 * (run + 1)))
            pid, heir = (int(text) for text in witness.lrange("t:p", -2, -1))
            heirs.append(psutil.Process(heir))
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: client.zcard("cogworker:dead") == 1)
        assert [alive(heir) for heir in heirs] == [True, True]
        push_raw(client, "book", 1)
        eventually(lambda: witness.hget("t:end", "1") == "1")
        assert running.stop() == 0
    finally:
        for process in heirs:
            if alive(process):
                process.kill()


@pytest.mark.slow
def test_c24_all_children_killed_at_once_three_times(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "8").ready()
    keys = [f"t:p{n}" for n in range(8)]
    for key in keys:
        push_raw(client, "pidof", key, 4)
    for round_ in range(1, 4):
        eventually(partial(booked, witness, keys, round_), 10)
        pids = {int(witness.lindex(key, -1)) for key in keys}
        assert len(pids) == 8
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: zombies(running.pid) == [], 1)
        eventually(partial(replaced, running, pids), 6)
    eventually(lambda: [witness.llen(f"{key}:done") for key in keys] == [1] * 8, 15)
    assert [witness.llen(key) for key in keys] == [4] * 8
    assert client.zcard("cogworker:dead") == 0
    eventually(lambda: client.get("cogworker:stats:processed") == "8")
    assert inprogress(client) == []
    assert len(running.lines("job.orphaned")) == 24
    assert running.stop() == 0
    running.clean_log()


def test_idle_children_leave_when_their_supervisor_is_killed(daemon: Start, client: Client) -> None:
    running = daemon("-c", "3").ready()
    children = running.children()
    running.process.kill()
    eventually(lambda: not [child for child in children if alive(child)], 10)
    assert inprogress(client) == []
    running.clean_log()


def test_a_busy_child_ends_its_job_and_settles_it_when_its_supervisor_is_killed(
    daemon: Start, client: Client, witness: Client
) -> None:
    """P9: it fetches nothing more."""
    running = daemon("-c", "1").ready()
    push_raw(client, "book", 1, 2)
    push_raw(client, "book", 2)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    (child,) = running.children()
    running.process.kill()
    eventually(lambda: not alive(child), 10)
    assert witness.hgetall("t:start") == witness.hgetall("t:end") == {"1": "1"}
    assert client.get("cogworker:stats:processed") == "1"
    assert inprogress(client) == []
    assert client.llen("cogworker:queue:default") == 1
    running.clean_log()

    daemon("-c", "1").ready()
    eventually(lambda: witness.hget("t:end", "2") == "1")
    assert witness.hget("t:start", "1") == "1"


@pytest.mark.slow
def test_a_failing_job_of_an_orphaned_child_is_filed_by_the_child(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1", target="life_jobs:app").ready()
    (child,) = running.children()
    jid = push_raw(client, "boom", "t:boom", 1, retry=3)
    eventually(lambda: witness.get("t:boom") == "1")
    running.process.kill()
    eventually(lambda: not alive(child), 10)
    assert [json.loads(entry)["jid"] for entry in client.zrange("cogworker:retry", 0, -1)] == [jid]
    assert client.get("cogworker:stats:failed") == "1"
    assert inprogress(client) == []


@pytest.mark.parametrize("wait", [False, True], ids=["successor at once", "successor later"])
def test_an_orphaned_child_that_is_not_done_in_time_goes_and_a_successor_does_its_job(
    daemon: Start, client: Client, witness: Client, wait: bool
) -> None:
    """P9, P22: never before the first child is gone, and without the threshold: it is seen on this machine."""
    running = daemon("-c", "1", "--shutdown-timeout", "2").ready()
    jid = push_raw(client, "pidof", "t:p", 20)
    pid = int(eventually(lambda: witness.lindex("t:p", 0)))
    child = psutil.Process(pid)
    push_raw(client, "book", 1)
    running.process.kill()
    if not wait:
        daemon("-c", "1").ready()
        eventually(lambda: witness.hget("t:end", "1") == "1", 10)

    def gone() -> bool:
        started = witness.llen("t:p")
        # In this order: what was read before the look at the process cannot have come after its end.
        running_still = alive(child)
        assert not (running_still and started > 1), "started again while the first run went on"
        return not running_still

    eventually(gone, 10)
    assert witness.llen("t:p:done") == 0
    if wait:
        assert [jid in raw for raw in inprogress(client)] == [True]
        daemon("-c", "1").ready()
    eventually(lambda: witness.llen("t:p") == 2, 15)
    assert int(witness.lindex("t:p", 1)) != pid
    assert len(inprogress(client)) == 1
    assert not client.exists(f"cogworker:orphanings:{jid}"), "only the death of a ward counts"


@pytest.mark.slow
def test_a_successor_leaves_a_living_neighbour_alone(daemon: Start, client: Client, witness: Client) -> None:
    first = daemon("-c", "1").ready()
    push_raw(client, "pidof", "t:p", 6)  # the other takes a turn every 5 s
    eventually(lambda: witness.llen("t:p") == 1)
    second = daemon("-c", "1", "--orphan-threshold", "1").ready()
    eventually(lambda: witness.llen("t:p:done") == 1, 15)
    eventually(lambda: client.get("cogworker:stats:processed") == "1")
    assert witness.llen("t:p") == 1
    assert not second.lines("recovery.done")
    assert client.scard("cogworker:processes") == 2
    assert first.stop() == second.stop() == 0


@pytest.mark.slow
def test_what_a_dead_daemon_of_another_machine_left_is_performed_and_what_a_living_one_holds_is_not(
    daemon: Start, client: Client, witness: Client
) -> None:
    """P21: old beat and no presence, seen twice."""
    dead, alive_one, fresh = "elsewhere:7:00000000dead", "elsewhere:8:000000000001", "elsewhere:9:000000000002"
    now = int(client.time()[0])
    for n, (identity, beat) in enumerate([(dead, now - 1000), (alive_one, now - 1000), (fresh, now + 3600)]):
        client.sadd("cogworker:inprogress_identities", identity)
        client.sadd("cogworker:processes", identity)
        client.hset("cogworker:last_beat", identity, beat)
        for m in range(2):
            payload = {"class": "book", "args": [f"{n}{m}"], "queue": "default", "jid": f"j{n}{m}"}
            client.lpush(f"cogworker:inprogress:{identity}", json.dumps(payload))
    client.hset(f"cogworker:process:{alive_one}", "info", "{}")
    running = daemon("-c", "1", "--orphan-threshold", "1").ready()
    eventually(lambda: witness.hgetall("t:end") == {"00": "1", "01": "1"}, 40)
    assert client.llen(f"cogworker:inprogress:{dead}") == 0
    assert client.llen(f"cogworker:inprogress:{alive_one}") == client.llen(f"cogworker:inprogress:{fresh}") == 2
    assert not client.sismember("cogworker:processes", dead)
    assert client.sismember("cogworker:inprogress_identities", alive_one)
    (line,) = running.lines("recovery.done")
    assert (line["dead"], line["requeued"]) == (dead, 2)
    assert running.stop() == 0
    assert witness.hgetall("t:start") == {"00": "1", "01": "1"}
    running.clean_log()


def test_bytes_that_end_every_process_that_reads_them_are_dead_in_the_end(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R31, R39: bytes that are no job have a count of their own, like a job."""
    running = daemon("-c", "1", "--max-orphanings", "2", target="poisoned_jobs:app").ready()
    client.lpush("cogworker:queue:default", "poison")
    eventually(lambda: client.zcard("cogworker:dead") == 1, 15)
    assert json.loads(client.zrange("cogworker:dead", 0, 0)[0])["raw_payload"] == "poison"
    assert client.keys("cogworker:orphanings:*") == []
    assert inprogress(client) == []
    assert len(running.lines("child.died")) == 3
    assert running.stop() == 0
