"""Death hooks: called once for each job that goes to dead, where it died or in an errand, never in the supervisor."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]
DEAD = "cogworker:dead"
preload = pytest.mark.parametrize("preload", ["--preload", pytest.param("--no-preload", marks=pytest.mark.slow)])


def start(daemon: Start, *flags: str, **options: Any) -> Daemon:
    return daemon("-c", "1", *flags, target="hooked_jobs:app", **options).ready()


def deaths(witness: Client) -> list[dict[str, Any]]:
    """What the hooks have noted, in their order."""
    return [json.loads(line) for line in witness.lrange("t:deaths", 0, -1)]


def called(witness: Client, *hooks: str) -> list[dict[str, Any]]:
    """Wait until these hooks and no others were called, in this order; what they have noted."""
    eventually(lambda: len(deaths(witness)) >= len(hooks), 20, "hooks called")
    found = deaths(witness)
    assert [line["hook"] for line in found] == list(hooks)
    return found


def in_an_errand(running: Daemon, line: dict[str, Any], children: list[int]) -> bool:
    """Whether a hook was called in a process of its own, by this supervisor."""
    return line["parent"] == running.pid and line["pid"] not in [running.pid, *children] and not line["same"]


def assert_in_order(running: Daemon, client: Client) -> None:
    """The supervisor is as it was: one thread, nobody left, a child that works; and it stops."""
    assert psutil.Process(running.pid).num_threads() == 1
    jid = push_raw(client, "look")
    eventually(lambda: [line for line in running.lines("job.done") if line["jid"] == jid])
    eventually(lambda: zombies(running.pid) == [])
    eventually(lambda: len(psutil.Process(running.pid).children()) == len(running.children()))
    assert inprogress(client) == []
    assert running.stop() == 0


def park(client: Client, do: str) -> None:
    """A death that no child of ours can tell: its first hook is to do this in an errand. For a daemon yet to start."""
    job = {"class": "fatal", "jid": "j1", "args": [do], "queue": "default", "retry_count": 1}
    client.rpush("cogworker:unsettled", json.dumps({"set": DEAD, "score": 1, "payload": json.dumps(job)}))


def calls_so_far(running: Daemon, client: Client, witness: Client) -> int:
    """How many hooks were called, after all that could still come: another death has gone the whole way."""
    client.zadd("cogworker:schedule", {"not a job either": 1})  # its hook is the supervisor's to call, behind others
    before = {line["jid"] for line in deaths(witness)}

    def others() -> list[dict[str, Any]]:
        return [line for line in deaths(witness) if line["name"] == "(unparseable)" and line["jid"] not in before]

    eventually(others, 10)
    return len(deaths(witness)) - len(others())


# ---- in the child ---------------------------------------------------------------------------------------


@preload
@pytest.mark.parametrize("do", ["", "raise", pytest.param("exit", marks=pytest.mark.slow)])
def test_the_child_calls_the_jobs_hooks_then_the_apps_each_on_its_own_with_the_very_error(
    do: str, preload: str, daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon, preload)
    (child,) = running.child_pids()
    jid = push_raw(client, "fatal", do, queue="default", retry=False)
    for line in called(witness, "first", "second", "of all"):
        assert (line["name"], line["jid"], line["attempt"], line["queue"]) == ("fatal", jid, 1, "default")
        assert (line["error"], line["text"], line["same"]) == ("ValueError", "for good", True)
        assert (line["pid"], line["parent"]) == (child, running.pid)
        assert line["dead"] == 1, "it was called before the entry was in dead"
        assert line["current"]
    eventually(lambda: client.get("cogworker:stats:failed") == "1")
    failed = [(line["hook"], line["error"]) for line in running.lines("death_hook.failed")]
    assert failed == {"": [], "raise": [("first", "RuntimeError")], "exit": [("first", "SystemExit")]}[do]
    assert running.child_pids() == [child]
    assert calls_so_far(running, client, witness) == 3
    assert_in_order(running, client)


def test_hooks_are_called_for_each_death_and_for_nothing_else(daemon: Start, client: Client, witness: Client) -> None:
    running = start(daemon)
    kept = push_raw(client, "fails", retry=3)
    push_raw(client, "fails", "discard", retry=0)
    push_raw(client, "fails", retry=0, meta={"do": "swallow"})
    dead = [
        push_raw(client, "fails", retry=0),
        push_raw(client, "fails", "bury", retry=3),
        push_raw(client, "fails", "retry", 5, retry=0),
        push_raw(client, "fails", retry=0, meta={"do": "replace"}),
        push_raw(client, "nobody", retry=0),
    ]
    found = called(witness, *["of all"] * 5)
    assert [(line["jid"], line["error"]) for line in found] == list(
        zip(dead, ["ValueError", "Bury", "Retry", "KeyError", "UnknownJob"], strict=True)
    )
    assert [line["dead"] for line in found] == [1] * 5
    assert client.zcard("cogworker:retry") == 1
    assert kept in client.zrange("cogworker:retry", 0, -1)[0]
    assert calls_so_far(running, client, witness) == 5
    assert_in_order(running, client)


def test_a_hook_whose_child_is_killed_in_it_is_not_called_again(daemon: Start, client: Client, witness: Client) -> None:
    running = start(daemon)
    (child,) = running.child_pids()
    jid = push_raw(client, "fatal", "kill", retry=False)
    (line,) = called(witness, "first")
    assert line["pid"] == child
    eventually(lambda: running.lines("settle.done"))
    eventually(lambda: running.child_pids() not in ([], [child]))
    assert calls_so_far(running, client, witness) == 1
    assert [jid in entry for entry in client.zrange(DEAD, 0, -1)].count(True) == 1
    assert client.keys("cogworker:orphanings:*") == []
    assert_in_order(running, client)


def test_a_copy_of_the_child_that_a_hook_leaves_behind_calls_no_hooks(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    (child,) = running.child_pids()
    push_raw(client, "fatal", "fork", retry=False)
    eventually(lambda: running.lines("job.forked"))
    eventually(lambda: len([line for line in deaths(witness) if line["pid"] == child]) == 3)
    assert [line["hook"] for line in deaths(witness) if line["pid"] != child] == []
    assert running.child_pids() == [child]
    assert_in_order(running, client)


def test_a_hook_that_does_not_end_is_killed_with_its_child_at_a_stop_and_not_called_again(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon, "--shutdown-timeout", "1")
    push_raw(client, "fatal", "hang", retry=False)
    called(witness, "first")
    assert running.stop(10) == 0
    assert client.zcard(DEAD) == 1
    assert client.llen("cogworker:unsettled") == 0
    assert inprogress(client) == []
    successor = start(daemon)
    assert calls_so_far(successor, client, witness) == 1
    assert_in_order(successor, client)


@pytest.mark.slow
def test_an_orphaned_child_calls_the_hooks_of_its_last_job_and_a_successor_does_not(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    (child,) = running.children()
    push_raw(client, "fatal", "", 1, retry=False)
    eventually(lambda: witness.llen("t:waits") == 1)
    running.process.kill()
    found = called(witness, "first", "second", "of all")
    assert {(line["pid"], line["same"], line["dead"]) for line in found} == {(child.pid, True, 1)}
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 10)
    successor = start(daemon)
    assert calls_so_far(successor, client, witness) == 3
    assert witness.llen("t:waits") == 1
    assert_in_order(successor, client)


# ---- in an errand ---------------------------------------------------------------------------------------


@preload
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_hooks_of_a_child_that_died_after_its_job_are_called_in_errands(
    when: str, preload: str, daemon: Start, client: Client, witness: Client
) -> None:
    """Before the settlement or after it: the child had not begun with them."""
    running = start(daemon, preload)
    (child,) = running.child_pids()
    jid = push_raw(client, "doomed", when, retry=False)
    (line,) = called(witness, "of all")
    assert in_an_errand(running, line, [child])
    assert (line["name"], line["jid"], line["attempt"], line["dead"]) == ("doomed", jid, 1, 1)
    assert (line["error"], line["told"], line["text"]) == ("RecordedError", "ValueError", "ValueError: doomed")
    assert line["current"]
    assert line["threads"] == 1
    assert client.get("cogworker:stats:failed") == "1"
    starts = [json.loads(line)["pid"] for line in witness.lrange("t:started", 0, -1)]
    assert line["pid"] in starts, "what on_child_start opens is there for a hook, too"
    assert calls_so_far(running, client, witness) == 1
    assert_in_order(running, client)


@preload
@pytest.mark.parametrize("fetch", ["reliable", pytest.param("basic", marks=pytest.mark.slow)])
def test_r48_a_job_that_killed_its_process_four_times_is_dead_and_its_hooks_are_called_once(
    fetch: str, preload: str, daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon, preload, "--fetch", fetch)
    jid = push_raw(client, "killed", retry=3)
    found = called(witness, "first", "of all")
    assert witness.get("t:runs") == "4"
    assert len({line["pid"] for line in found}) == 2, "each has a process of its own"
    for line in found:
        assert in_an_errand(running, line, running.child_pids())
        assert (line["jid"], line["dead"], line["error"], line["told"]) == (jid, 1, "RecordedError", "ProcessDied")
        assert "4 times" in line["text"]
    assert client.get("cogworker:stats:failed") == "1"
    assert calls_so_far(running, client, witness) == 2
    assert_in_order(running, client)


@preload
def test_r48_of_two_daemons_one_calls_the_hooks_for_the_repeat_orphan_of_a_dead_one(
    preload: str, daemon: Start, client: Client, witness: Client
) -> None:
    gone = start(daemon)
    jid = push_raw(client, "waits", 60)
    eventually(lambda: witness.llen("t:waits") == 1)
    client.set(f"cogworker:orphanings:{jid}", 3)
    client.sadd("cogworker:x:wards", *client.smembers("cogworker:processes"))  # so that its death counts
    both = [start(daemon, preload) for _ in range(2)]
    (child,) = gone.children()
    gone.process.kill()
    child.kill()
    (line,) = called(witness, "of all")
    assert (line["jid"], line["name"], line["dead"], line["told"]) == (jid, "waits", 1, "ProcessDied")
    children = [pid for running in both for pid in running.child_pids()]
    (caller,) = [running for running in both if in_an_errand(running, line, children)]
    assert len(caller.lines("job.buried")) == 1
    assert client.get("cogworker:stats:failed") == "1"
    assert calls_so_far(caller, client, witness) == 1
    for running in both:
        assert psutil.Process(running.pid).num_threads() == 1
        assert running.stop() == 0
    assert witness.llen("t:waits") == 1
    assert len(deaths(witness)) == 2


@preload
def test_r48_the_hooks_of_a_parked_record_are_called_by_who_files_it_if_it_goes_to_dead(
    preload: str, daemon: Start, client: Client, witness: Client
) -> None:
    def record(jid: str, target: str) -> str:
        job = {"class": "fatal", "jid": jid, "args": [], "queue": "default", "retry_count": 2}
        failure = {"error_class": "ValueError", "error_message": "long ago"}
        return json.dumps({"set": target, "score": 4e9, "payload": json.dumps({**job, **failure})})

    client.rpush("cogworker:unsettled", *(record(f"jid-of-{set}", f"cogworker:{set}") for set in ("retry", "schedule")))
    client.rpush("cogworker:unsettled", record("jid-of-dead", DEAD))
    running = start(daemon, preload)
    for line in called(witness, "first", "second", "of all"):
        assert in_an_errand(running, line, running.child_pids())
        assert (line["jid"], line["dead"], line["attempt"]) == ("jid-of-dead", 1, 2)
        assert (line["error"], line["told"], line["text"]) == ("RecordedError", "ValueError", "ValueError: long ago")
    assert calls_so_far(running, client, witness) == 3
    assert_in_order(running, client)


@pytest.mark.slow
def test_r48_an_outcome_that_was_parked_at_a_stop_has_its_hooks_called_by_who_files_it(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    """R47."""

    def allow(keys: str) -> None:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "resetkeys", keys, "&*", "+@all")

    server = make_server()
    with server.client() as client:
        allow("~*")
        first = start(daemon, url=f"redis://worker:secret@127.0.0.1:{server.port}/0")
        allow("~cogworker:[^d]*")
        jid = push_raw(client, "fatal", retry=False)
        eventually(lambda: any(line["site"] == "settle" for line in first.lines("redis.refusing")), 15)
        assert first.stop() == 0
        assert client.llen("cogworker:unsettled") == 1
        assert deaths(witness) == []
        second = start(daemon, url=server.url)
        for line in called(witness, "first", "second", "of all"):
            assert in_an_errand(second, line, second.child_pids())
            assert (line["jid"], line["dead"], line["told"]) == (jid, 1, "ValueError")
        assert calls_so_far(second, client, witness) == 3
        assert_in_order(second, client)


def test_r48_a_death_whose_entry_the_server_has_lost_has_its_hooks_called(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "fatal", "", 1, retry=False)
    eventually(lambda: witness.llen("t:waits") == 1)
    for key in client.keys("cogworker:inprogress:*"):
        client.delete(key)
    for line in called(witness, "first", "second", "of all"):
        assert in_an_errand(running, line, running.child_pids())
        assert (line["jid"], line["dead"], line["told"]) == (jid, 1, "ValueError")
    assert len(running.lines("job.vanished")) == 1
    assert calls_so_far(running, client, witness) == 3
    assert_in_order(running, client)


@preload
@pytest.mark.parametrize("where", ["queue", "schedule", pytest.param("retry", marks=pytest.mark.slow)])
def test_r48_for_bytes_that_are_no_job_the_hooks_of_the_app_are_called(
    where: str, preload: str, daemon: Start, client: Client, witness: Client
) -> None:
    """R31."""
    running = start(daemon, preload)
    if where == "queue":
        client.lpush("cogworker:queue:default", "nonsense")
    else:
        client.zadd(f"cogworker:{where}", {"nonsense": 1})
    (line,) = called(witness, "of all")
    assert (line["name"], line["attempt"], line["dead"]) == ("(unparseable)", 1, 1)
    assert (line["error"], line["told"]) == ("RecordedError", "Unparseable")
    assert "not JSON" in line["text"]
    if where == "queue":
        assert [line["pid"]] == running.child_pids()
    else:
        assert in_an_errand(running, line, running.child_pids())
    assert calls_so_far(running, client, witness) == 1
    assert_in_order(running, client)


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("raise", ""),
        pytest.param("exit", "", marks=pytest.mark.slow),
        ("kill", "SIGKILL"),
        ("hang", "SIGALRM|not done after 1.5 s"),
    ],
)
def test_a_hook_that_fails_dies_or_hangs_in_its_errand_harms_no_other(
    do: str, reason: str, daemon: Start, client: Client, witness: Client
) -> None:
    park(client, do)
    running = start(daemon, env={"HOOK_LIMIT": "1.5"})
    found = called(witness, "first", "second", "of all")
    assert len({line["pid"] for line in found}) == 3
    assert not psutil.pid_exists(found[0]["pid"])
    assert len(running.lines("death_hook.failed")) == (not reason)
    lost = running.lines("death_hook.lost")
    assert [(line["jid"], line["job"]) for line in lost] == ([("j1", "fatal")] if reason else [])
    # A hook that hangs is ended by its own alarm or by the supervisor, whichever comes first.
    assert all(re.search(reason, line["reason"]) for line in lost)
    assert calls_so_far(running, client, witness) == 3
    assert_in_order(running, client)


def test_jobs_run_while_a_hook_hangs_and_a_stop_does_not_wait_for_it(
    daemon: Start, client: Client, witness: Client
) -> None:
    park(client, "hang")
    running = start(daemon)
    (line,) = called(witness, "first")
    assert in_an_errand(running, line, running.child_pids())
    errand = psutil.Process(line["pid"])
    assert "cogworkerd:errand" in " ".join(errand.cmdline())
    pushed = push_raw(client, "look")
    eventually(lambda: [done for done in running.lines("job.done") if done["jid"] == pushed])
    assert psutil.Process(running.pid).num_threads() == 1

    assert running.stop(10) == 0
    assert not errand.is_running()
    lost = [(told["jid"], told["reason"]) for told in running.lines("death_hook.lost")]
    assert set(lost) == {("j1", "the daemon has stopped")}
    # The one that hung was called and is lost; of the two behind it each was called or is said to be lost.
    assert len(lost) + len(deaths(witness)) == 4
    running.clean_log()


def test_a_hook_in_an_errand_ends_with_a_supervisor_that_is_killed(
    daemon: Start, client: Client, witness: Client
) -> None:
    park(client, "hang")
    running = start(daemon)
    (line,) = called(witness, "first")
    errand = psutil.Process(line["pid"])
    os.kill(running.pid, signal.SIGKILL)
    eventually(lambda: not errand.is_running() or errand.status() == psutil.STATUS_ZOMBIE, 10)
