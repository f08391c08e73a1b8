"""When a whole daemon dies, what it ran is suspected: run one at a time, alone, so that only the culprit pays."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support import APPS, Client, Daemon, eventually, inprogress, push_raw

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., Daemon]


def start(daemon: Start, *flags: str) -> Daemon:
    return daemon("-c", "4", "--max-orphanings", "1", *flags, target="suspicious_jobs:app").ready()


def dead(client: Client) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in client.zrange("cogworker:dead", 0, -1)]


def kill_whole(running: Daemon) -> None:
    """The supervisor and every child."""
    children = running.children()
    running.process.kill()
    for child in children:
        child.kill()


def die_together(daemon: Start, client: Client, witness: Client) -> tuple[list[str], str]:
    """Three innocents and a killer run, and their daemon dies of the last one.

    Returns:
        The ids of the innocents and of the killer.
    """
    running = start(daemon)
    innocents = [push_raw(client, "innocent", 1.5, retry=False) for _ in range(3)]
    culprit = push_raw(client, "killer", retry=False)
    eventually(lambda: witness.hlen("t:now") == 4)
    witness.set("t:gate", 1)
    assert running.exited() == -signal.SIGKILL
    witness.delete("t:now")
    return innocents, culprit


def one_round(daemon: Start, client: Client, witness: Client) -> None:
    innocents, culprit = die_together(daemon, client, witness)
    second = start(daemon)
    eventually(lambda: [entry["jid"] for entry in dead(client)] == [culprit], 60)
    eventually(lambda: set(witness.hkeys("t:end")) == set(innocents), 30)
    assert set(witness.hvals("t:end")) == {"1"}
    (entry,) = dead(client)
    assert entry["error_class"] == "ProcessDied"
    eventually(lambda: inprogress(client) == [])
    assert {line.get("queue", "default") for line in second.lines("job.start")} == {"default"}
    runs = [run.split()[0] for run in witness.lrange("t:runs", 0, -1)]
    assert [runs.count(jid) for jid in innocents] == [2, 2, 2], "once beside the killer, once alone"
    assert runs.count(culprit) == 3
    alone = witness.lrange("t:beside", 4, -1)
    assert all(run.endswith(" []") for run in alone), alone
    assert client.keys("cogworker:orphanings:*") == []
    eventually(lambda: client.keys("cogworker:queue:*") == [])
    eventually(lambda: len(second.lines("ward.closed")) == len(second.lines("ward.opened")), 20)
    statuses = [line["status"] for line in second.lines("ward.closed")]
    assert statuses.count(-signal.SIGKILL) == 2, statuses
    eventually(lambda: client.scard("cogworker:processes") == 1)
    eventually(lambda: client.smembers("cogworker:queues") == {"default"}, 20)
    assert second.process.poll() is None
    assert second.stop() == 0
    assert not second.lines("daemon.crashed")
    second.clean_log()


def test_of_three_innocents_and_one_killer_only_the_killer_goes_to_dead(
    daemon: Start, client: Client, witness: Client
) -> None:
    one_round(daemon, client, witness)


def test_a_ward_that_cannot_start_is_tried_again_and_again_but_not_all_the_time(
    daemon: Start, client: Client, witness: Client, tmp_path: Path
) -> None:
    """The code on the disk is broken; the daemon that is up has loaded what was there before."""
    module = tmp_path / "suspicious.py"
    good = (APPS / "suspicious_jobs.py").read_text()
    module.write_text(good)
    first, second = (daemon("-c", "1", target="suspicious:app", app_dir=tmp_path).ready() for _ in range(2))
    jid = push_raw(client, "innocent", 3, retry=False)
    ran_by = int(eventually(lambda: witness.hget("t:now", jid)))
    module.write_text("broken = (\n")
    victim, other = (first, second) if first.pid == ran_by else (second, first)
    kill_whole(victim)
    eventually(lambda: len(other.lines("ward.closed")) >= 2, 30)
    opened = [datetime.fromisoformat(line["timestamp"]) for line in other.lines("ward.opened")]
    assert opened[1] - opened[0] > timedelta(seconds=2)
    assert {line["status"] for line in other.lines("ward.closed")} == {78}
    module.write_text(good + "# mended\n")
    eventually(lambda: witness.hget("t:end", jid) == "1", 60)
    assert other.stop() == 0


def test_a_stop_ends_the_ward_and_gives_its_job_back(daemon: Start, client: Client, witness: Client) -> None:
    gone = start(daemon)
    jid = push_raw(client, "innocent", 60, retry=False)
    eventually(lambda: witness.hget("t:now", jid))
    kill_whole(gone)
    running = start(daemon, "--shutdown-timeout", "1")
    eventually(lambda: witness.llen("t:runs") == 2, 20)
    assert running.stop(15) == 0
    (closed,) = running.lines("ward.closed")
    assert closed["status"] == 0
    assert [jid in raw for raw in client.lrange("cogworker:queue:default", 0, -1)] == [True]
    assert client.keys("cogworker:orphanings:*") == inprogress(client) == []
    assert client.scard("cogworker:x:wards") == 0


def test_suspects_of_a_queue_that_is_paused_wait_until_it_is_resumed(
    daemon: Start, client: Client, witness: Client
) -> None:
    gone = start(daemon)
    jids = [push_raw(client, "innocent", 3, retry=False) for _ in range(3)]
    eventually(lambda: witness.hlen("t:now") == 3)
    kill_whole(gone)
    witness.delete("t:now")
    running = start(daemon)
    (first,) = eventually(lambda: witness.hkeys("t:now"), 20)
    client.sadd("cogworker:paused_queues", "default")
    (closed,) = eventually(lambda: running.lines("ward.closed"), 20)
    assert closed["status"] == 0
    assert witness.hgetall("t:end") == {first: "1"}, "what runs goes on"
    assert client.llen("cogworker:queue:x:suspects:default") == 2
    client.srem("cogworker:paused_queues", "default")
    eventually(lambda: witness.hgetall("t:end") == dict.fromkeys(jids, "1"), 30)
    assert running.stop() == 0


def test_a_quiet_daemon_has_a_quiet_ward(daemon: Start, client: Client, witness: Client) -> None:
    gone = start(daemon)
    jids = [push_raw(client, "innocent", 2, retry=False) for _ in range(2)]
    eventually(lambda: witness.hlen("t:now") == 2)
    kill_whole(gone)
    running = start(daemon)
    eventually(lambda: witness.llen("t:runs") == 3, 20)
    running.signal(signal.SIGTSTP)
    eventually(lambda: len(running.lines("daemon.quiet")) == 2)
    eventually(lambda: witness.hlen("t:end") == 1)
    assert client.llen("cogworker:queue:x:suspects:default") == 1
    running.signal(signal.SIGCONT)
    eventually(lambda: set(witness.hkeys("t:end")) == set(jids), 10)
    assert running.stop() == 0


def test_a_ward_outlives_a_renewal_of_its_daemon(daemon: Start, client: Client, witness: Client) -> None:
    gone = start(daemon)
    jid = push_raw(client, "innocent", 4, retry=False)
    eventually(lambda: witness.hget("t:now", jid))
    kill_whole(gone)
    running = start(daemon)
    eventually(lambda: witness.llen("t:runs") == 2, 20)
    running.signal(signal.SIGUSR2)
    eventually(lambda: running.lines("renewal.done"), 20)
    eventually(lambda: witness.hget("t:end", jid) == "1", 15)
    eventually(lambda: [line["status"] for line in running.lines("ward.closed")] == [0], 15)
    assert witness.llen("t:runs") == 2
    assert len(running.lines("ward.opened")) == 1
    assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_holds_twenty_times_in_a_row(daemon: Start, client: Client, witness: Client) -> None:
    for _ in range(20):
        one_round(daemon, client, witness)
        client.flushdb()
        witness.flushdb()
