"""When a whole daemon dies, what it ran is suspected: run one at a time, alone, so that only the culprit pays."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., Daemon]


def start(daemon: Start, *flags: str) -> Daemon:
    return daemon("-c", "4", "--max-orphanings", "1", *flags, target="suspicious_jobs:app").ready()


def dead(client: Client) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in client.zrange("cogworker:dead", 0, -1)]


def die_together(daemon: Start, client: Client, witness: Client, seconds: float = 0.3) -> tuple[list[str], str]:
    """Three innocents and a killer run, and their daemon dies of the last one.

    Returns:
        The ids of the innocents and of the killer.
    """
    running = start(daemon)
    innocents = [push_raw(client, "innocent", 60 if seconds > 1 else 1.5, retry=False) for _ in range(3)]
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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_holds_twenty_times_in_a_row(daemon: Start, client: Client, witness: Client) -> None:
    for _ in range(20):
        one_round(daemon, client, witness)
        client.flushdb()
        witness.flushdb()
