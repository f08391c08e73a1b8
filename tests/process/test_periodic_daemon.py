"""Periodic entries with real daemons: who fires which slot, and what becomes of one that cannot be fired."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psutil
import pytest

from tests.apps.periodic_jobs import Entry, environment, meetings, once_a_minute, pushes, runs, slots
from tests.process.server_trouble import one_thread, settled
from tests.support import Client, Daemon, eventually

Start = Callable[..., Daemon]

AHEAD = 5.0
"""A daemon is usually up by then; if it is not, the next minute's slot serves as well."""
A_MINUTE = 75.0

CONTROL = Entry("control")


def between_slots() -> None:
    """Wait for the middle of a second: no slot of any entry is being fired."""
    eventually(lambda: 0.4 < time.time() % 1 < 0.6)


def a_while(witness: Client, slots_more: int = 2) -> None:
    """Wait until the control entry, which nothing hinders, has run so many times more."""
    seen = len(runs(witness, "control"))
    eventually(lambda: len(runs(witness, "control")) >= seen + slots_more, 10, "the control entry runs")


def kept_by_the_server(client: Client, entry: Entry) -> list[str]:
    """What a claim of a slot leaves behind."""
    keys = [f"periodic:last_slot:{entry.pjid}", f"periodic:running:{entry.pjid}", *client.scan_iter("periodic:lock:*")]
    return [key for key in keys if client.exists(key) and entry.pjid in key]


def fired(running: Daemon, entry: Entry) -> list[dict[str, Any]]:
    return [line for line in running.lines("cron.fired") if line["pjid"] == entry.pjid]


def test_two_daemons_fire_each_slot_once_and_runs_of_an_until_executed_entry_never_meet(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R53, R54."""
    alone = Entry("alone", seconds=1.4, unique=True)
    env = environment(CONTROL, alone)
    pair = [daemon("-c", "3", target="periodic_jobs:app", env=env) for _ in range(2)]
    for running in pair:
        running.ready()
    a_while(witness, 5)
    eventually(lambda: len(runs(witness, "alone")) >= 3, 10)
    assert all(one_thread(running) for running in pair)
    assert [running.stop() for running in pair] == [0, 0]

    found = runs(witness, "control")
    assert all(run.start >= run.slot for run in found)
    told = {line["slot"]: line["jid"] for running in pair for line in fired(running, CONTROL)}
    assert {run.slot: run.jid for run in found} == told
    assert sum(len(fired(running, CONTROL)) for running in pair) == len(found)
    assert [later - slot for slot, later in pairwise(run.slot for run in found)] == [1] * (len(found) - 1)

    assert meetings(runs(witness, "alone")) == []
    assert len(set(slots(witness, "alone"))) == len(slots(witness, "alone"))
    # The last run may have been handed back by the stop; only while its job is there may its lock be.
    assert client.exists(f"periodic:running:{alone.pjid}") == client.llen("cogworker:queue:default")
    for running in pair:
        running.clean_log()


def test_a_quiet_daemon_fires_nothing_and_goes_on_with_the_newest_slot(daemon: Start, witness: Client) -> None:
    running = daemon("-c", "2", target="periodic_jobs:app", env=environment(CONTROL)).ready()
    a_while(witness)
    between_slots()
    running.signal(signal.SIGTSTP)
    eventually(lambda: running.lines("daemon.quiet"))
    before = [line["slot"] for line in fired(running, CONTROL)]
    quiet_since = time.time()
    eventually(lambda: time.time() > quiet_since + 3)
    between_slots()
    assert [line["slot"] for line in fired(running, CONTROL)] == before
    resumed = time.time()
    running.signal(signal.SIGCONT)
    a_while(witness)
    after = [line["slot"] for line in fired(running, CONTROL)][len(before) :]
    assert after[0] >= int(resumed)
    (missed,) = running.lines("cron.missed")
    assert (missed["slot"], missed["count"]) == (after[0], after[0] - before[-1] - 1)
    assert running.stop() == 0
    running.clean_log()


def test_a_daemon_that_was_quiet_calls_no_slot_missed_that_another_has_fired(daemon: Start, witness: Client) -> None:
    env = environment(CONTROL)
    quiet, beside = (daemon("-c", "2", target="periodic_jobs:app", env=env).ready() for _ in range(2))
    a_while(witness)
    between_slots()
    quiet.signal(signal.SIGTSTP)
    eventually(lambda: quiet.lines("daemon.quiet"))
    a_while(witness, 3)
    between_slots()
    quiet.signal(signal.SIGCONT)
    eventually(lambda: quiet.lines("daemon.resumed"))
    a_while(witness)
    found = slots(witness, "control")
    assert found == list(range(found[0], found[0] + len(found)))
    assert quiet.lines("cron.missed") == beside.lines("cron.missed") == []


def test_a_disabled_entry_fires_nothing_and_catches_nothing_up_when_it_is_enabled_again(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R58."""
    cron, slot = once_a_minute(AHEAD)
    rare, often = Entry("rare", cron, unique=True), Entry("often")
    client.sadd("periodic:disabled", rare.pjid, often.pjid)
    env = environment(CONTROL, rare, often)
    running = daemon("-c", "2", target="periodic_jobs:app", env=env).ready()
    eventually(lambda: client.get(f"cogworker:x:periodic_seen:{rare.pjid}") == str(slot), AHEAD + 10)
    a_while(witness, 1)
    assert kept_by_the_server(client, rare) == kept_by_the_server(client, often) == []
    between_slots()
    enabled = time.time()
    client.delete("periodic:disabled")
    a_while(witness)
    eventually(lambda: slots(witness, "often"))
    assert running.stop() == 0
    again = daemon("-c", "2", target="periodic_jobs:app", env=env).ready()
    a_while(witness)
    assert again.stop() == 0
    assert min(slots(witness, "often")) > enabled
    assert slots(witness, "rare") == []
    assert not {line["pjid"] for line in running.lines("cron.failed")}
    for one in (running, again):
        one.clean_log()


def test_an_entry_whose_queue_cannot_be_written_backs_off_and_holds_up_no_other(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R55, R59."""
    # No job of the app, so that no daemon reads its queue and none sets the key right.
    bad = Entry("bad", job="Elsewhere", unique=True, more=(("queue", "odd"),))
    client.set("cogworker:queue:odd", "x")
    running = daemon("-c", "2", target="periodic_jobs:app", env=environment(bad, CONTROL)).ready()
    (failed,) = eventually(lambda: running.lines("cron.failed"))
    assert failed["pjid"] == bad.pjid
    assert "WRONGTYPE" in failed["reason"]
    assert failed["retry_in"] == 5.0
    assert kept_by_the_server(client, bad) == []
    a_while(witness)
    mended = time.time()
    client.delete("cogworker:queue:odd")
    raw = eventually(lambda: client.lindex("cogworker:queue:odd", 0), 20)
    job = json.loads(raw)
    assert job["periodic_slot"] >= int(mended)
    assert client.get(f"periodic:running:{bad.pjid}") == job["jid"]
    a_while(witness)
    assert client.llen("cogworker:queue:odd") == 1
    found = slots(witness, "control")
    assert found == list(range(found[0], found[0] + len(found)))
    assert running.stop() == 0
    running.clean_log()


@pytest.mark.parametrize("preload", ["--preload", "--no-preload"])
def test_client_middleware_runs_in_a_process_of_its_own_and_what_it_swallows_is_tried_again(
    daemon: Start, client: Client, witness: Client, preload: str
) -> None:
    """R55."""
    cron, _ = once_a_minute(AHEAD)
    entry = Entry("swallowed", cron, unique=True)
    witness.set("t:swallow", 1)
    env = environment(entry, middleware={"swallowed": "swallow"})
    running = daemon("-c", "2", preload, target="periodic_jobs:app", env=env).ready()
    eventually(lambda: len(pushes(witness, "swallowed")) >= 3, A_MINUTE)
    assert kept_by_the_server(client, entry) == []
    assert client.llen("cogworker:queue:default") == 0
    assert one_thread(running)
    witness.delete("t:swallow")
    eventually(lambda: slots(witness, "swallowed"))
    settled(client)
    seen = pushes(witness, "swallowed")
    assert {push["slot"] for push in seen} == set(slots(witness, "swallowed"))
    assert len(slots(witness, "swallowed")) == 1
    assert {push["parent"] for push in seen} == {running.pid}
    pids = {push["pid"] for push in seen}
    assert len(pids) == len(seen)
    assert not pids & {running.pid, *running.child_pids()}
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 5, "no errand is left")
    assert client.exists(f"periodic:running:{entry.pjid}") == 0
    assert not running.lines("cron.skipped")
    assert running.stop() == 0
    running.clean_log()


def test_a_slot_whose_middleware_dies_or_raises_before_or_after_the_push_runs_exactly_once(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R4, R55."""
    cron, _ = once_a_minute(AHEAD)
    modes = ["die before", "die after", "raise before", "raise after"]
    wrecked = [Entry(mode, cron, unique=True) for mode in modes]
    env = environment(CONTROL, *wrecked, middleware={mode: mode for mode in modes})
    running = daemon("-c", "2", target="periodic_jobs:app", env=env).ready()
    eventually(lambda: {run.name for run in runs(witness)} >= set(modes), A_MINUTE)
    # Those that had pushed are tried again, too, after the same while.
    a_while(witness)
    assert {mode: len(slots(witness, mode)) for mode in modes} == dict.fromkeys(modes, 1)
    for mode in modes:
        assert {push["slot"] for push in pushes(witness, mode)} == set(slots(witness, mode))
    failed = {line["pjid"]: line["reason"] for line in running.lines("cron.failed")}
    # An error after the push is no failure of the push.
    assert set(failed) == {entry.pjid for entry in wrecked[:3]}
    assert all("SIGKILL" in failed[entry.pjid] for entry in wrecked[:2])
    assert "no luck before" in failed[wrecked[2].pjid]
    settled(client)
    assert list(client.scan_iter("periodic:running:*")) == []
    # The control's own, each second, is none of these.
    assert [entry.name for entry in wrecked if client.exists(f"cogworker:x:periodic_reservation:{entry.pjid}")] == []
    assert one_thread(running)
    assert running.stop() == 0
    running.clean_log()


def test_a_run_of_a_dead_daemon_is_recovered_before_the_next_slot_is_fired(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R42, R57."""
    entry = Entry("alone", seconds=2.5, unique=True)
    env = environment(entry)
    first = daemon("-c", "2", target="periodic_jobs:app", env=env).ready()
    (broken,) = eventually(lambda: runs(witness, "alone"), 10)
    children = first.children()
    first.signal(signal.SIGKILL)
    first.exited()
    for child in children:
        try:
            os.kill(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has followed its parent
    eventually(lambda: not any(child.is_running() for child in children))
    # The lock lapsed meanwhile: only the job itself tells that a run is due.
    client.delete(f"periodic:running:{entry.pjid}")
    second = daemon("-c", "2", target="periodic_jobs:app", env=env).ready()
    again = eventually(lambda: runs(witness, "alone")[1:], 20)[0]
    assert again.jid == broken.jid
    assert client.get(f"periodic:running:{entry.pjid}") == broken.jid
    eventually(lambda: len(runs(witness, "alone")) >= 3, 20)
    found = runs(witness, "alone")
    assert meetings(found) == []
    assert [run.jid for run in found].count(broken.jid) == 2
    assert second.lines("recovery.done")
    assert one_thread(second)
    assert second.stop() == 0
    second.clean_log()
