"""The ticker on a real server, without a daemon around it: catch-up, what becomes of a slot, and pushes by errands."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import redis.exceptions

from cogworkerd import App, PendingJob
from cogworkerd.periodic import Entry, resolve_all
from cogworkerd.store import connection
from cogworkerd.supervisor import cron_push, ticker
from cogworkerd.supervisor.cron_push import Answer, CronPush, Fired
from cogworkerd.supervisor.errand import ErrandFailed, Errands, Means
from cogworkerd.supervisor.resolver import ResolvingLoop
from cogworkerd.supervisor.tasks import Tasks
from cogworkerd.supervisor.ticker import TRY_EVERY, Ticker
from cogworkerd.worker.loop import EXIT_FAULT
from tests.supervisor_parts import KEYS, LOCKS, ME, Parts, Said, limited_user
from tests.support import PATIENCE, Client, Server

# An errand is a fork of the process that runs the tests; a parallel run keeps a thread there that errands never touch.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

NOON = 1_700_000_000 // 86_400 * 86_400 + 43_200
HOUR = 3600
QUEUE = KEYS.queue("default")
EVERY_SECOND = "* * * * * *"
NOWHERE = "redis://127.0.0.1:1/0"
CallNext = Callable[[], None]
Middleware = Callable[[PendingJob, CallNext], None]


@dataclass
class Bench:
    """One daemon's ticker, and what is around it.

    Attributes:
        quiet: whether the daemon is.
        crashes: coroutines that have ended by a fault.
    """

    parts: Parts
    tasks: Tasks
    errands: Errands
    push: CronPush
    ticker: Ticker
    crashes: list[str]
    quiet: bool = False

    @property
    def said(self) -> Said:
        return self.parts.said

    def go(self, *entries: Entry) -> None:
        """As a daemon whose first recovery pass is over."""
        self.ticker.begin(list(entries))
        self.ticker.open()


@asynccontextmanager
async def bench(
    url: str, app: App | None = None, *, push_url: str | None = None, prune: bool = False, identity: str = ME
) -> AsyncIterator[Bench]:
    """
    Args:
        app: whose client middleware stands around the pushes.
        push_url: the server as errands reach it.
    """
    made, crashes = Parts(url, ["default"]), cast("list[str]", [])
    found = app or App()
    tasks = Tasks(lambda error, name: crashes.append(f"{name}: {error!r}"))
    loop = cast(ResolvingLoop, asyncio.get_running_loop())
    errands = Errands(loop, Means(lambda: found, lambda: None, frozenset(), "test"), made.log)
    server = connection.Server.parse(push_url or url)
    push = CronPush(made.link, server, KEYS, LOCKS, identity, errands, lambda: bool(found.client_chain))
    of_ticker = Ticker(made.link, KEYS, push, made.log, tasks, lambda: not at_hand.quiet, prune)
    at_hand = Bench(made, tasks, errands, push, of_ticker, crashes)
    try:
        yield at_hand
    finally:
        await tasks.end()
        await made.link.close()
    assert not errands.pids


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on a loop of the supervisor's kind."""
    with asyncio.Runner(loop_factory=ResolvingLoop) as runner:
        try:
            runner.run(work)
        finally:
            cast(ResolvingLoop, runner.get_loop()).restore_environment()


def with_bench(
    url: str, work: Callable[[Bench], Coroutine[Any, Any, None]], app: App | None = None, **more: Any
) -> None:
    async def inside() -> None:
        async with bench(url, app, **more) as made:
            await work(made)

    run(inside())


async def soon(look: Callable[[], Any], within: float = 8.0) -> Any:
    """`eventually`, while the loop goes on."""
    deadline = time.monotonic() + within * PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within * PATIENCE:g} s"
        await asyncio.sleep(0.02)
    return found


def entry(cron: str = "0 * * * *", job: str = "J", **options: Any) -> Entry:
    app = App()
    app.periodic(cron, job, **options)
    (found,) = resolve_all(app)
    return found


def unique_entry() -> Entry:
    """Its job is unique."""
    app = App()

    @app.periodic("0 * * * *")
    @app.job(name="J", unique="until_executed")
    def unique() -> None: ...

    # Only the name crosses: a function inside a test is nobody's job.
    (found,) = resolve_all(app)
    return found


def watch(of: Entry, done: int = NOON - HOUR) -> Any:
    return ticker._Watch(of, done)


def jobs(client: Client, key: str = QUEUE) -> list[dict[str, Any]]:
    """Those of a queue, oldest first."""
    return [json.loads(raw) for raw in reversed(client.lrange(key, 0, -1))]


def claimed(client: Client, of: Entry) -> dict[str, str]:
    """What of the claim of the slot at noon is on the server."""
    keys = (
        KEYS.periodic_last_slot(of.pjid),
        KEYS.periodic_lock(of.pjid, NOON),
        KEYS.periodic_running(of.pjid),
        KEYS.periodic_reservation(of.pjid),
    )
    return {key: value for key, value in zip(keys, client.mget(keys), strict=True) if value is not None}


@dataclass
class Clock:
    """The clock that the ticker goes by."""

    now: float = NOON + 0.25

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(ticker, "time", SimpleNamespace(time=found.time))
    return found


# ---- the slot from which on an entry is ours -------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """What the server remembers at a start half an hour after noon, and what is done with then.

    Attributes:
        noted: what is passed at the start.
    """

    catch_up: str
    last: str | None
    seen: str | None
    done: int
    noted: int | None = None

    def __str__(self) -> str:
        return f"{self.catch_up}-{self.last and 'claimed'}-{self.seen and 'passed'}-{self.done - NOON}"


STARTS = [
    Start("latest", None, None, NOON, noted=NOON),
    Start("latest", str(NOON - 5 * HOUR), None, NOON - 5 * HOUR),
    Start("latest", None, str(NOON - HOUR), NOON - HOUR),
    Start("latest", str(NOON - 5 * HOUR), str(NOON - HOUR), NOON - HOUR),
    Start("latest", str(NOON - HOUR), str(NOON - 5 * HOUR), NOON - HOUR),
    Start("latest", str(NOON), None, NOON),
    Start("latest", "odd", "-7", NOON, noted=NOON),
    Start("first", None, None, NOON - 1),
    Start("first", "odd", None, NOON - 1),
    Start("first", str(NOON - 5 * HOUR), None, NOON - 5 * HOUR),
    Start("first", None, str(NOON), NOON),
    Start("none", None, None, NOON, noted=NOON),
    Start("none", str(NOON - 5 * HOUR), None, NOON, noted=NOON),
    Start("none", None, str(NOON - 5 * HOUR), NOON, noted=NOON),
    Start("none", str(NOON + HOUR), str(NOON), NOON + HOUR, noted=NOON + HOUR),
]


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_what_is_done_with_at_a_start_is_what_is_remembered_or_what_the_policy_lets_go(
    start: Start, server: Server, client: Client
) -> None:
    of = entry(catch_up=start.catch_up)
    last, seen = KEYS.periodic_last_slot(of.pjid), KEYS.periodic_seen(of.pjid)
    for key, value in ((last, start.last), (seen, start.seen)):
        if value is not None:
            client.set(key, value)

    async def work(made: Bench) -> None:
        assert await made.ticker.first_done(of, NOON + 1800) == start.done

    with_bench(server.url, work)
    assert client.get(last) == start.last
    assert client.get(seen) == (start.seen if start.noted is None else str(start.noted))
    if start.noted is not None:
        assert client.ttl(seen) > 90 * 86_400


def test_a_memory_of_the_wrong_type_is_none(server: Server, client: Client) -> None:
    of = entry()
    client.lpush(KEYS.periodic_last_slot(of.pjid), "odd")

    async def work(made: Bench) -> None:
        assert await made.ticker.first_done(of, NOON + 1800) == NOON

    with_bench(server.url, work)


def test_a_slot_whose_instant_is_still_to_come_is_not_let_go_at_a_start(server: Server, client: Client) -> None:
    of = entry(catch_up="none", jitter=1800)
    client.set(KEYS.periodic_last_slot(of.pjid), NOON - HOUR)

    async def work(made: Bench) -> None:
        assert of.instant(NOON) > NOON + 1
        assert await made.ticker.first_done(of, NOON + 1) < NOON

    with_bench(server.url, work)


# ---- which slot is tried, and when ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("done", "now", "slot"),
    [
        (NOON - HOUR, NOON - 0.001, None),
        (NOON - HOUR, NOON, NOON),
        (NOON - 5 * HOUR, NOON + 1800, NOON),
        (NOON, NOON + 1800, None),
        (NOON + HOUR, NOON + 1800, None),
    ],
)
def test_the_newest_slot_is_due(done: int, now: float, slot: int | None, server: Server) -> None:
    async def work(made: Bench) -> None:
        assert made.ticker._due(watch(entry(), done), now) == slot

    with_bench(server.url, work)


def test_a_slot_with_jitter_is_due_at_its_instant(server: Server) -> None:
    of = entry(jitter=1800)

    async def work(made: Bench) -> None:
        before = of.instant(NOON) - 0.001
        assert made.ticker._due(watch(of), before) is None
        assert made.ticker._due(watch(of, NOON - 2 * HOUR), before) == NOON - HOUR
        assert made.ticker._due(watch(of), of.instant(NOON)) == NOON
        assert made.ticker._until_next(watch(of), of.instant(NOON) - 3) == pytest.approx(3)

    with_bench(server.url, work)


@pytest.mark.parametrize(
    ("done", "now", "pause"),
    [(NOON, NOON + HOUR - 4.5, 4.5), (NOON, NOON + 1, 10), (NOON - 5 * HOUR, NOON + HOUR - 4.5, 4.5)],
)
def test_the_ticker_sleeps_until_the_next_slot_but_notices_a_clock_that_was_set(
    done: int, now: float, pause: float, server: Server
) -> None:
    async def work(made: Bench) -> None:
        assert made.ticker._until_next(watch(entry(), done), now) == pause

    with_bench(server.url, work)


# ---- what becomes of a slot ----------------------------------------------------------------------------


def test_a_slot_that_is_fired_is_done_with_and_told(clock: Clock, server: Server, client: Client) -> None:
    """R53, R54: the running lock holds the id of the job that was pushed."""
    of = entry(unique="until_executed", args=["é"])
    at_hand = watch(of)

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        (told,) = made.said.told
        (job,) = jobs(client)
        assert told == (
            "cron.fired",
            {"pjid": of.pjid, "job": "J", "cron": "0 * * * *", "slot": NOON, "jid": job["jid"], "late": 0.25},
        )
        assert job == of.payload(NOON, job["jid"], job["created_at"])
        assert claimed(client, of) == {
            KEYS.periodic_last_slot(of.pjid): str(NOON),
            KEYS.periodic_lock(of.pjid, NOON): "1",
            KEYS.periodic_running(of.pjid): job["jid"],
        }

    with_bench(server.url, work)
    assert at_hand.done == NOON
    assert client.smembers(KEYS.queues) == {"default"}


def test_a_slot_that_another_daemon_has_is_done_with_in_silence(clock: Clock, server: Server, client: Client) -> None:
    """R53."""
    of = entry(unique="until_executed")
    at_hand = watch(of)
    client.set(KEYS.periodic_last_slot(of.pjid), NOON)
    client.set(KEYS.periodic_running(of.pjid), "theirs")

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        assert made.said.told == []

    with_bench(server.url, work)
    assert at_hand.done == NOON
    assert not client.exists(QUEUE)


@dataclass(frozen=True)
class Hindrance:
    """What holds a slot up."""

    reason: str
    entry: Entry
    key: str


def hindrances() -> list[Hindrance]:
    blocked, unique = entry(unique="until_executed"), unique_entry()
    lock = LOCKS.unique(unique.payload(NOON, "j", 1.0), "default")
    assert lock is not None
    return [
        Hindrance("blocked", blocked, KEYS.periodic_running(blocked.pjid)),
        Hindrance("duplicate", unique, lock),
    ]


@pytest.mark.parametrize("hindrance", hindrances(), ids=lambda each: each.reason)
def test_a_slot_that_is_held_up_fires_as_soon_as_it_can(
    hindrance: Hindrance, clock: Clock, server: Server, client: Client
) -> None:
    """R56."""
    at_hand = watch(hindrance.entry)
    client.set(hindrance.key, "j0")

    async def work(made: Bench) -> None:
        for clock.now in (NOON + 0.25, NOON + 14.5):
            assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        assert (at_hand.done, made.said.told) == (NOON - HOUR, [])
        assert not claimed(client, hindrance.entry).keys() - {hindrance.key}
        client.delete(hindrance.key)
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        (told,) = made.said.fields("cron.fired")
        assert (told["slot"], told["late"]) == (NOON, 14.5)

    with_bench(server.url, work)
    assert len(jobs(client)) == 1


@pytest.mark.parametrize("hindrance", hindrances(), ids=lambda each: each.reason)
def test_a_slot_that_is_held_up_for_15_seconds_is_skipped(
    hindrance: Hindrance, clock: Clock, server: Server, client: Client
) -> None:
    """R56: nobody catches it up, and what held it up is untouched."""
    of, at_hand = hindrance.entry, watch(hindrance.entry)
    client.set(hindrance.key, "j0", ex=100)

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        clock.now += 14.99
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        clock.now += 0.01
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        told = {"pjid": of.pjid, "job": "J", "cron": "0 * * * *", "slot": NOON, "reason": hindrance.reason}
        assert made.said.told == [("cron.skipped", told)]
        assert at_hand.done == NOON
        assert await made.ticker.first_done(of, clock.now) == NOON

    with_bench(server.url, work)
    assert client.get(KEYS.periodic_seen(of.pjid)) == str(NOON)
    assert client.get(hindrance.key) == "j0"
    assert not client.exists(QUEUE, KEYS.periodic_last_slot(of.pjid))


def test_the_15_seconds_begin_with_each_slot(clock: Clock, server: Server, client: Client) -> None:
    of = entry(unique="until_executed")
    at_hand = watch(of)
    client.set(KEYS.periodic_running(of.pjid), "j0")

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        clock.now = NOON + HOUR
        assert await made.ticker.attend(at_hand, NOON + HOUR) == TRY_EVERY
        assert made.said.fields("cron.skipped") == []

    with_bench(server.url, work)


def test_a_disabled_entry_catches_nothing_up_when_it_is_enabled_again(
    clock: Clock, server: Server, client: Client
) -> None:
    """R58: neither by this daemon nor by one that starts then."""
    of = entry()
    at_hand = watch(of)
    last = KEYS.periodic_last_slot(of.pjid)
    client.set(last, NOON - HOUR)
    client.sadd(KEYS.periodic_disabled, of.pjid)

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        assert made.said.told == []
        assert claimed(client, of) == {last: str(NOON - HOUR)}
        client.srem(KEYS.periodic_disabled, of.pjid)
        assert made.ticker._due(at_hand, NOON + 1800) is None
        assert await made.ticker.first_done(of, NOON + 1800) == NOON
        assert await made.ticker.attend(at_hand, NOON + HOUR) == 0.0
        assert [told["slot"] for told in made.said.fields("cron.fired")] == [NOON + HOUR]

    with_bench(server.url, work)
    assert len(jobs(client)) == 1


def test_slots_that_went_by_are_counted_and_the_newest_one_is_fired(
    clock: Clock, server: Server, client: Client
) -> None:
    of = entry()

    async def work(made: Bench) -> None:
        await made.ticker.attend(watch(of, NOON - 4 * HOUR), NOON)
        assert [name for name, _ in made.said.told] == ["cron.missed", "cron.fired"]
        assert made.said.told[0][1] == {"pjid": of.pjid, "job": "J", "cron": "0 * * * *", "slot": NOON, "count": 3}

    with_bench(server.url, work)
    assert [job["periodic_slot"] for job in jobs(client)] == [NOON]


def test_each_missed_slot_is_counted_once(clock: Clock, server: Server, client: Client) -> None:
    of = entry(EVERY_SECOND, unique="until_executed")
    at_hand = watch(of, NOON - 1)
    client.set(KEYS.periodic_running(of.pjid), "j0")

    async def work(made: Bench) -> None:
        for slot in range(NOON, NOON + 4):
            clock.now = slot
            assert await made.ticker.attend(at_hand, slot) == TRY_EVERY
        assert made.said.fields("cron.missed") == []
        client.delete(KEYS.periodic_running(of.pjid))
        clock.now = NOON + 4
        assert await made.ticker.attend(at_hand, NOON + 4) == 0.0
        assert [told["count"] for told in made.said.fields("cron.missed")] == [4]

    with_bench(server.url, work)


@pytest.mark.parametrize(("late", "fired"), [(14.9, True), (15.1, False)])
def test_an_entry_that_catches_nothing_up_lets_go_of_what_is_past(
    late: float, fired: bool, clock: Clock, server: Server, client: Client
) -> None:
    of = entry(catch_up="none")
    at_hand = watch(of)
    clock.now = NOON + late

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        assert at_hand.done == NOON
        skipped = made.said.fields("cron.skipped")
        assert [told["reason"] for told in skipped] == ([] if fired else ["it is past, and catch_up is none"])

    with_bench(server.url, work)
    assert len(jobs(client)) == fired
    assert client.get(KEYS.periodic_seen(of.pjid)) == (None if fired else str(NOON))


@pytest.mark.parametrize("late", [0, 3 * HOUR])
def test_an_entry_of_another_policy_fires_however_late(late: int, clock: Clock, server: Server, client: Client) -> None:
    clock.now = NOON + late

    async def work(made: Bench) -> None:
        for policy in ("latest", "first"):
            assert await made.ticker.attend(watch(entry(job=policy, catch_up=policy)), NOON) == 0.0

    with_bench(server.url, work)
    assert [job["class"] for job in jobs(client)] == ["latest", "first"]


# ---- answers that are lost -----------------------------------------------------------------------------


def lose_answers(monkeypatch: pytest.MonkeyPatch, answers: int, pushed: bool = True) -> None:
    """The server does what it is asked to, or does not, and the connection ends before it has answered."""
    fire, left = CronPush.fire, [answers]

    async def lost(self: CronPush, of: Entry, slot: int) -> Fired:
        left[0] -= 1
        if left[0] < 0:
            return await fire(self, of, slot)
        if pushed:
            await fire(self, of, slot)
        raise redis.exceptions.ConnectionError("Connection closed by server.")

    monkeypatch.setattr(CronPush, "fire", lost)


@pytest.mark.parametrize("next_slot", [NOON, NOON + 3], ids=["tried again", "another is due by then"])
@pytest.mark.parametrize("pushed", [True, False], ids=["pushed", "not pushed"])
def test_a_slot_whose_answer_was_lost_is_told_once_with_what_was_missed_before_it(
    pushed: bool, next_slot: int, clock: Clock, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = entry(EVERY_SECOND)
    at_hand = watch(of, NOON - 10)
    client.set(KEYS.periodic_last_slot(of.pjid), NOON - 4)
    lose_answers(monkeypatch, 1, pushed)

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        assert (made.said.fields("cron.fired"), at_hand.done) == ([], NOON - 10)
        clock.now = next_slot + 0.25
        assert await made.ticker.attend(at_hand, next_slot) == 0.0
        fired = [(line["slot"], line["jid"]) for line in made.said.fields("cron.fired")]
        pushed_jobs = [(job["periodic_slot"], job["jid"]) for job in jobs(client)]
        assert fired == pushed_jobs
        assert {slot for slot, _ in pushed_jobs} == ({NOON} if pushed else set()) | {next_slot}
        missed = sum(line["count"] for line in made.said.fields("cron.missed"))
        assert missed + len(pushed_jobs) == next_slot - (NOON - 4)
        assert at_hand.unanswered is None

    with_bench(server.url, work)
    assert at_hand.done == next_slot


def test_a_slot_whose_answer_was_lost_in_a_long_outage_is_not_told_as_skipped(
    clock: Clock, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = entry(catch_up="none")
    at_hand = watch(of)
    lose_answers(monkeypatch, 1)

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        clock.now += 60
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        (told,) = made.said.fields("cron.fired")
        assert (told["jid"], told["late"]) == (jobs(client)[0]["jid"], 0.25)
        assert made.said.fields("cron.skipped") == []

    with_bench(server.url, work)
    assert at_hand.done == NOON


def test_a_slot_whose_answer_was_lost_and_that_another_daemon_fired_is_not_told(
    clock: Clock, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, mine = entry(), watch(entry())
    lose_answers(monkeypatch, 1, pushed=False)

    async def work() -> None:
        async with bench(server.url) as made, bench(server.url, identity=ELSEWHERE) as other:
            assert await made.ticker.attend(mine, NOON) == TRY_EVERY
            assert await other.ticker.attend(watch(of), NOON) == 0.0
            assert await made.ticker.attend(mine, NOON) == 0.0
            assert (len(made.said.fields("cron.fired")), len(other.said.fields("cron.fired"))) == (0, 1)

    run(work())
    assert mine.done == NOON


@pytest.mark.parametrize(
    "receipt", ["", "odd", "1 2", "x  j", f"{NOON}  ", "9" * 40 + "  j", b"\xff\xfe \xff \xff", ["a list"]]
)
def test_a_receipt_that_is_none_stops_nothing(
    receipt: Any, clock: Clock, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, at_hand = entry(), watch(entry())
    lose_answers(monkeypatch, 1, pushed=False)
    key = KEYS.periodic_fired(of.pjid)
    if isinstance(receipt, list):
        client.rpush(key, *receipt)
    else:
        client.hset(key, ME, receipt)

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        assert len(made.said.fields("cron.fired")) == 1

    with_bench(server.url, work)


# ---- what fails ----------------------------------------------------------------------------------------


def test_a_failing_entry_backs_off_and_begins_anew_after_a_success(
    clock: Clock, server: Server, client: Client
) -> None:
    """R55, R59."""
    of = entry(unique="until_executed")
    at_hand = watch(of)
    client.set(QUEUE, "odd")
    asked: list[bool] = []

    async def work(made: Bench) -> None:
        made.parts.link.wrong_type = lambda: asked.append(True)
        pauses = [await made.ticker.attend(at_hand, NOON) for _ in range(8)]
        assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
        told = made.said.fields("cron.failed")
        assert [line["retry_in"] for line in told] == pauses
        assert (told[0]["pjid"], told[0]["job"], told[0]["cron"], told[0]["slot"]) == (of.pjid, "J", of.cron, NOON)
        assert "WRONGTYPE" in told[0]["reason"]
        assert len(asked) == 8
        assert (at_hand.done, claimed(client, of)) == (NOON - HOUR, {})
        client.delete(QUEUE)
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        client.delete(QUEUE)
        client.set(QUEUE, "odd")
        client.delete(KEYS.periodic_running(of.pjid))
        assert await made.ticker.attend(at_hand, NOON + HOUR) == 5

    with_bench(server.url, work)


def test_an_entry_may_fail_for_ever(clock: Clock, server: Server, client: Client) -> None:
    """R59: at five minutes a failure, this is on the fourth day."""
    client.set(QUEUE, "odd")
    at_hand = watch(entry())
    at_hand.failures = 1024

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == 300

    with_bench(server.url, work)


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_the_server_being_away_is_no_failure_of_the_entry(catch_up: str, clock: Clock) -> None:
    """R59."""
    clock.now = NOON + HOUR - 1  # what is past cannot be passed without a server either
    at_hand = watch(entry(catch_up=catch_up))

    async def work(made: Bench) -> None:
        for _ in range(3):
            assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        assert (at_hand.done, at_hand.failures) == (NOON - HOUR, 0)
        assert [name for name, _ in made.said.told] == ["redis.away"]

    with_bench(NOWHERE, work)


def test_the_server_refusing_is_no_failure_of_the_entry(clock: Clock, server: Server, client: Client) -> None:
    """R59, R63."""
    at_hand = watch(entry())

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        assert (at_hand.done, at_hand.failures) == (NOON - HOUR, 0)
        assert [name for name, _ in made.said.told] == ["redis.refusing"]

    with limited_user(server, client, "-lpush", "-evalsha") as url:
        with_bench(url, work)


def test_an_entry_that_raises_does_not_stop_the_others(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R59: nor itself: it is tried again."""
    monkeypatch.setattr(ticker, "_FIRST_BACKOFF", 0.01)
    fire, tries = CronPush.fire, cast("list[int]", [])

    async def fault(self: CronPush, of: Entry, slot: int) -> Fired:
        if of.job == "Good":
            return await fire(self, of, slot)
        tries.append(slot)
        if len(tries) < 3:
            raise KeyError("a fault of our own")
        return await fire(self, of, slot)

    monkeypatch.setattr(CronPush, "fire", fault)

    async def work(made: Bench) -> None:
        made.go(entry(EVERY_SECOND, "Bad"), entry(EVERY_SECOND, "Good"))
        await soon(lambda: len(made.said.of("cron.fired", job="Good")) >= 2)
        await soon(lambda: made.said.of("cron.fired", job="Bad"))
        assert {told["reason"] for told in made.said.of("cron.failed", job="Bad")} == {"KeyError: 'a fault of our own'"}
        assert made.said.of("cron.failed", job="Good") == []
        assert made.crashes == []

    with_bench(server.url, work)


def test_an_entry_whose_memory_is_absurd_does_not_end_the_daemon(server: Server, client: Client) -> None:
    """R59: milliseconds, say, that somebody wrote there."""
    bad = entry(EVERY_SECOND, "Bad", catch_up="none")
    client.set(KEYS.periodic_last_slot(bad.pjid), NOON * 1000)

    async def work(made: Bench) -> None:
        made.go(bad, entry(EVERY_SECOND, "Good"))
        await soon(lambda: made.said.of("cron.fired", job="Good"))
        assert made.crashes == []

    with_bench(server.url, work)


# ---- the whole ticker ----------------------------------------------------------------------------------


ELSEWHERE = "there:2:bbbbbbbbbbbb"


def test_nothing_is_fired_or_let_go_before_the_first_recovery_pass_that_looked(server: Server, client: Client) -> None:
    """R57: an entry that is due at once waits; what is published need not."""
    due, past = entry(catch_up="first"), entry(job="K")

    async def work() -> None:
        async with bench(server.url) as made, bench(server.url, identity=ELSEWHERE) as other:
            made.ticker.begin([due, past])
            other.go(entry(EVERY_SECOND, "Other"))
            await soon(lambda: len(other.said.fields("cron.fired")) >= 2)
            await soon(lambda: client.hexists(KEYS.periodic_schedule, due.pjid))
            assert made.said.told == []
            assert {job["class"] for job in jobs(client)} == {"Other"}
            assert not client.exists(KEYS.periodic_seen(past.pjid))
            made.ticker.open()
            (told,) = await soon(lambda: made.said.fields("cron.fired"))
            assert told["pjid"] == due.pjid
            await soon(lambda: client.exists(KEYS.periodic_seen(past.pjid)))

    run(work())
    assert [job["class"] for job in jobs(client) if job["class"] != "Other"] == ["J"]


def test_a_quiet_daemon_fires_no_slot_until_it_is_resumed(server: Server, client: Client) -> None:
    async def work() -> None:
        async with bench(server.url) as made, bench(server.url, identity=ELSEWHERE) as other:
            made.quiet = True
            made.go(entry(catch_up="first"), entry(EVERY_SECOND, "K"))
            other.go(entry(EVERY_SECOND, "Other"))
            await soon(lambda: len(other.said.fields("cron.fired")) >= 2)
            assert {job["class"] for job in jobs(client)} == {"Other"}
            made.quiet = False
            await soon(lambda: {told["job"] for told in made.said.fields("cron.fired")} == {"J", "K"})

    run(work())


def test_two_daemons_fire_each_slot_once(server: Server, client: Client) -> None:
    """R53: whoever fires one tells it, and the other one goes on to the next."""
    entries = [entry(EVERY_SECOND, "J"), entry(EVERY_SECOND, "K", jitter=0.5)]

    async def work() -> None:
        async with bench(server.url) as one, bench(server.url, identity=ELSEWHERE) as two:
            one.go(*entries)
            two.go(*entries)
            await soon(lambda: client.llen(QUEUE) >= 8, 15)
            await one.tasks.end()
            await two.tasks.end()
            fired = [(job["class"], job["periodic_slot"], job["jid"]) for job in jobs(client)]
            told = [
                (line["job"], line["slot"], line["jid"])
                for made in (one, two)
                for line in made.said.fields("cron.fired")
            ]
            assert set(told) <= set(fired)  # the end may have come between a push and its line
            assert len({(name, slot) for name, slot, _ in fired}) == len(fired) <= len(told) + 4
            for name in ("J", "K"):
                slots = [slot for job, slot, _ in fired if job == name]
                assert len(slots) >= 3
                assert slots == sorted(slots)
            for made in (one, two):
                assert made.crashes == []
                assert made.said.fields("cron.failed") == made.said.fields("cron.skipped") == []

    run(work())


def test_an_outage_is_told_once_and_slots_go_on_after_it(make_server: Callable[..., Server]) -> None:
    """R59: it is no failure of the entry; R64."""
    own = make_server()
    of = entry(EVERY_SECOND)

    async def work(made: Bench) -> None:
        made.go(of)
        await soon(lambda: made.said.fields("cron.fired"))
        own.stop()
        await soon(lambda: made.said.of("redis.away", site="periodic J"))
        own.start()
        before = len(made.said.fields("cron.fired"))
        await soon(lambda: len(made.said.fields("cron.fired")) > before)
        assert len(made.said.of("redis.away", site="periodic J")) == 1
        assert len(made.said.of("redis.back", site="periodic J")) == 1
        assert made.said.fields("cron.failed") == []
        assert made.crashes == []

    with_bench(own.url, work)


def test_a_server_that_is_away_at_the_start_is_waited_for(make_server: Callable[..., Server]) -> None:
    """R59."""
    own = make_server()
    own.stop()

    async def work(made: Bench) -> None:
        made.go(entry(catch_up="first"))
        for site in ("periodic slots", "periodic schedule"):
            await soon(functools.partial(made.said.of, "redis.away", site=site))
        own.start()
        await soon(lambda: made.said.fields("cron.fired"))
        await soon(lambda: made.said.of("redis.back", site="periodic schedule"))
        assert made.said.fields("cron.failed") == []
        assert made.crashes == []

    with_bench(own.url, work)


# ---- what is published ---------------------------------------------------------------------------------


@dataclass
class Published:
    """Entries of other daemons and programs, by when a live daemon has stamped them, in seconds before now."""

    ages: dict[str, int | None] = field(
        default_factory=lambda: {"young": 120, "old": 200, "ancient": 8 * 86_400, "unstamped": None}
    )

    def write(self, client: Client) -> None:
        now = int(client.time()[0])
        for pjid, age in self.ages.items():
            client.hset(KEYS.periodic_schedule, pjid, "{}")
            client.sadd(KEYS.periodic_disabled, pjid)
            client.set(KEYS.periodic_last_slot(pjid), 1)
            client.set(KEYS.periodic_seen(pjid), 1)
            if age is not None:
                client.zadd(KEYS.periodic_live, {pjid: now - age})


@pytest.mark.parametrize("prune", [False, True])
def test_entries_that_no_live_daemon_declares_are_forgotten_if_so_asked(
    prune: bool, server: Server, client: Client
) -> None:
    """Those of other live daemons stay in either case, and so does a newer stamp."""
    Published().write(client)
    own = entry(args=["é"])
    began = int(client.time()[0])

    async def work(made: Bench) -> None:
        made.ticker.begin([own])
        await soon(lambda: client.hexists(KEYS.periodic_schedule, own.pjid))
        await made.ticker.publish()
        ghosts = {told["pjid"] for told in made.said.fields("cron.forgotten")}
        assert ghosts == ({"old", "ancient", "unstamped"} if prune else set())
        assert made.crashes == []

    with_bench(server.url, work, prune=prune)
    kept = {"young"} if prune else {"young", "old", "ancient", "unstamped"}
    assert set(client.hkeys(KEYS.periodic_schedule)) == {own.pjid, *kept}
    assert client.hget(KEYS.periodic_schedule, own.pjid) == own.published().decode()
    assert client.smembers(KEYS.periodic_disabled) == kept
    for pjid in Published().ages:
        assert client.exists(KEYS.periodic_last_slot(pjid), KEYS.periodic_seen(pjid)) == (2 if pjid in kept else 0)
    stamps = dict(client.zrange(KEYS.periodic_live, 0, -1, withscores=True))
    assert set(stamps) == {own.pjid, "young", *(() if prune else ("old",))}  # a week is long enough for a stamp
    assert began <= stamps[own.pjid] <= int(client.time()[0])


def test_publishing_again_renews_the_stamp_and_the_entry(server: Server, client: Client) -> None:
    own = entry()

    async def work(made: Bench) -> None:
        made.ticker.begin([own])
        await soon(lambda: client.zscore(KEYS.periodic_live, own.pjid))
        client.hset(KEYS.periodic_schedule, own.pjid, "changed by somebody")
        client.zadd(KEYS.periodic_live, {own.pjid: 5})
        await made.ticker.publish()

    with_bench(server.url, work)
    assert client.hget(KEYS.periodic_schedule, own.pjid) == own.published().decode()
    assert client.zscore(KEYS.periodic_live, own.pjid) > 5


def test_without_entries_nothing_is_published_and_nothing_watched(server: Server, client: Client) -> None:
    async def work(made: Bench) -> None:
        made.go()
        assert len(made.tasks._running) == 0

    with_bench(server.url, work, prune=True)
    assert client.keys("*") == []


@pytest.mark.parametrize(
    "key",
    [KEYS.periodic_live, KEYS.periodic_schedule],
)
def test_a_published_key_of_the_wrong_type_stops_neither_the_other_nor_the_slots(
    key: str, server: Server, client: Client
) -> None:
    """R59: it is told, so that the key guard looks at once."""
    client.set(key, "odd")
    of = entry(catch_up="first")
    asked: list[bool] = []

    async def work(made: Bench) -> None:
        made.parts.link.wrong_type = lambda: asked.append(True)
        made.go(of)
        await soon(lambda: asked)
        await soon(lambda: made.said.fields("cron.fired"))
        client.delete(key)
        await soon(lambda: client.hexists(KEYS.periodic_schedule, of.pjid) and client.zcard(KEYS.periodic_live))
        assert made.crashes == []

    with_bench(server.url, work)


def test_a_published_name_that_is_no_text_does_not_end_the_daemon(server: Server, client: Client) -> None:
    """R59."""
    client.hset(KEYS.periodic_schedule, mapping={b"\xff": "{}", "ghost": "{}"})

    async def work(made: Bench) -> None:
        made.go(entry())
        await soon(lambda: made.said.of("cron.forgotten", pjid="ghost") or made.crashes)
        assert made.crashes == []

    with_bench(server.url, work, prune=True)


# ---- pushes through client middleware --------------------------------------------------------------------


def app_with(*middleware: Middleware) -> App:
    app = App()
    for each in middleware:
        app.client_middleware(each)
    return app


def passes(job: PendingJob, call_next: CallNext) -> None:
    call_next()


def raises(error: BaseException, pushed: bool = False) -> Middleware:
    def middleware(job: PendingJob, call_next: CallNext) -> None:
        if pushed:
            call_next()
        raise error

    return middleware


def fire(url: str, app: App, of: Entry | None = None, **more: Any) -> Fired:
    """What comes of the slot at noon."""
    found: list[Fired] = []

    async def work(made: Bench) -> None:
        found.append(await made.push.fire(of or entry(), NOON))

    with_bench(url, work, app, **more)
    return found[0]


def test_what_the_middleware_made_of_the_job_is_pushed(server: Server, client: Client) -> None:
    def change(job: PendingJob, call_next: CallNext) -> None:
        job.payload["meta"] = {"by": os.getpid()}
        job.queue = "low"
        call_next()

    of = entry(unique="until_executed", args=[1])
    fired = fire(server.url, app_with(change, passes), of)
    (job,) = jobs(client, KEYS.queue("low"))
    assert fired == Fired(Answer.FIRED, job["jid"])
    assert job["meta"]["by"] != os.getpid()  # no code of the application runs in the supervisor
    assert job == {**of.payload(NOON, job["jid"], job["created_at"]), "queue": "low", "meta": job["meta"]}
    assert client.smembers(KEYS.queues) == {"low"}
    assert claimed(client, of) == {
        KEYS.periodic_last_slot(of.pjid): str(NOON),
        KEYS.periodic_lock(of.pjid, NOON): "1",
        KEYS.periodic_running(of.pjid): job["jid"],
    }


def delays(job: PendingJob, call_next: CallNext) -> None:
    job.due = time.time() + 3 * 86_400
    call_next()


def test_a_job_that_the_middleware_delays_goes_to_schedule(server: Server, client: Client) -> None:
    assert fire(server.url, app_with(delays)).answer is Answer.FIRED
    ((raw, due),) = client.zrange(KEYS.schedule, 0, -1, withscores=True)
    assert json.loads(raw)["periodic_slot"] == NOON
    assert due > time.time() + 2 * 86_400
    assert not client.exists(QUEUE, KEYS.queues)


def test_the_running_lock_outlives_the_delay(server: Server, client: Client) -> None:
    """R54: a run that waits keeps the next slot away."""
    of = entry(unique="until_executed")
    assert fire(server.url, app_with(delays), of).answer is Answer.FIRED
    assert client.ttl(KEYS.periodic_running(of.pjid)) > 3 * 86_400


def test_a_slot_that_the_middleware_stops_is_not_claimed(clock: Clock, server: Server, client: Client) -> None:
    """R55, R56: it is tried again for 15 s, and skipped then."""
    of = entry(unique="until_executed")
    at_hand = watch(of)

    async def work(made: Bench) -> None:
        assert await made.push.fire(of, NOON) == Fired(Answer.SWALLOWED)
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        assert client.keys("*") == []
        clock.now += 15
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        assert [told["reason"] for told in made.said.fields("cron.skipped")] == ["swallowed"]

    with_bench(server.url, work, app_with(passes, lambda job, call_next: None))
    assert client.keys("*") == [KEYS.periodic_seen(of.pjid)]


def breaks(name: str, value: Any) -> Middleware:
    def middleware(job: PendingJob, call_next: CallNext) -> None:
        job.payload[name] = value
        call_next()

    return middleware


def twice(job: PendingJob, call_next: CallNext) -> None:
    call_next()
    call_next()


OWN_FAILURES = [
    pytest.param(raises(ValueError("no")), "ValueError: no", id="raises"),
    pytest.param(breaks("class", 1), '"class" = 1', id="class"),
    pytest.param(breaks("queue", "a b"), "\"queue\" = 'a b'", id="queue"),
    pytest.param(breaks("meta", {1}), "set is not JSON", id="not JSON"),
    pytest.param(breaks("meta", "x" * 2**20), "max_payload", id="too large"),
    pytest.param(
        raises(FileNotFoundError("its own file")),
        "its own file",
        id="its own file is missing",
    ),
    pytest.param(
        raises(ConnectionRefusedError("its own service")),
        "its own service",
        id="its own service is away",
    ),
    pytest.param(
        raises(ValueError("\N{GRINNING FACE}" * 10_000)),
        "\N{GRINNING FACE}",
        id="long text",
    ),
]


@pytest.mark.parametrize(("middleware", "reason"), OWN_FAILURES)
def test_a_middleware_that_fails_is_a_failure_of_the_entry(
    middleware: Middleware, reason: str, clock: Clock, server: Server, client: Client
) -> None:
    """R55, R59."""
    of = entry(unique="until_executed")

    async def work(made: Bench) -> None:
        fired = await made.push.fire(of, NOON)
        assert fired.answer is Answer.FAILED
        assert reason in fired.reason
        assert client.keys("*") == []
        assert await made.ticker.attend(watch(of), NOON) == 5
        (told,) = made.said.fields("cron.failed")
        assert reason in told["reason"]

    with_bench(server.url, work, app_with(middleware))


@pytest.mark.parametrize(
    "middleware",
    [
        pytest.param(raises(ValueError("no"), pushed=True), id="raises"),
        pytest.param(twice, id="calls call_next twice"),
        pytest.param(
            raises(FileNotFoundError("its own file"), pushed=True),
            id="its own file is missing",
        ),
    ],
)
def test_a_middleware_that_fails_after_the_push_does_not_undo_it(
    middleware: Middleware, server: Server, client: Client
) -> None:
    """R24, in its spirit: what was pushed is pushed."""
    fired = fire(server.url, app_with(middleware))
    (job,) = jobs(client)
    assert fired == Fired(Answer.FIRED, job["jid"])


def hangs(first: Path) -> None:
    if not first.exists():
        first.touch()
        time.sleep(60)


def is_killed(first: Path) -> None:
    if not first.exists():
        first.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def leaves(first: Path) -> None:
    if not first.exists():
        first.touch()
        sys.exit(3)


@pytest.mark.parametrize("pushed", [False, True], ids=["before the push", "after the push"])
@pytest.mark.parametrize(
    ("end", "how"),
    [
        (hangs, r"not done after 1.5 s|signal 14 \(SIGALRM\)"),  # whichever of the two clocks is first
        (is_killed, r"signal 9 \(SIGKILL\)"),
        (leaves, f"exit status {EXIT_FAULT}"),
    ],
    ids=["hangs", "is killed", "leaves"],
)
def test_a_slot_whose_errand_did_not_come_to_its_end_is_fired_once(
    end: Callable[[Path], None],
    how: str,
    pushed: bool,
    tmp_path: Path,
    clock: Clock,
    server: Server,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R53, R55: it is tried again after 5 s, by whoever comes first, for its reservation is gone."""
    monkeypatch.setattr(cron_push, "PUSH_LIMIT", 1.5)
    of = entry()
    at_hand = watch(of)

    def middleware(job: PendingJob, call_next: CallNext) -> None:
        if pushed:
            call_next()
        end(tmp_path / "first")
        if not pushed:
            call_next()

    async def work(made: Bench) -> None:
        assert await made.ticker.attend(at_hand, NOON) == 5
        (told,) = made.said.fields("cron.failed")
        assert re.fullmatch(f"cron push: ({how})", told["reason"])
        assert len(jobs(client)) == pushed
        assert bool(claimed(client, of)) is pushed
        assert not client.exists(KEYS.periodic_reservation(of.pjid))
        assert at_hand.done == NOON - HOUR
        assert await made.ticker.attend(at_hand, NOON) == 0.0
        assert at_hand.done == NOON
        (fired,) = made.said.fields("cron.fired")
        assert fired["jid"] == jobs(client)[0]["jid"]

    with_bench(server.url, work, app_with(middleware))
    assert [job["periodic_slot"] for job in jobs(client)] == [NOON]


def test_a_hanging_errand_is_killed_with_what_it_started(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cron_push, "PUSH_LIMIT", 1.0)
    pids = tmp_path / "pids"

    def middleware(job: PendingJob, call_next: CallNext) -> None:
        child = os.fork()
        if child:
            pids.write_text(f"{os.getpid()} {child}")
        signal.setitimer(signal.ITIMER_REAL, 0)  # not even its own alarm ends it
        time.sleep(60)

    async def work(made: Bench) -> None:
        with pytest.raises(ErrandFailed):
            await made.push.fire(entry(), NOON)
        for pid in map(int, pids.read_text().split()):
            await soon(functools.partial(_is_gone, pid))

    with_bench(server.url, work, app_with(middleware))


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_server_being_away_for_an_errand_is_no_failure_of_the_entry(
    clock: Clock, server: Server, client: Client
) -> None:
    """R59."""
    of = entry()
    at_hand = watch(of)

    async def work(made: Bench) -> None:
        assert (await made.push.fire(of, NOON)).answer is Answer.UNSENT
        assert await made.ticker.attend(at_hand, NOON) == TRY_EVERY
        assert (at_hand.done, at_hand.failures, made.said.fields("cron.failed")) == (NOON - HOUR, 0, [])

    with_bench(server.url, work, app_with(passes), push_url=NOWHERE)
    assert client.keys("*") == []


def test_the_server_refusing_an_errand_is_no_failure_of_the_entry(server: Server, client: Client) -> None:
    """R59, R63: as where no middleware is."""
    with limited_user(server, client, "-eval", "-evalsha") as url:
        assert fire(server.url, app_with(passes), push_url=url).answer is Answer.UNSENT


def test_the_server_being_away_before_the_errand_is_raised(server: Server) -> None:
    with pytest.raises(redis.exceptions.ConnectionError):
        fire(NOWHERE, app_with(passes), push_url=server.url)


@pytest.mark.parametrize("answer", [Answer.LOST, Answer.DISABLED, Answer.BLOCKED, Answer.ELSEWHERE])
def test_no_middleware_is_asked_about_a_slot_that_cannot_be_fired(
    answer: Answer, tmp_path: Path, server: Server, client: Client
) -> None:
    of = entry(unique="until_executed")
    match answer:
        case Answer.LOST:
            client.set(KEYS.periodic_last_slot(of.pjid), NOON)
        case Answer.DISABLED:
            client.sadd(KEYS.periodic_disabled, of.pjid)
        case Answer.BLOCKED:
            client.set(KEYS.periodic_running(of.pjid), "j0")
        case _:
            client.set(KEYS.periodic_reservation(of.pjid), "another daemon")
    before = set(client.keys("*"))

    def middleware(job: PendingJob, call_next: CallNext) -> None:
        (tmp_path / "asked").touch()

    assert fire(server.url, app_with(middleware), of) == Fired(answer)
    assert not (tmp_path / "asked").exists()
    assert set(client.keys("*")) == before
    if answer is Answer.ELSEWHERE:
        assert client.get(KEYS.periodic_reservation(of.pjid)) == "another daemon"


@pytest.mark.parametrize("hindrance", hindrances(), ids=lambda each: each.reason)
def test_what_holds_a_slot_up_while_the_middleware_looks_is_seen_by_the_claim(
    hindrance: Hindrance, server: Server, client: Client
) -> None:
    """R53, R56."""

    def middleware(job: PendingJob, call_next: CallNext) -> None:
        with server.client() as own:
            own.set(hindrance.key, "j0")
        call_next()

    assert fire(server.url, app_with(middleware), hindrance.entry).answer is Answer(hindrance.reason)
    assert client.keys("*") == [hindrance.key]


def test_two_daemons_with_middleware_fire_a_slot_once(server: Server, client: Client) -> None:
    """R53."""
    of = entry()

    async def work() -> None:
        app = app_with(passes)
        async with bench(server.url, app) as one, bench(server.url, app, identity=ELSEWHERE) as two:
            answers = await asyncio.gather(*(made.push.fire(of, NOON) for made in (one, two)))
            assert {each.answer for each in answers} in (
                {Answer.FIRED, Answer.ELSEWHERE},
                {Answer.FIRED, Answer.LOST},
            )

    run(work())
    assert len(jobs(client)) == 1
    assert not client.exists(KEYS.periodic_reservation(of.pjid))
