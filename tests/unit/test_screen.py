"""The screen of `status --watch`: lines that fit a terminal, whatever the fleet is and is called."""

from __future__ import annotations

import time
import unicodedata
from dataclasses import replace
from typing import Any, cast

import pytest

from cogworkerd.cli.screen import screen
from cogworkerd.jobsets import Store
from cogworkerd.overview import Overview, Watcher
from cogworkerd.snapshot import Process, QueueState, RunningJob, Snapshot
from cogworkerd.status import JobStatus
from tests.support import Client, Server

NOW = 1_800_000_000.0
SERVER = "redis://localhost:6379/0"
HOSTILE = {
    "control characters": "a\x00\x07\x08\r\n\t\x7fb",
    "escape sequences": "\x1b[2J\x1b]0;title\x07\x9b31m",
    "marks that reorder": "\u202eabc\u2066\u200b",
    "line separators": "a\u2028b\u2029c\x85d",
    "lone surrogates": "\udc80\ud800",
    "very long": "x" * 5000,
    "nothing": "",
    "combining marks": "e\u0301" * 40,
}
WIDE = {"wide characters": "漢字テスト" * 30, "emoji": "\U0001f680" * 60, "full-width forms": "ＡＢＣ" * 40}  # noqa: RUF001
SIZES = [(80, 24), (20, 5), (200, 60), (80, 3), (1, 1), (40, 10)]
sizes = pytest.mark.parametrize(("width", "height"), SIZES, ids=lambda size: str(size))


def process(number: int, **fields: Any) -> Process:
    made = Process(
        identity=f"host:{number}:abcdef012345",
        host="host",
        pid=number,
        tag="shop",
        busy=1,
        concurrency=8,
        quiet=False,
        queues=["default"],
        rss_kb=80_000,
        pss_kb=40_000,
        started_at=NOW - 3700,
        slots=[],
    )
    return replace(made, **fields)


def job(number: int, **fields: Any) -> RunningJob:
    return replace(
        RunningJob("host:1:abcdef012345", "tid", f"{number:024x}", "shop.mail.send_welcome", "mail", NOW - 75), **fields
    )


def queue(number: int, **fields: Any) -> QueueState:
    return replace(QueueState(f"queue{number}", 1234, 61.0, False, True), **fields)


def view(processes: int = 1, jobs: int = 1, queues: int = 1, **fields: Any) -> Overview:
    """A fleet of so many of each; those that run are at 40 %."""
    running = [job(number) for number in range(jobs)]
    state = Snapshot(
        [process(number) for number in range(processes)],
        [queue(number) for number in range(queues)],
        {"scheduled": 11, "retry": 22, "dead": 33},
        {"processed": 4444, "failed": 55},
        running,
    )
    statuses = {each.jid: JobStatus(each.jid, "working", NOW, each.class_name, "mail", 40, "rows") for each in running}
    return replace(Overview(NOW, state, running, statuses), **fields)


def called(name: str) -> Overview:
    """A fleet in which everything that somebody can name has this name."""
    running = [job(number, class_name=name, jid=f"{number}{name}") for number in range(3)]
    state = Snapshot(
        [process(number, identity=name, tag=name) for number in range(3)],
        [queue(number, name=name) for number in range(3)],
        {"scheduled": 0, "retry": 0, "dead": 0},
        {"processed": 0, "failed": 0},
        running,
    )
    statuses = {each.jid: JobStatus(each.jid, "working", NOW, name, name, 40, name) for each in running}
    return Overview(NOW, state, running, statuses, changes={name: 1.0})


def cells(line: str) -> int:
    """How many columns of a terminal it takes."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in line)
    return len(line) + wide - sum(unicodedata.combining(char) > 0 for char in line)


def check_fits(lines: list[str], width: int, height: int) -> None:
    assert len(lines) <= height
    assert [line for line in lines if cells(line) > width] == []
    odd = {char for line in lines for char in line if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs")}
    assert odd == set()


@sizes
@pytest.mark.parametrize("processes", [0, 1, 100])
@pytest.mark.parametrize("jobs", [0, 1, 1000])
@pytest.mark.parametrize("queues", [0, 1, 100])
def test_a_fleet_of_any_size_fits_a_terminal_of_any_size(
    width: int, height: int, processes: int, jobs: int, queues: int
) -> None:
    check_fits(screen(view(processes, jobs, queues), SERVER, width, height), width, height)


@sizes
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_shown_harmless_and_fit(width: int, height: int, name: str) -> None:
    check_fits(screen(called(name), SERVER, width, height), width, height)


@pytest.mark.parametrize("name", WIDE.values(), ids=WIDE)
def test_names_of_wide_characters_fit(name: str) -> None:
    check_fits(screen(called(name), SERVER, 80, 24), 80, 24)


@pytest.mark.parametrize("width", [80, 20, 5])
def test_an_address_that_is_longer_than_the_terminal_is_cut(width: int) -> None:
    check_fits(screen(view(), "redis://" + "h" * 300, width, 24), width, 24)


@pytest.mark.parametrize(
    "odd",
    [
        view(statuses={job(0).jid: JobStatus(job(0).jid, "working", NOW, "a", "b", -300.0, "")}),
        view(statuses={job(0).jid: JobStatus(job(0).jid, "working", NOW, "a", "b", 1e6, "")}),
        view(statuses={job(0).jid: JobStatus(job(0).jid, "", 0.0, "", "", None, "")}),
        view(state=replace(view().state, stats={"processed": 10**30, "failed": -(10**30)})),
        view(state=replace(view().state, processes=[process(1, pss_kb=None, started_at=NOW + 1e9, busy=-5)])),
        view(state=replace(view().state, queues=[queue(1, size=10**18, latency=1e17, paused=True, read=False)])),
        view(running=[job(0, run_at=0.0), job(1, run_at=NOW + 1e12)]),
        view(rates={"processed": -5.0, "failed": 1e15}, changes={"queue0": -1e15}),
    ],
    ids=[
        *(
            "less than nothing done",
            "more than all done",
            "an empty status",
            "huge counters",
            "a process of the future",
        ),
        *("a huge queue", "jobs of other times", "huge rates"),
    ],
)
def test_odd_values_fit(odd: Overview) -> None:
    for width, height in SIZES:
        check_fits(screen(odd, SERVER, width, height), width, height)


@pytest.mark.parametrize(
    "odd",
    [
        view(running=[job(0, run_at=float("-inf"))]),
        view(state=replace(view().state, processes=[process(1, started_at=float("-inf"))])),
        view(state=replace(view().state, queues=[queue(1, latency=float("inf"))])),
    ],
    ids=["of a job", "of a process", "of a queue"],
)
def test_a_time_that_another_program_has_put_at_minus_infinity_fits(odd: Overview) -> None:
    check_fits(screen(odd, SERVER, 80, 24), 80, 24)


@pytest.mark.parametrize("pct", [400.0, -400.0])
def test_a_bar_is_never_longer_than_itself(pct: float) -> None:
    odd = view(statuses={job(0).jid: JobStatus(job(0).jid, "working", NOW, "a", "b", pct, "rows")})
    (line,) = [line for line in screen(odd, SERVER, 80, 24) if "send_welcome" in line]
    assert "] " in line


def test_every_section_is_there_with_its_numbers() -> None:
    lines = screen(view(2, 3, 4), SERVER, 80, 24)
    text = "\n".join(lines)
    assert lines[0].startswith(f"cogworkerd  {SERVER}")
    assert lines[0].endswith("2027-01-15 08:00:00Z")
    assert lines[1].startswith("processed 4,444   failed 55")
    assert lines[1].endswith("scheduled 11   retry 22   dead 33")
    for title in ("PROCESSES (2)", "RUNNING (3)", "QUEUES (4)"):
        assert title in text
    assert text.count("1 min 15 s") == 3
    assert text.count("[####......] 40 % rows") == 3
    assert text.count("1/8") == 2
    assert text.count("1,234") == 4
    assert "more" not in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (80, 16)])
@pytest.mark.parametrize("counts", [(100, 1, 1), (1, 100, 1), (1, 1, 100), (100, 100, 1), (100, 100, 100), (5, 9, 30)])
def test_sections_share_the_room_and_say_what_is_left_out(width: int, height: int, counts: tuple[int, ...]) -> None:
    lines = screen(view(*counts), SERVER, width, height)
    assert len(lines) == min(height, 8 + sum(counts))
    titles = [next(i for i, line in enumerate(lines) if line.startswith(word)) for word in ("PROC", "RUNN", "QUEU")]
    for begin, end, count in zip(titles, (*titles[1:], len(lines) + 1), counts, strict=True):
        rows = lines[begin + 1 : end - 1]
        if rows[-1].startswith("... and "):
            shown, left_out = len(rows) - 1, int(rows[-1].split()[2])
            assert shown + left_out == count
            assert shown >= 1
        else:
            assert len(rows) == count


def test_what_is_quiet_paused_or_not_read_is_said() -> None:
    fleet = view().state
    odd = view(
        state=replace(
            fleet,
            processes=[process(1, quiet=True)],
            queues=[queue(0, paused=True), queue(1, read=False), queue(2)],
        )
    )
    lines = screen(odd, SERVER, 80, 24)
    states = {line.split()[0]: line.split("  ")[-1].strip() for line in lines if line.startswith("queue")}
    assert states == {"queue0": "paused", "queue1": "not read", "queue2": "read"}
    assert any(line.startswith("host:1:") and "quiet" in line for line in lines)


def test_a_queue_that_is_paused_and_not_read_is_wholly_said() -> None:
    odd = view(state=replace(view().state, queues=[queue(0, paused=True, read=False)]))
    assert "paused, not read" in "\n".join(screen(odd, SERVER, 80, 24))


# ---- the second look ------------------------------------------------------------------------------------


def test_rates_come_with_the_second_look(server: Server, client: Client) -> None:
    from cogworkerd import App

    app = App(server.url)
    store = Store.of(app)
    try:
        watcher = Watcher(store)
        client.set("cogworker:stats:processed", 100)
        client.sadd("cogworker:queues", "mail", "gone")
        client.lpush("cogworker:queue:mail", *(f"{n}" for n in range(50)))
        first = watcher.look()
        assert (first.rates, first.changes) == ({}, {})
        assert "/s)" not in "\n".join(screen(first, SERVER, 80, 24))
        began = time.monotonic()
        client.incrby("cogworker:stats:processed", 1000)
        client.ltrim("cogworker:queue:mail", 0, 9)
        client.sadd("cogworker:queues", "new")
        client.lpush("cogworker:queue:new", *(f"{n}" for n in range(30)))
        client.srem("cogworker:queues", "gone")
        second = watcher.look()
        seconds = time.monotonic() - began
        assert second.rates["processed"] >= 1000 / (seconds + 1)
        assert second.rates["failed"] == 0
        assert second.changes["mail"] < 0 < second.changes["new"]
        assert second.changes["mail"] / second.changes["new"] == pytest.approx(-40 / 30)
        text = "\n".join(screen(second, SERVER, 120, 24))
        assert "processed 1,100 (+" in text
        assert "failed 0 (+0.0/s)" in text
        assert watcher.look().rates == {"processed": 0.0, "failed": 0.0}
    finally:
        cast(Any, store.client).close()


def test_counters_that_somebody_has_put_back_have_a_negative_rate() -> None:
    assert "(-50.0/s)" in "\n".join(screen(view(rates={"processed": -50.0}), SERVER, 120, 24))
