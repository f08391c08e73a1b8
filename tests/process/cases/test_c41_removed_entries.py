"""C41: an entry that was taken out of the code is fired no more, and two applications leave each other's alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cogworkerd.store.keys import PERIODIC_LIVE_WITHIN
from tests.apps.periodic_jobs import Entry, environment, runs, slots
from tests.support import Client, Daemon, eventually

Start = Callable[..., Daemon]

ONE, TWO, UNO = Entry("one"), Entry("two"), Entry("uno")
PRUNE = {"COGWORKERD_PERIODIC_PRUNE": "true"}


def deploy(daemon: Start, *entries: Entry, **more: str) -> Daemon:
    return daemon("-c", "2", target="periodic_jobs:app", env={**environment(*entries), **more}).ready()


def run_more(witness: Client, entry: Entry, count: int = 3) -> None:
    seen = len(slots(witness, entry.name))
    eventually(lambda: len(slots(witness, entry.name)) >= seen + count, 10, f"{entry.name} runs")


def test_c41_a_removed_entry_is_fired_no_more_and_a_renamed_one_is_a_new_one(
    daemon: Start, client: Client, witness: Client
) -> None:
    """(a)"""
    first = deploy(daemon, ONE, TWO)
    run_more(witness, ONE)
    assert first.stop() == 0
    # A job that was pushed just before the end may still wait, and is performed by the next daemon.
    last = int(client.get(f"periodic:last_slot:{ONE.pjid}"))
    second = deploy(daemon, TWO)
    run_more(witness, TWO)
    assert second.stop() == 0
    assert max(slots(witness, "one")) <= last
    assert {line["pjid"] for line in second.lines("cron.fired")} == {TWO.pjid}
    kept = [key for key in client.scan_iter(f"*{ONE.pjid}*") if client.ttl(key) == -1]
    assert kept == []
    assert client.get(f"periodic:last_slot:{ONE.pjid}") == str(last)
    began = time.time()
    third = deploy(daemon, UNO, TWO)
    run_more(witness, UNO)
    assert third.stop() == 0
    assert min(slots(witness, "uno")) > began
    assert UNO.pjid not in {line["pjid"] for line in third.lines("cron.missed")}
    assert max(slots(witness, "one")) <= last
    for running in (first, second, third):
        running.clean_log()


def test_c41_what_no_live_daemon_declares_is_forgotten_where_that_is_asked_for(
    daemon: Start, client: Client, witness: Client
) -> None:
    """(a), with periodic_prune: nothing at all is left of the entry."""
    first = deploy(daemon, ONE, TWO)
    run_more(witness, ONE, 1)
    assert first.stop() == 0
    client.sadd("periodic:disabled", ONE.pjid)
    second = deploy(daemon, TWO, **PRUNE)
    run_more(witness, TWO, 1)
    assert second.stop() == 0
    assert client.hexists("periodic:schedule", ONE.pjid)  # it was declared a moment ago: a daemon may be restarting
    client.zincrby("cogworker:x:periodic_live", -PERIODIC_LIVE_WITHIN - 60, ONE.pjid)
    third = deploy(daemon, TWO, **PRUNE)
    (forgotten,) = eventually(lambda: third.lines("cron.forgotten"))
    assert forgotten["pjid"] == ONE.pjid
    run_more(witness, TWO, 1)
    assert third.stop() == 0
    assert client.hkeys("periodic:schedule") == [TWO.pjid]
    assert client.exists("periodic:disabled") == 0
    # The lock of its last slot ends by itself.
    assert {key for key in client.scan_iter(f"*{ONE.pjid}*") if not key.startswith("periodic:lock:")} == set()
    for running in (first, second, third):
        running.clean_log()


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, PRUNE], ids=["kept", "pruned"])
def test_c41_two_apps_on_one_server_leave_each_others_entries_alone(
    daemon: Start, client: Client, witness: Client, more: dict[str, str]
) -> None:
    """(b)"""
    x, y = Entry("x", more=(("queue", "x"),)), Entry("y")
    flags = {"target": "periodic_jobs:app"}
    beside = daemon("-c", "2", env={**environment(y), **more}, **flags).ready()
    for _ in range(3):
        running = daemon("-c", "2", "-q", "x", env={**environment(x), **more}, **flags).ready()
        run_more(witness, x)
        assert running.stop() == 0
        running.clean_log()
    run_more(witness, y, 1)
    assert beside.stop() == 0
    found = slots(witness, "y")
    assert found == list(range(found[0], found[-1] + 1))
    assert set(client.hkeys("periodic:schedule")) == {x.pjid, y.pjid}
    assert client.zcard("cogworker:x:periodic_live") == 2
    assert {run.name for run in runs(witness)} == {"x", "y"}
    assert {line["pjid"] for line in beside.lines("cron.fired")} == {y.pjid}
    assert beside.lines("cron.forgotten") == []
    beside.clean_log()
