"""Twenty periodic entries on three daemons for two minutes, one of which is killed, on a server that is restarted once:
each slot is fired once, or a line in a log tells why not."""

from __future__ import annotations

import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from cogworkerd.cron import Schedule
from tests.apps.periodic_jobs import Entry, Run, environment, meetings, runs
from tests.process.server_trouble import one_thread, settled, stays
from tests.support import Client, Daemon, Server, eventually

Start = Callable[..., Daemon]

TICKING = 120.0
KILL_AT, START_AGAIN_AT, SERVER_DOWN_AT, SERVER_UP_AT = 25.0, 35.0, 70.0, 73.0
AFTERMATH = 10.0
"""Seconds after the server is back within which slots may still be missing: every link has found it again by then."""

STEPS = ("*", "*/2", "*/3", "*/5", "*/7", "*/10", "1-59/4", "3-58/6", "2-50/9", "0,1,2,30,31,32", "*/20", "59")
PLAIN = [Entry(f"plain {step}", f"* * * * * {step}", seconds=0.02) for step in STEPS]
ALONE = [
    Entry(f"alone {step} {seconds}", f"* * * * * {step}", seconds=seconds, unique=True)
    for step, seconds in (
        ("*", 0.1),
        ("*", 1.5),
        ("*/2", 3.2),
        ("*/2", 5.0),
        ("*/3", 4.0),
        ("*/5", 7.0),
        ("*/5", 1.0),
        ("*/10", 12.0),
    )
]


@dataclass
class Lines:
    """What the logs tell about one entry.

    Attributes:
        fired: slot and jid.
        excused: slots that were told as missed or as skipped.
    """

    fired: list[tuple[int, str]] = field(default_factory=list)
    excused: set[int] = field(default_factory=set)


def slots_within(entry: Entry, begin: float, end: float) -> list[int]:
    """Those later than `begin` and not later than `end`."""
    schedule, found = Schedule(entry.cron), []
    slot = schedule.next_after(begin)
    while slot <= end:
        found.append(slot)
        slot = schedule.next_after(slot)
    return found


def told_by(daemons: Iterable[Daemon], entries: Iterable[Entry]) -> dict[str, Lines]:
    """What all logs tell, for each entry by its pjid."""
    schedules = {entry.pjid: Schedule(entry.cron) for entry in entries}
    found: dict[str, Lines] = defaultdict(Lines)
    for running in daemons:
        for line in running.lines():
            if line["event"] == "cron.fired":
                found[line["pjid"]].fired.append((line["slot"], line["jid"]))
            elif line["event"] == "cron.skipped":
                found[line["pjid"]].excused.add(line["slot"])
            elif line["event"] == "cron.missed":
                slot = line["slot"]
                for _ in range(line["count"]):  # these are the ones just before the slot at hand
                    before = schedules[line["pjid"]].latest(slot - 1)
                    assert before is not None
                    slot = before
                    found[line["pjid"]].excused.add(slot)
    return found


def by_slot(found: Iterable[Run]) -> dict[int, list[Run]]:
    slots: dict[int, list[Run]] = defaultdict(list)
    for run in found:
        slots[run.slot].append(run)
    return slots


def check_each_ran_once(entry: Entry, found: list[Run], killed: set[int]) -> None:
    """One job a slot, which came to its end; it began again only where its process had been killed."""
    for slot, of_slot in by_slot(found).items():
        where = f"{entry.name}, slot {slot}: {of_slot}"
        assert len({run.jid for run in of_slot}) == 1, where
        assert of_slot[-1].over, where
        assert all(run.pid in killed for run in of_slot[:-1]), where


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_slot_of_twenty_entries_is_fired_once_or_accounted_for_through_a_kill_and_a_restart_of_the_server(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    """R53 to R59."""
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    entries = [*PLAIN, *ALONE]
    assert len(entries) == 20

    def start() -> Daemon:
        return daemon("-c", "8", url=server.url, target="periodic_jobs:app", env=environment(*entries))

    fleet = [start() for _ in range(3)]
    for running in fleet:
        running.ready()
    eventually(lambda: {run.name for run in runs(witness)} >= {"plain *", "alone * 0.1"}, 15, "the tickers are open")
    begin = time.time()

    def until(seconds: float) -> None:
        stays(max(0.0, begin + seconds - time.time()))

    until(KILL_AT)
    killed = set(fleet[0].child_pids())
    fleet[0].signal(signal.SIGKILL)
    fleet[0].exited()
    until(START_AGAIN_AT)
    fleet.append(start().ready())
    living = fleet[1:]
    until(SERVER_DOWN_AT)
    down = time.time()
    server.stop()
    until(SERVER_UP_AT)
    server.start()
    up = time.time()
    without_end = []
    with server.client() as client:
        while time.time() < begin + TICKING:
            without_end += [key for key in client.scan_iter("periodic:running:*") if client.ttl(key) == -1]
            stays(0.5)
        assert all(one_thread(running) for running in living)
        end = time.time()
        expected = {entry.name: slots_within(entry, begin, end) for entry in entries}
        wanted = {name: slots[-1] for name, slots in expected.items() if name.startswith("plain")}
        eventually(lambda: not missing(witness, wanted), 30, "the last slots run")
        assert [running.stop() for running in living] == [0, 0, 0]
        settled(client)
        assert without_end == []
        # What was handed back at the stop waits with its lock; nothing else keeps one, and each lock ends by itself.
        assert all(client.ttl(key) > 0 for key in client.scan_iter("periodic:running:*"))
        assert client.zcard("cogworker:dead") == client.zcard("cogworker:retry") == 0

    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs(witness):
        found[run.name].append(run)
    lines = told_by(fleet, entries)
    for entry in PLAIN:
        in_time = set(expected[entry.name])
        of_entry = [run for run in found[entry.name] if run.slot in in_time]
        check_each_ran_once(entry, of_entry, killed)
        not_run = in_time - {run.slot for run in of_entry}
        assert not_run <= lines[entry.pjid].excused, entry.name
        assert all(down - 1 <= slot <= up + AFTERMATH for slot in not_run), (entry.name, down, up, sorted(not_run))
    for entry in ALONE:
        of_entry = found[entry.name]
        assert meetings(of_entry) == [], entry.name
        last = max(run.slot for run in of_entry)
        in_time = {slot for slot in expected[entry.name] if slot < last}
        check_each_ran_once(entry, [run for run in of_entry if run.slot in in_time], killed)
        assert in_time - {run.slot for run in of_entry} <= lines[entry.pjid].excused, entry.name
    for entry in entries:
        # A push whose answer was lost with the server may have been told by nobody, but none is told twice.
        assert max(Counter(slot for slot, _ in lines[entry.pjid].fired).values()) == 1, entry.name
    # Otherwise the test has shown nothing about slots that were held up.
    assert any(lines[entry.pjid].excused for entry in ALONE)
    for running in fleet:
        running.clean_log()


def missing(witness: Client, wanted: dict[str, int]) -> set[str]:
    """Entries of which no run of this slot, or of a later one, is over."""
    over = {run.name for run in runs(witness) if run.over and run.slot >= wanted.get(run.name, 2**63)}
    return set(wanted) - over
