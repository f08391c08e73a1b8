"""One child is killed at a random moment, again and again: in mid-job, between fetch and report, between perform and
settle. Every job is performed, and none again once its PERFORMED was reported; the other children are undisturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]

SLOTS = 4
JOBS_PER_KILL = 40


@dataclass
class Told:
    """What the supervisor's debug log tells: for each job the reports about it, each with the child it came from."""

    reports: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    started: list[int] = field(default_factory=list)
    died: list[int] = field(default_factory=list)
    orphaned: list[str] = field(default_factory=list)


def told_by(running: Daemon) -> Told:
    found = Told()
    child_of: dict[int, int] = {}
    for line in running.lines():
        if line["event"] == "child.started":
            child_of[line["slot"]] = line["child"]
            found.started.append(line["child"])
        elif line["event"] == "child.died":
            found.died.append(line["child"])
        elif line["event"] == "job.orphaned":
            found.orphaned.append(line["jid"])
        elif line["event"] == "report" and line["jid"]:
            found.reports[line["jid"]].append((line["kind"], child_of[line["slot"]]))
    return found


def check(told: Told, jobs: Iterable[tuple[int, str]], marks: Callable[[int], list[str]], killed: list[int]) -> None:
    """Join the log with the marks that the jobs made themselves."""
    for n, jid in jobs:
        runs = [(word, int(pid)) for word, pid in (text.split() for text in marks(n))]
        starts = [pid for word, pid in runs if word == "start"]
        ends = [pid for word, pid in runs if word == "end"]
        reports = told.reports[jid]
        reported_starts = [pid for kind, pid in reports if kind == "STARTED"]
        performed = [pid for kind, pid in reports if kind == "PERFORMED"]
        where = f"{jid}: {reports}, {runs}"
        assert ends, f"never performed: {where}"
        assert len(performed) == 1, where
        # Nothing of it comes after PERFORMED but FINISHED, and that run was its last one.
        kinds = [kind for kind, _ in reports]
        assert set(kinds[kinds.index("PERFORMED") + 1 :]) <= {"FINISHED"}, f"performed again: {where}"
        assert starts[-1] == ends[-1] == performed[0], f"performed again: {where}"
        # A run is reported before it begins; a child may be killed before the job's first line.
        assert set(starts) <= set(reported_starts), where
        assert len(starts) <= len(reported_starts), where
        # Only a child that was killed leaves a run that nobody heard the end of.
        assert set(reported_starts) - set(performed) <= set(killed), where


KILLS = pytest.mark.parametrize(("kills", "seed"), [(10, 1), pytest.param(50, 2, marks=pytest.mark.slow)])


@KILLS
def test_a_child_killed_at_random_moments_loses_nothing_and_repeats_nothing_that_was_performed(
    daemon: Start, client: Client, witness: Client, kills: int, seed: int
) -> None:
    chance = random.Random(seed)
    running = daemon("-c", str(SLOTS), "--max-orphanings", "1000000", target="life_jobs:app").ready()
    jobs: list[tuple[int, str]] = []
    killed: list[int] = []
    for _ in range(kills):
        for _ in range(JOBS_PER_KILL):
            n = len(jobs)
            # Most are so short that fetch, reports and settling are most of their time.
            jobs.append((n, push_raw(client, "mark", n, chance.choice([0, 0, 0, 0.01, 0.05]))))
        eventually(lambda: client.llen("cogworker:queue:default") < JOBS_PER_KILL - SLOTS, 30)
        time.sleep(chance.uniform(0, 0.03))  # the random moment
        victim = chance.choice(running.child_pids())
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)
        eventually(partial(others_than, running, victim), 30)
    finish(running, client, witness, jobs, killed)


@KILLS
def test_a_child_killed_around_the_end_of_a_job_loses_nothing_and_repeats_nothing_that_was_performed(
    daemon: Start, client: Client, witness: Client, kills: int, seed: int
) -> None:
    """Within milliseconds: while it reports, settles, or fetches the next job."""
    chance = random.Random(seed)
    running = daemon("-c", str(SLOTS), "--max-orphanings", "1000000", target="life_jobs:app").ready()
    jobs: list[tuple[int, str]] = []
    for n in range(kills * 5):
        if n % 5:
            jobs.append((n, push_raw(client, "mark", n)))
        else:
            jobs.append((n, push_raw(client, "mark_doomed", n, chance.uniform(0, 0.004))))
    settled(client, jobs)
    finish(running, client, witness, jobs, [int(pid) for pid in witness.lrange("t:killed", 0, -1)])


def others_than(running: Daemon, victim: int) -> bool:
    """The victim is gone, and somebody is there to be the next."""
    pids = running.child_pids()
    return bool(pids) and victim not in pids


def settled(client: Client, jobs: list[tuple[int, str]]) -> None:
    eventually(lambda: client.get("cogworker:stats:processed") == str(len(jobs)), 60)


def finish(running: Daemon, client: Client, witness: Client, jobs: list[tuple[int, str]], killed: list[int]) -> None:
    """Wait until all is settled; then nothing is left, and log and marks agree."""
    settled(client, jobs)
    eventually(lambda: inprogress(client) == [])
    for key in ("cogworker:queue:default", "cogworker:dead", "cogworker:retry"):
        assert not client.exists(key)
    assert client.keys("cogworker:orphanings:*") == []
    eventually(lambda: zombies(running.pid) == [])
    eventually(lambda: len(running.children()) == SLOTS, 30)
    assert running.stop() == 0
    running.clean_log()

    told = told_by(running)
    check(told, jobs, lambda n: witness.lrange(f"t:mark:{n}", 0, -1), killed)
    assert sorted(told.died) == sorted(set(killed)), "another child was disturbed"
    assert len(told.started) <= SLOTS + len(killed)
    for jid in told.orphaned:
        assert {pid for kind, pid in told.reports[jid] if kind == "STARTED"} & set(killed)
    assert not running.lines("child.killed")
