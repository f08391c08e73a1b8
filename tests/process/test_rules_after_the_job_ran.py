"""The rules of what follows a fetch and a run that take a whole daemon."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.supervisor_parts import limited_user
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def reports(running: Daemon, kind: str) -> Counter[str]:
    """How often a report of this kind named each job."""
    return Counter(line["jid"] for line in running.lines("report") if line["kind"] == kind)


# ---- R24 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["lrem", "zadd", "evalsha"])
def test_a_job_that_ran_and_cannot_be_settled_is_not_run_again(
    command: str, daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    """R24, R22: one that ended well and one that failed, with a server that refuses a command for a while."""
    with limited_user(server, client) as url:
        name = url.split("//")[1].split(":")[0]
        running = daemon("-c", "2", url=url).ready()
        witness.set("t:ill:done", "no list")  # which that job finds at its end
        well = push_raw(client, "book", 1, 1)
        ill = push_raw(client, "pidof", "t:ill", 1, retry=3)
        eventually(lambda: witness.hget("t:start", "1") == "1" and witness.exists("t:ill"))
        client.execute_command("ACL", "SETUSER", name, f"-{command}")
        eventually(lambda: reports(running, "FINISHED") == {well: 1, ill: 1}, 15)
        assert len(inprogress(client)) == (1 if command == "zadd" else 2)  # which no ack needs
        client.execute_command("ACL", "SETUSER", name, f"+{command}")
        eventually(lambda: inprogress(client) == [], 20)
        eventually(lambda: client.get("cogworker:stats:processed") == "1")
        assert client.zcard("cogworker:retry") == 1
        # The slots work on, and neither job is among what they fetch.
        push_raw(client, "book", 2)
        eventually(lambda: witness.hget("t:end", "2") == "1", 15)
        assert running.stop() == 0
    assert witness.hgetall("t:start") == {"1": "1", "2": "1"}
    assert witness.llen("t:ill") == 1
    assert reports(running, "STARTED")[well] == reports(running, "STARTED")[ill] == 1
    assert client.zcard("cogworker:retry") == 1
    assert not client.exists("cogworker:dead", "cogworker:queue:default")
    assert client.keys("cogworker:orphanings:*") == []


# ---- R25 -----------------------------------------------------------------------------------------------


def test_jobs_that_come_to_a_paused_queue_go_back_and_are_run_once_it_is_resumed(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R25: the slot waits on that queue, so it fetches the job before it learns that the queue is paused."""
    running = daemon("-c", "1").ready()
    eventually(lambda: [line for line in running.lines("report") if line["kind"] == "IDLE" and line["detail"]])
    client.sadd("cogworker:paused_queues", "default")
    jids = [push_raw(client, "pidof", f"t:{n}", 0) for n in range(3)]
    eventually(lambda: reports(running, "RETURNED").total() >= 1)
    push_raw(client, "mailed", 1, queue="mail")
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert not any(reports(running, "STARTED")[jid] for jid in jids)
    client.srem("cogworker:paused_queues", "default")
    eventually(lambda: all(witness.exists(f"t:{n}:done") for n in range(3)))
    eventually(lambda: inprogress(client) == [])
    assert client.keys("cogworker:orphanings:*") == []
    assert running.stop() == 0
    assert [reports(running, "STARTED")[jid] for jid in jids] == [1, 1, 1]
    running.clean_log()


def test_a_job_that_waits_in_a_paused_queue_is_not_fetched_again_and_again(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R25, R34: a paused queue is skipped; what came too late goes back once, or the slots turn in circles."""
    running = daemon("-c", "1", "-q", "default").ready()
    eventually(lambda: [line for line in running.lines("report") if line["kind"] == "IDLE" and line["detail"]])
    client.sadd("cogworker:paused_queues", "default")
    jid = push_raw(client, "book", 1)
    end = time.monotonic() + 5
    eventually(lambda: time.monotonic() > end)
    # An idle slot looks once a second.
    assert reports(running, "RETURNED")[jid] <= 10
    client.srem("cogworker:paused_queues", "default")
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0


# ---- R29 -----------------------------------------------------------------------------------------------


def test_jobs_run_although_what_runs_cannot_be_published(
    daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    """R29: this user may not touch the workers key."""
    with limited_user(server, client, "resetkeys", "~cogworker:[^w]*") as url:
        running = daemon("-c", "2", url=url).ready()
        push_raw(client, "book", 1, 2)
        push_raw(client, "book", 2)
        eventually(lambda: witness.hlen("t:end") == 2, 10)
        eventually(lambda: client.get("cogworker:stats:processed") == "2")
        assert [line for line in running.lines("redis.refusing") if line["site"] == "publish"]
        assert client.keys("cogworker:workers:*") == []
        assert running.stop() == 0
    assert witness.hgetall("t:start") == {"1": "1", "2": "1"}
    assert inprogress(client) == []


def test_a_workers_key_of_the_wrong_type_is_written_over_while_jobs_run(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R29."""
    running = daemon("-c", "1").ready()
    (presence,) = client.keys("cogworker:process:*")
    workers = presence.replace(":process:", ":workers:")
    client.set(workers, "no hash")
    jid = push_raw(client, "book", 1, 3)
    eventually(lambda: client.type(workers) == "hash")
    assert json.loads(client.hvals(workers)[0])["payload"]["jid"] == jid
    eventually(lambda: client.get("cogworker:stats:processed") == "1")
    eventually(lambda: not client.exists(workers))
    assert running.stop() == 0
    running.clean_log()
