"""C40: after a downtime one missed slot is fired, not each of them; what the server never saw is not caught up."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.apps.periodic_jobs import Entry, Run, environment, runs, slots
from tests.support import Client, Daemon, eventually

Start = Callable[..., Daemon]

EVERY = 3
MISSED = 2
"""Slots that go by while no daemon is up."""


def newest(instant: float, every: int, offset: int = 0) -> int:
    """The newest slot of an expression that divides a minute."""
    return int((instant - offset) // every * every + offset)


def one_after_another(found: list[Run], every: int) -> bool:
    return [run.slot for run in found] == [found[0].slot + every * n for n in range(len(found))]


def test_c40_an_empty_server_catches_nothing_up(daemon: Start, client: Client, witness: Client) -> None:
    """(a)"""
    entries = [Entry("monthly", "0 0 1 * *"), Entry("five minutes", "*/5 * * * *"), Entry("control")]
    began = time.time()
    running = daemon("-c", "2", target="periodic_jobs:app", env=environment(*entries)).ready()
    eventually(lambda: len(slots(witness, "control")) >= 3, 10)
    assert running.stop() == 0
    for entry in entries:
        assert all(slot > began for slot in slots(witness, entry.name))
    assert client.exists(f"periodic:last_slot:{entries[0].pjid}") == 0
    assert running.lines("cron.missed") == []
    running.clean_log()


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["latest", "false"])
def test_c40_after_a_downtime_the_newest_missed_slot_is_fired_once_and_none_where_catch_up_is_off(
    daemon: Start, client: Client, witness: Client, setting: str
) -> None:
    """(b), (c) and (d): by the setting, by the entry, and where the expression was changed meanwhile."""
    entry = Entry("entry", f"* * * * * */{EVERY}")
    off = Entry("off", f"* * * * * */{EVERY}", more=(("catch_up", "none"),))
    old, new = Entry("changed", f"* * * * * */{EVERY}"), Entry("changed", f"* * * * * 1-59/{EVERY}")
    more = {"COGWORKERD_PERIODIC_CATCH_UP": setting}

    def start(*entries: Entry) -> Daemon:
        return daemon("-c", "3", target="periodic_jobs:app", env={**environment(*entries), **more})

    before = start(entry, off, old).ready()
    eventually(lambda: {run.name for run in runs(witness)} == {"entry", "off", "changed"}, 10)
    assert before.stop() == 0
    old_runs = runs(witness)
    witness.delete("t:runs")
    last = int(client.get(f"periodic:last_slot:{entry.pjid}"))
    assert last == max(run.slot for run in old_runs)
    # The middle between two slots: the daemons are up before the next one, mostly.
    down_until = last + EVERY * MISSED + 0.5
    eventually(lambda: time.time() > down_until, EVERY * (MISSED + 1))
    began = time.time()
    pair = [start(entry, off, new) for _ in range(2)]
    for running in pair:
        running.ready()
    eventually(lambda: all(len(slots(witness, name)) >= 3 for name in ("entry", "off", "changed")), 20)
    assert [running.stop() for running in pair] == [0, 0]

    found = {name: runs(witness, name) for name in ("entry", "off", "changed")}
    assert all(one_after_another(runs_of, EVERY) for runs_of in found.values())
    first = found["entry"][0]
    if setting == "latest":
        assert first.slot == newest(first.start, EVERY)
        told = [line["count"] for running in pair for line in running.lines("cron.missed")]
        assert set(told) == {(first.slot - last) // EVERY - 1}
    else:
        assert first.slot > began
        assert not any(running.lines("cron.missed") for running in pair)
    assert found["off"][0].slot > began
    assert {run.pjid for run in found["changed"]} == {new.pjid}
    assert found["changed"][0].slot % EVERY == 1
    assert found["changed"][0].slot >= newest(began, EVERY, 1)
    for running in (before, *pair):
        running.clean_log()


@pytest.mark.slow
def test_c40_an_entry_with_a_long_interval_is_caught_up_by_one_daemon_only(
    daemon: Start, client: Client, witness: Client
) -> None:
    """(b) with the memory of the last slot written by hand: a month is longer than a test."""
    month, control = Entry("month", "0 0 1 * *"), Entry("control")
    client.set(f"periodic:last_slot:{month.pjid}", "1")
    pair = [daemon("-c", "2", target="periodic_jobs:app", env=environment(month, control)) for _ in range(2)]
    for running in pair:
        running.ready()
    (run,) = eventually(lambda: runs(witness, "month"), 5)
    eventually(lambda: len(slots(witness, "control")) >= 5, 10)
    assert runs(witness, "month") == [run]
    assert time.gmtime(run.slot)[2:6] == (1, 0, 0, 0)
    assert run.start - 31 * 86_400 < run.slot <= run.start
    for running in pair:
        assert running.stop() == 0
        running.clean_log()
