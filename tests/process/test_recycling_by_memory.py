"""Children that have grown: replaced after the job at hand, or killed in it where it grows beyond all measure."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from cogworkerd import App
from cogworkerd.inspect import History, Run, Store, read_attempts
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]
MIB = 2**20
RETRY, DEAD = "cogworker:retry", "cogworker:dead"
KILL = "200M"
settings = pytest.mark.parametrize("setting", ["max_rss_per_child", "max_private_per_child"])
fetches = pytest.mark.parametrize("fetch", ["reliable", pytest.param("basic", marks=pytest.mark.slow)])


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    """A client that knows the jobs by their names."""
    made = App(server.url)
    yield made
    made.client.close()


def start(daemon: Start, *flags: str, slots: int = 1, **values: Any) -> Daemon:
    """A daemon with settings, or other variables where a name is in capitals."""
    env = {name if name.isupper() else f"COGWORKERD_{name.upper()}": str(value) for name, value in values.items()}
    return daemon("-c", str(slots), *flags, target="crashing_jobs:app", env=env).ready()


def ended(witness: Client, count: int) -> bool:
    """Whether so many jobs have come to their end."""
    return bool(witness.hlen("t:end") == count)


def pids_of(witness: Client) -> list[int]:
    """The processes of the jobs that have ended, in order."""
    return [int(pid) for pid in witness.lrange("t:pids", 0, -1)]


def marks(witness: Client, jid: str) -> list[str]:
    return [mark.rsplit(" ", 1)[0] for mark in witness.lrange(f"t:marks:{jid}", 0, -1)]


def in_order(running: Daemon, client: Client, slots: int = 1, **statistics: int) -> None:
    """Every slot takes jobs, nothing is left in progress, nobody is left behind, and the daemon stops."""
    for _ in range(slots):
        push_raw(client, "meet", f"t:meeting:{running.pid}", slots, retry=False)
    counted = {"processed": 0, "failed": 0, **statistics}
    counted["processed"] += slots

    def counts() -> dict[str, int]:
        return {name: int(client.get(f"cogworker:stats:{name}") or 0) for name in counted}

    eventually(lambda: counts() == counted, 15, f"{counted}, not {counts()}")
    eventually(lambda: inprogress(client) == [])
    assert client.llen("cogworker:queue:default") == 0
    eventually(lambda: len(running.children()) == slots)
    assert client.keys("cogworker:orphanings:*") == []
    eventually(lambda: zombies(running.pid) == [])
    assert running.stop() == 0
    assert [running.lines(name) for name in ("child.died", "job.orphaned", "job.stray")] == [[]] * 3
    running.clean_log()


# ---- replaced after the job -----------------------------------------------------------------------------


@settings
@fetches
def test_a_child_that_has_grown_is_replaced_after_its_job_and_not_in_it(
    fetch: str, setting: str, daemon: Start, client: Client, witness: Client
) -> None:
    limit: dict[str, Any] = {setting: "150M"}
    running = start(daemon, "--fetch", fetch, **limit)
    (before,) = running.child_pids()
    for n, (name, megabytes, seconds) in enumerate([("swell", 200, 1.5), ("grow", 200, 1.5), ("grow", 1, 0)]):
        push_raw(client, name, n, megabytes, seconds)
    eventually(lambda: ended(witness, 3), 15)
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}
    first, second, third = pids_of(witness)
    assert first == second == before, "it is looked at after a job, and had given back what it had"
    assert third != before
    (line,) = running.lines("child.recycled")
    assert (line["reason"], line["slot"], line["level"]) == (setting, 1, "info")
    eventually(lambda: running.child_pids() == [third])
    in_order(running, client, processed=3)
    assert running.complaints() == []


@settings
@fetches
def test_where_each_child_is_too_large_from_the_start_each_does_one_job_and_there_is_no_fault_and_no_pause(
    fetch: str, setting: str, daemon: Start, client: Client, witness: Client
) -> None:
    limit: dict[str, Any] = {setting: "1M"}
    running = start(daemon, "--fetch", fetch, slots=2, **limit)
    for n in range(40):
        push_raw(client, "grow", n, 0)
    eventually(lambda: ended(witness, 40), 30)
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}
    assert len(set(pids_of(witness))) == 40
    eventually(lambda: len(running.lines("child.recycled")) == 40)
    in_order(running, client, slots=2, processed=40)
    assert running.complaints() == []
    forked = len(running.lines("child.started"))
    # The two jobs at the end have a child each, too; whether these are replaced yet when the daemon stops is open.
    assert 42 <= forked == len(running.lines("child.left")) <= 44


@settings
@pytest.mark.slow
def test_a_child_that_is_too_large_is_not_replaced_while_it_does_nothing(
    setting: str, daemon: Start, client: Client, witness: Client
) -> None:
    limit: dict[str, Any] = {setting: "1M"}
    running = start(daemon, slots=2, **limit)
    before = running.child_pids()
    (identity,) = client.smembers("cogworker:processes")
    seen: set[str] = set()

    def beats() -> int:
        seen.add(client.hget("cogworker:last_beat", identity))
        return len(seen)

    eventually(lambda: beats() >= 4, 30)
    assert running.child_pids() == before
    assert running.lines("child.recycled") == []
    push_raw(client, "grow", 1, 0)
    eventually(lambda: len(set(before) & set(running.child_pids())) == 1)
    assert pids_of(witness)[0] in before
    in_order(running, client, slots=2, processed=1)


def test_a_child_that_has_grown_right_after_a_look_at_it_is_replaced_too(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon, max_private_per_child="150M")
    running.signal(signal.SIGTSTP)
    eventually(lambda: running.lines("daemon.quiet"))
    push_raw(client, "grow", 1, 0)
    push_raw(client, "grow", 2, 200)
    running.signal(signal.SIGCONT)
    eventually(lambda: ended(witness, 2))
    eventually(lambda: running.lines("child.recycled"), 2)


@settings
def test_a_child_that_leaves_by_its_number_of_jobs_or_its_size_leaves_once(
    setting: str, daemon: Start, client: Client, witness: Client
) -> None:
    limits: dict[str, Any] = {setting: "150M", "max_jobs_per_child": 3}
    running = start(daemon, **limits)
    for n, megabytes in enumerate([0, 0, 200, 200, 0, 0, 0]):
        # A look at the private memory is due once a second.
        push_raw(client, "grow", n, megabytes, 1.1 if megabytes else 0)
    eventually(lambda: ended(witness, 7), 15)
    assert [pids_of(witness).count(pid) for pid in dict.fromkeys(pids_of(witness))] == [3, 1, 3]
    eventually(lambda: len(running.lines("child.left")) == 3)
    assert [line["reason"] for line in running.lines("child.recycled")] == [setting, setting, "max_jobs_per_child"]
    in_order(running, client, processed=7)


# ---- shared memory --------------------------------------------------------------------------------------

BALLAST = 300


def memory_rows(text: str) -> tuple[int, list[list[int]]]:
    """What `status --memory` says, in MiB: PSS in all, and of each slot RSS, PSS, private, shared."""
    total = re.search(r"PSS (\d+) MiB in all", text)
    assert total is not None, text
    rows = [re.findall(r"(\d+) MiB", line) for line in text.splitlines()[2:]]
    return int(total[1]), [[int(size) for size in row] for row in rows]


@pytest.mark.slow
def test_what_a_preloaded_app_holds_is_there_once_and_the_status_says_what_is_shared_and_what_is_private(
    daemon: Start, server: Server, client: Client
) -> None:
    running = start(daemon, "--preload", slots=4, BALLAST=BALLAST)
    for _ in range(4):
        push_raw(client, "meet", "t:first", 4)
    eventually(lambda: client.get("cogworker:stats:processed") == "4", 10)
    processes = [psutil.Process(running.pid), *running.children()]
    found = [process.memory_full_info() for process in processes]
    total = sum(each.pss for each in found)
    assert all(each.rss > BALLAST * MIB for each in found)
    assert BALLAST * MIB < total < 450 * MIB

    def told() -> str:
        command = (sys.executable, "-m", "cogworkerd", "status", "--memory", "--redis-url", server.url)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return "" if "unknown" in done.stdout else done.stdout

    # A process is asked at each beat, one after the other.
    text = eventually(told, 45, "each process was asked")
    told_total, rows = memory_rows(text)
    assert abs(told_total * MIB - total) < 60 * MIB
    assert len(rows) == 4
    for rss, pss, private, shared in rows:
        assert rss > BALLAST
        assert private < 60
        assert shared >= BALLAST
        assert abs(rss - private - shared) <= 1
        assert private <= pss < rss / 2
    assert all(str(pid) in text for pid in running.child_pids())
    in_order(running, client, slots=4, processed=4)


def test_shared_memory_counts_for_the_one_limit_and_not_for_the_other(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon, "--preload", BALLAST=BALLAST, max_private_per_child="150M")
    (before,) = running.child_pids()
    for n in range(3):
        push_raw(client, "grow", n, 0, 1.1)
    eventually(lambda: ended(witness, 3), 15)
    assert running.child_pids() == [before]
    in_order(running, client, processed=3)
    assert running.lines("child.recycled") == []

    client.flushall()
    witness.flushall()
    running = start(daemon, "--preload", BALLAST=BALLAST, max_rss_per_child="150M")
    for n in range(3):
        push_raw(client, "grow", n, 0)
    eventually(lambda: ended(witness, 3), 15)
    assert len(set(pids_of(witness))) == 3
    in_order(running, client, processed=3)


# ---- killed in the job ----------------------------------------------------------------------------------


def blown_up(app: App, client: Client, jid: str, key: str = RETRY, failures: int = 1) -> Run:
    """Wait until the job is written down as one that took too much memory, everywhere; its newest run."""

    def entry() -> dict[str, Any] | None:
        found = [each for each in map(json.loads, client.zrange(key, 0, -1)) if each["jid"] == jid]
        return found[0] if found and found[0]["retry_count"] == failures else None

    filed: Any = eventually(entry, 15, f"{jid} in {key}")
    said = re.fullmatch(r"its process has (\d+) MiB, more than kill_rss = 200 MiB", filed["error_message"])
    assert said is not None, filed["error_message"]
    assert 200 <= int(said[1]) < 1000
    assert filed["error_class"] == "JobMemoryExceeded"
    eventually(lambda: len(read_attempts(Store.of(app), jid)) == failures)
    attempts = read_attempts(Store.of(app), jid)
    assert {each.error_class for each in attempts} == {"JobMemoryExceeded"}
    assert attempts[-1].outcome == ("retrying" if key == RETRY else "dead")
    history = History(Store.of(app))
    eventually(lambda: len(history.of_job(jid, "failed")) == failures)
    runs = history.of_job(jid, "failed")
    assert (runs[0].error_class, runs[0].error_message) == ("JobMemoryExceeded", filed["error_message"])
    # The kernel counts in batches, one for each CPU: a little is missing now and then.
    assert runs[0].fields["rss_peak_kb"] >= (int(said[1]) - 10) * 1024
    wanted = "retrying" if key == RETRY else "failed"
    status: Any = eventually(lambda: (each := app.status(jid)) and each.status == wanted and each)
    assert (status.error_class, status.error_message) == ("JobMemoryExceeded", filed["error_message"])
    return runs[0]


@fetches
def test_a_job_that_grows_beyond_all_measure_is_killed_with_its_processes_and_has_failed(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--fetch", fetch, slots=2, kill_rss=KILL)
    other = push_raw(client, "last", 3)
    eventually(lambda: marks(witness, other))
    before = running.child_pids()
    jid = push_raw(client, "bomb")
    run = blown_up(app, client, jid)
    assert any(re.search(r'/crashing_jobs\.py", line \d+ in bomb$', line) for line in run.backtrace)
    (killed,) = running.lines("child.killed")
    assert killed["why"] == f"JobMemoryExceeded: {run.error_message}"
    assert running.lines("job.interrupted") == [], "nothing is raised in it first"
    assert marks(witness, jid) == ["began"]
    for pid in witness.lrange(f"t:processes:{jid}", 0, -1):
        eventually(lambda pid=int(pid): not psutil.pid_exists(pid))
    eventually(lambda: marks(witness, other) == ["began", "ended"])
    eventually(lambda: len(running.child_pids()) == 2)
    assert len(set(before) & set(running.child_pids())) == 1
    in_order(running, client, slots=2, processed=1, failed=1)
    assert not witness.exists("t:deaths")


@pytest.mark.slow
def test_a_job_that_keeps_growing_is_dead_when_no_retry_is_left_and_holds_its_lock_until_then(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    def push() -> str | None:
        return app.push("bomb", unique="until_executed", retry=1)

    running = start(daemon, kill_rss=KILL)
    jid = push()
    assert jid is not None
    blown_up(app, client, jid)
    (lock,) = client.keys("cogworker:unique:*")
    assert client.get(lock) == jid
    assert push() is None
    (raw,) = client.zrange(RETRY, 0, -1)
    client.zadd(RETRY, {raw: 1})
    blown_up(app, client, jid, DEAD, failures=2)
    eventually(lambda: not client.exists(lock))
    eventually(lambda: witness.lrange("t:deaths", 0, -1) == [jid], 10)
    in_order(running, client, failed=2)
    assert witness.lrange("t:deaths", 0, -1) == [jid]


def test_the_job_after_one_that_was_killed_for_its_size_is_not_hit(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, kill_rss=KILL)
    jid = push_raw(client, "bomb", retry=False)
    others = [push_raw(client, name, *args) for name, args in [("last", [1]), *[("note", [n]) for n in range(20)]]]
    blown_up(app, client, jid, DEAD)
    eventually(lambda: client.get("cogworker:stats:processed") == str(len(others)), 10)
    assert all(marks(witness, other) for other in others)
    assert len(running.lines("child.killed")) == 1
    in_order(running, client, processed=len(others), failed=1)


def test_a_job_in_a_process_that_the_one_before_it_made_too_large_is_not_hit(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon, kill_rss=KILL)
    # The supervisor is to see the process only when the job that made it large is over.
    os.kill(running.pid, signal.SIGSTOP)
    push_raw(client, "grow", 1, 300)
    jid = push_raw(client, "last", 1.5)
    try:
        eventually(lambda: ended(witness, 1))
    finally:
        os.kill(running.pid, signal.SIGCONT)
    eventually(lambda: marks(witness, jid) == ["began", "ended"] or client.zcard(RETRY), 10)
    assert client.zcard(RETRY) == 0
    in_order(running, client, processed=2)


def test_a_job_below_the_limit_is_left_alone(daemon: Start, client: Client, witness: Client) -> None:
    running = start(daemon, kill_rss="400M")
    push_raw(client, "swell", 1, 200, 1.5)
    eventually(lambda: ended(witness, 1), 10)
    assert running.lines("child.killed") == []
    in_order(running, client, processed=1)


@pytest.mark.slow
def test_a_job_that_grows_in_a_drain_is_killed_too(daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = start(daemon, "--shutdown-timeout", "20", kill_rss=KILL)
    jid = push_raw(client, "bomb", 1)
    eventually(lambda: marks(witness, jid))
    running.signal(signal.SIGTERM)
    assert running.exited(15) == 0
    filed = [json.loads(raw) for raw in client.zrange(RETRY, 0, -1)]
    assert [(each["jid"], each["error_class"]) for each in filed] == [(jid, "JobMemoryExceeded")]
    assert inprogress(client) == []
    assert client.llen("cogworker:queue:default") == 0
