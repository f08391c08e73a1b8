"""The locks of jobs: what each script that moves a job does with them, and how those of jobs at work are kept."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from cogworkerd.locks import JobLocks, Locks
from cogworkerd.outcome import SUCCESS, Kind, Outcome, Settlement
from cogworkerd.payload import parse
from cogworkerd.store import scripts
from cogworkerd.store.keys import suspects_of
from cogworkerd.store.scripts import Burial, Call, Listed, LockRefresh, Unreleased
from cogworkerd.supervisor.burial import burial_of, listed_job
from cogworkerd.supervisor.lock_keeper import LockKeeper
from tests.cutting_proxy import CuttingProxy
from tests.supervisor_parts import KEYS, LOCKS, ME, MINE, Parts, Work, limited_user, parts
from tests.support import Client, Server

NOW = 1_700_000_000.0
QUEUE = KEYS.queue("default")
SUSPECTS = KEYS.queue(suspects_of("default"))
GONE = "gone:9:bbbbbbbbbbbb"
THEIRS = KEYS.inprogress(GONE)
RECORD = b'{"set":"somewhere"}'
RETRY = Outcome(Kind.RETRY, NOW + 600, b'{"later":1}', b'{"attempt":1}')
DEAD = Outcome(Kind.DEAD, NOW, b'{"dead":1}', b'{"attempt":4}')
DISCARD = Outcome(Kind.DISCARD, attempt=b'{"attempt":1}')
DAY = 86_400


def job(jid: str = "j1", **fields: Any) -> bytes:
    return json.dumps({"class": "a", "args": [jid], "queue": "default", "jid": jid, **fields}).encode()


UNIQUE_RUN: dict[str, Any] = {"unique": "until_executed"}
PERIODIC_RUN: dict[str, Any] = {"periodic_pjid": "p1"}
EXECUTED_RUN: dict[str, Any] = {"periodic_pjid": "p1", "periodic_until_executed": True}
JOB = job(**UNIQUE_RUN, **EXECUTED_RUN)
UNIQUE, RUNNING = LOCKS.held(parse(JOB), "default")


def unique_of(raw: bytes, locks: Locks = LOCKS) -> str:
    found = locks.unique(parse(raw), "default")
    assert found is not None
    return found


class Store:
    """A server with two registered identities, and no job anywhere yet."""

    def __init__(self, client: Any) -> None:
        self.client = client
        client.sadd(KEYS.inprogress_identities, ME, GONE)
        client.sadd(KEYS.wards, GONE)
        client.set(KEYS.look(ME), 1, ex=1000)

    def run(self, call: Call) -> Any:
        return self.client.register_script(call.script.text)(keys=list(call.keys), args=list(call.args))

    def put(self, key: str | None, job: bytes) -> None:
        if key == KEYS.dead:
            self.client.zadd(key, {job: 1})
        elif key is not None:
            self.client.lpush(key, job)

    def holds(self, key: str) -> int:
        """How many jobs a list or a sorted set has."""
        return int(self.client.zcard(key) if self.client.type(key) == b"zset" else self.client.llen(key))


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with redis.Redis(port=server.port) as client:
        yield Store(client)


# ---- moves after which a job goes on waiting ---------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """One way in which a script moves a job.

    Attributes:
        source: where the job is before; None: nowhere, only a child had it.
        target: where it is afterwards; None: nowhere.
        make: gives the call that moves a job, under the rules for locks that are given.
        retakes: it takes a lapsed running lock of an until_executed run again.
    """

    name: str
    source: str | None
    target: str | None
    make: Callable[[bytes, Locks], Call]
    retakes: bool = False

    def __str__(self) -> str:
        return self.name


def settlement(raw: bytes, locks: Locks, outcome: Outcome) -> Settlement:
    return locks.settlement(raw, parse(raw), "default", outcome, NOW)


def settling(outcome: Outcome) -> list[tuple[str, str | None, Callable[[bytes, Locks], Call]]]:
    """The four scripts that settle, with an outcome."""
    queues, queue_keys = ["x"], [KEYS.queue("x")]
    return [
        ("settle", MINE, lambda raw, locks: scripts.settle(KEYS, ME, settlement(raw, locks, outcome), NOW)),
        (
            "settle and fetch",
            MINE,
            lambda raw, locks: scripts.settle_and_fetch(
                KEYS, ME, settlement(raw, locks, outcome), NOW, queues, queue_keys
            ),
        ),
        ("basic settle", None, lambda raw, locks: scripts.basic_settle(KEYS, settlement(raw, locks, outcome), NOW)),
        (
            "basic settle and fetch",
            None,
            lambda raw, locks: scripts.basic_settle_and_fetch(
                KEYS, settlement(raw, locks, outcome), NOW, queues, queue_keys
            ),
        ),
    ]


def burial(raw: bytes, locks: Locks) -> Burial:
    return burial_of(raw, "default", "it died", locks, NOW)


def requeue(limit: int) -> Callable[[bytes, Locks], Call]:
    return lambda raw, locks: scripts.requeue(KEYS, ME, raw, "default", 1, True, limit, burial(raw, locks), NOW)


def basic_requeue(limit: int) -> Callable[[bytes, Locks], Call]:
    return lambda raw, locks: scripts.basic_requeue(KEYS, raw, "default", True, limit, burial(raw, locks), NOW)


def recover(*listed: Listed) -> Call:
    return scripts.recover(KEYS, GONE, listed, 300, False, 3, NOW)


def park(outcome: Outcome) -> Callable[[bytes, Locks], Call]:
    return lambda raw, locks: scripts.park(KEYS, ME, settlement(raw, locks, outcome), RECORD, False, NOW)


def file_parked(target: str) -> Callable[[bytes, Locks], Call]:
    return lambda raw, locks: scripts.file_parked(
        KEYS, raw, target, NOW, b"entry", locks.waiting(parse(raw), "default"), NOW
    )


WAITING = [
    *(Move(f"{name} to retry", source, KEYS.retry, make) for name, source, make in settling(RETRY)),
    Move("requeue", MINE, QUEUE, requeue(3), retakes=True),
    Move("basic requeue", None, QUEUE, basic_requeue(3), retakes=True),
    Move(
        "give back",
        MINE,
        QUEUE,
        lambda raw, locks: scripts.give_back(KEYS, ME, raw, "default", locks.of_bytes(raw, "default")),
        retakes=True,
    ),
    Move("recover", THEIRS, SUSPECTS, lambda raw, locks: recover(listed_job(raw, locks)), retakes=True),
    Move(
        "farewell",
        MINE,
        QUEUE,
        lambda raw, locks: scripts.farewell(KEYS, ME, [], [listed_job(raw, locks)], True),
        retakes=True,
    ),
    Move("park a retry", MINE, KEYS.unsettled, park(RETRY)),
    Move("file in retry", KEYS.unsettled, KEYS.retry, file_parked(KEYS.retry)),
    Move("file in schedule", KEYS.unsettled, KEYS.schedule, file_parked(KEYS.schedule)),
]
OVER = [
    *(Move(f"{name}, a success", source, None, make) for name, source, make in settling(SUCCESS)),
    *(Move(f"{name} to dead", source, KEYS.dead, make) for name, source, make in settling(DEAD)),
    *(Move(f"{name}, discarded", source, None, make) for name, source, make in settling(DISCARD)),
    Move("requeue to dead", MINE, KEYS.dead, requeue(0)),
    Move("basic requeue to dead", None, KEYS.dead, basic_requeue(0)),
    Move(
        "repeat orphan to dead",
        KEYS.repeat_orphans,
        KEYS.dead,
        lambda raw, locks: scripts.bury_repeat_orphan(KEYS, raw, burial(raw, locks), NOW),
    ),
    Move(
        "complete a raw burial",
        KEYS.dead,
        KEYS.dead,
        lambda raw, locks: scripts.complete_burial(KEYS, raw, burial(raw, locks), NOW),
    ),
    Move("file in dead", KEYS.unsettled, KEYS.dead, file_parked(KEYS.dead)),
]
EVERY_WAITING = pytest.mark.parametrize("move", WAITING, ids=str)
EVERY_OVER = pytest.mark.parametrize("move", OVER, ids=str)
RETAKING = [move for move in WAITING if move.retakes]


def carry_out(move: Move, store: Store, raw: bytes = JOB, locks: Locks = LOCKS) -> list[Unreleased]:
    """Put the job at its place, move it, and see that it is moved.

    Returns:
        What could not be released.
    """
    store.put(move.source, raw)
    reply = store.run(move.make(raw, locks))
    if move.source is not None and move.source != move.target:
        assert store.holds(move.source) == 0
    if move.target is not None:
        assert store.holds(move.target) == 1
    # settle_and_fetch answers {what settle answers, index of the queue, job}
    answer = reply[0] if "and fetch" in move.name else reply
    return scripts.split_answer(answer, "j1")[1] if move in OVER else []


def about(seconds: float, ttl: int) -> bool:
    """Whether a time to live that was set a moment ago is this one."""
    return seconds - 5 <= ttl <= seconds


def delay_of(move: Move) -> int:
    return 600 if move.name.endswith("retry") and move.name != "file in retry" else 0


@EVERY_WAITING
def test_r52_a_move_after_which_a_job_waits_extends_the_locks_that_it_owns_by_the_wait(
    move: Move, store: Store
) -> None:
    store.client.set(UNIQUE, "j1", ex=50)
    store.client.set(RUNNING, "j1", ex=50)
    carry_out(move, store)
    for lock in (UNIQUE, RUNNING):
        assert store.client.get(lock) == b"j1"
        assert about(DAY + delay_of(move), store.client.ttl(lock))


@EVERY_WAITING
def test_r52_a_move_after_which_a_job_waits_shortens_no_lock_and_leaves_none_without_an_end(
    move: Move, store: Store
) -> None:
    store.client.set(UNIQUE, "j1", ex=10 * DAY)
    store.client.set(RUNNING, "j1")
    carry_out(move, store)
    assert about(10 * DAY, store.client.ttl(UNIQUE))
    assert about(DAY + delay_of(move), store.client.ttl(RUNNING))


@EVERY_WAITING
def test_r50_a_move_after_which_a_job_waits_leaves_the_locks_of_others_alone(move: Move, store: Store) -> None:
    """R42: that somebody else has the running lock by then is no reason to take it."""
    store.client.set(UNIQUE, "j2", ex=50)
    store.client.set(RUNNING, "j3", ex=50)
    carry_out(move, store)
    assert (store.client.get(UNIQUE), store.client.get(RUNNING)) == (b"j2", b"j3")
    assert about(50, store.client.ttl(UNIQUE))
    assert about(50, store.client.ttl(RUNNING))


@EVERY_WAITING
def test_r42_only_a_move_to_the_queue_takes_a_lapsed_lock_again_and_only_the_running_one(
    move: Move, store: Store
) -> None:
    carry_out(move, store)
    assert not store.client.exists(UNIQUE, KEYS.nothing)
    if move.retakes:
        assert store.client.get(RUNNING) == b"j1"
        assert about(DAY, store.client.ttl(RUNNING))
    else:
        assert not store.client.exists(RUNNING)


@pytest.mark.parametrize("fields", [UNIQUE_RUN, PERIODIC_RUN, {**UNIQUE_RUN, **PERIODIC_RUN}], ids=str)
@EVERY_WAITING
def test_r42_a_run_that_is_not_until_executed_takes_no_lock_again(
    move: Move, fields: dict[str, Any], store: Store
) -> None:
    carry_out(move, store, job(**fields))
    assert store.client.keys("*unique:*") == store.client.keys("periodic:*") == []
    assert not store.client.exists(KEYS.nothing)


@pytest.mark.parametrize("fields", [{}, UNIQUE_RUN], ids=str)
@pytest.mark.parametrize("move", [move for move in RETAKING if move.name in ("recover", "farewell")], ids=str)
def test_r42_a_run_whose_entry_has_no_usable_id_takes_no_lock_at_all(
    move: Move, fields: dict[str, Any], store: Store
) -> None:
    """Neither its unique lock, nor the key that stands for one that it has not: children wait on that one as a list."""
    carry_out(move, store, job(periodic_pjid=5, periodic_until_executed=True, **fields))
    assert store.client.keys("*unique:*") == []
    assert not store.client.exists(KEYS.nothing)


@EVERY_WAITING
def test_r50_a_lock_of_the_wrong_type_stops_no_move_and_keeps_no_other_from_being_kept(
    move: Move, store: Store
) -> None:
    for odd, fine in ((UNIQUE, RUNNING), (RUNNING, UNIQUE)):
        store.client.delete(UNIQUE, RUNNING, *(key for key in (move.source, move.target) if key))
        store.client.rpush(odd, "j1")
        store.client.set(fine, "j1", ex=50)
        carry_out(move, store)
        assert store.client.lrange(odd, 0, -1) == [b"j1"]
        assert store.client.ttl(odd) == -1
        assert about(DAY + delay_of(move), store.client.ttl(fine))


def test_r50_a_burial_that_is_parked_keeps_its_locks_until_it_is_filed_but_no_longer_than_they_last(
    store: Store,
) -> None:
    """R48: filing it releases them."""
    store.client.set(UNIQUE, "j1", ex=50)
    store.client.set(RUNNING, "j2", ex=50)
    carry_out(Move("park a burial", MINE, KEYS.unsettled, park(DEAD)), store)
    assert (store.client.get(UNIQUE), store.client.get(RUNNING)) == (b"j1", b"j2")
    assert about(50, store.client.ttl(UNIQUE))
    store.client.delete(KEYS.unsettled)
    carry_out(Move("file in dead", KEYS.unsettled, KEYS.dead, file_parked(KEYS.dead)), store)
    assert not store.client.exists(UNIQUE)
    assert store.client.get(RUNNING) == b"j2"


@pytest.mark.parametrize("ttl", [0.2, 90.25, 86_400.5])
@EVERY_WAITING
def test_r6_a_fractional_unique_lock_ttl_works_in_every_move(move: Move, ttl: float, store: Store) -> None:
    """R6: in whole seconds, rounded up, and so never 0, which would end the lock."""
    store.client.set(UNIQUE, "j1", px=150)
    store.client.set(RUNNING, "j1", px=150)
    carry_out(move, store, locks=Locks(KEYS, ttl))
    for lock in (UNIQUE, RUNNING):
        left = store.client.pttl(lock)
        assert 1000 * (math.ceil(ttl) + delay_of(move)) - 900 < left <= 1000 * (math.ceil(ttl) + delay_of(move))


@pytest.mark.parametrize("move", RETAKING, ids=str)
def test_r6_a_fractional_unique_lock_ttl_works_where_a_lock_is_taken_again(move: Move, store: Store) -> None:
    carry_out(move, store, locks=Locks(KEYS, 0.2))
    assert 0 < store.client.pttl(RUNNING) <= 1000


# ---- moves after which a job is over -----------------------------------------------------------------------


@EVERY_OVER
def test_r50_a_job_that_is_over_releases_what_it_owns(move: Move, store: Store) -> None:
    store.client.set(UNIQUE, "j1", ex=50)
    store.client.set(RUNNING, "j1", ex=50)
    assert carry_out(move, store) == []
    assert not store.client.exists(UNIQUE, RUNNING)


@EVERY_OVER
def test_r50_a_job_that_is_over_leaves_the_locks_of_others_alone_and_takes_none(move: Move, store: Store) -> None:
    store.client.set(UNIQUE, "j2", ex=50)
    assert carry_out(move, store) == []
    assert store.client.get(UNIQUE) == b"j2"
    assert about(50, store.client.ttl(UNIQUE))
    assert not store.client.exists(RUNNING)


@EVERY_OVER
def test_r50_a_lock_of_the_wrong_type_stops_no_end_of_a_job_and_is_reported(move: Move, store: Store) -> None:
    for odd, fine in ((UNIQUE, RUNNING), (RUNNING, UNIQUE)):
        store.client.delete(UNIQUE, RUNNING, KEYS.dead)
        store.client.rpush(odd, "j1")
        store.client.set(fine, "j1", ex=50)
        (unreleased,) = carry_out(move, store)
        assert (unreleased.key, unreleased.owner) == (odd, "j1")
        assert "WRONGTYPE" in unreleased.error
        assert store.client.lrange(odd, 0, -1) == [b"j1"]
        assert not store.client.exists(fine)


# ---- several jobs in one step ------------------------------------------------------------------------------

BATCH: dict[str, dict[str, Any]] = {
    "both": {**UNIQUE_RUN, "periodic_pjid": "p-both", "periodic_until_executed": True},
    "unique": UNIQUE_RUN,
    "executed": {"periodic_pjid": "p-executed", "periodic_until_executed": True},
    "periodic": {"periodic_pjid": "p-periodic"},
    "none": {},
}


@pytest.mark.parametrize("which", ["recover", "farewell"])
def test_r42_each_job_of_a_step_has_its_own_locks_kept_and_taken(which: str, store: Store) -> None:
    """R50: as owner each has its own jid."""
    raws = [job(jid, **fields) for jid, fields in BATCH.items()]
    source = THEIRS if which == "recover" else MINE
    store.client.rpush(source, *raws)
    held = [unique_of(raws[0]), unique_of(raws[1]), KEYS.periodic_running("p-periodic")]
    for key, jid in zip(held, ("both", "unique", "periodic"), strict=True):
        store.client.set(key, jid, ex=50)
    jobs = [listed_job(raw, LOCKS) for raw in raws]
    store.run(recover(*jobs) if which == "recover" else scripts.farewell(KEYS, ME, [], jobs, True))
    assert store.client.llen(SUSPECTS if which == "recover" else QUEUE) == len(BATCH)
    expected = {
        held[0]: b"both",
        held[1]: b"unique",
        held[2]: b"periodic",
        KEYS.periodic_running("p-both"): b"both",
        KEYS.periodic_running("p-executed"): b"executed",
    }
    found = {key.decode(): store.client.get(key) for key in store.client.keys("*unique:*") + store.client.keys("per*")}
    assert found == expected
    assert all(about(DAY, store.client.ttl(key)) for key in expected)
    assert not store.client.exists(KEYS.nothing)


def test_r39_a_job_over_the_limit_neither_loses_nor_takes_locks_before_it_is_buried(store: Store) -> None:
    """R42, R48: what releases them is the burial."""
    store.client.set(KEYS.orphanings("j1"), 3)
    store.client.set(UNIQUE, "j1", ex=50)
    store.client.lpush(THEIRS, JOB)
    store.run(recover(listed_job(JOB, LOCKS)))
    assert store.client.lrange(KEYS.repeat_orphans, 0, -1) == [JOB]
    assert store.client.get(UNIQUE) == b"j1"
    assert not store.client.exists(RUNNING)


@pytest.mark.parametrize("which", ["recover", "farewell"])
def test_r42_a_job_that_cannot_be_moved_takes_no_lock(which: str, store: Store) -> None:
    store.client.mset({QUEUE: "no list", SUSPECTS: "no list"})
    source = THEIRS if which == "recover" else MINE
    store.client.lpush(source, JOB)
    listed = listed_job(JOB, LOCKS)
    store.run(recover(listed) if which == "recover" else scripts.farewell(KEYS, ME, [], [listed], True))
    assert store.client.lrange(source, 0, -1) == [JOB]
    assert not store.client.exists(RUNNING)


def test_r42_a_job_that_the_list_has_no_more_takes_no_lock(store: Store) -> None:
    """R35: it may be over meanwhile."""
    for move in RETAKING:
        if move.source is not None:
            store.run(move.make(JOB, LOCKS))
            assert not store.client.exists(RUNNING, QUEUE, SUSPECTS), move.name


# ---- by the supervisor's coroutines ------------------------------------------------------------------------


def run(url: str, work: Work) -> None:
    async def inside() -> None:
        async with parts(url) as made:
            await work(made)

    asyncio.run(inside())


async def recover_the_dead(made: Parts) -> None:
    """Two turns, so far apart that the second look is due."""
    recovery = made.recovery()
    for now in (1000.0, 1011.0):
        await recovery.turn(now)


async def requeue_an_orphan(made: Parts) -> None:
    child = made.child()
    made.started(child, JOB)
    made.ledger.died(child, False, "SIGKILL")
    reconciler = made.reconciler()
    await reconciler.register()
    await reconciler.reconcile()


async def stop(made: Parts) -> None:
    await made.say_farewell(made.reconciler())


@pytest.mark.parametrize(
    ("source", "work"),
    [(THEIRS, recover_the_dead), (MINE, requeue_an_orphan), (MINE, stop)],
    ids=["recovery", "reconciler", "farewell"],
)
@pytest.mark.parametrize("holder", [None, "another"])
def test_r42_a_job_that_comes_back_has_its_running_lock_again_unless_somebody_else_has_it(
    holder: str | None, source: str, work: Work, server: Server, client: Client
) -> None:
    client.sadd(KEYS.inprogress_identities, ME, GONE)
    client.hset(KEYS.last_beat, GONE, client.time()[0] - 1000)
    client.lpush(source, JOB)
    client.set(UNIQUE, "j1", ex=50)
    if holder:
        client.set(RUNNING, holder, ex=50)
    run(server.url, work)
    assert client.lrange(SUSPECTS if source == THEIRS else QUEUE, 0, -1) == [JOB.decode()]
    assert client.get(RUNNING) == (holder or "j1")
    assert client.get(UNIQUE) == "j1"
    assert about(DAY, client.ttl(UNIQUE))


def keeper_of(made: Parts, locks: Locks = LOCKS) -> LockKeeper:
    return LockKeeper(made.link, locks, made.ledger, made.log)


def test_r14_the_locks_of_jobs_inside_perform_are_refreshed_by_the_record_whatever_the_server_lists(
    server: Server, client: Client
) -> None:
    """R14: STARTED and no other phase; an entry of a list is no reason, and none that is missing is one."""
    raws = {jid: job(jid, periodic_pjid=f"p-{jid}", **UNIQUE_RUN) for jid in ("performing", "performed", "listed")}
    locks = {jid: (unique_of(raw), KEYS.periodic_running(f"p-{jid}")) for jid, raw in raws.items()}
    for jid, keys in locks.items():
        for key in keys:
            client.set(key, jid, ex=50)
    client.lpush(MINE, raws["performed"], raws["listed"])
    client.hset(KEYS.workers(ME), "1", json.dumps({"payload": raws["listed"].decode()}))

    async def work(made: Parts) -> None:
        one, two, _ = made.child(), made.child(), made.child()
        made.started(one, raws["performing"])
        made.started(two, raws["performed"])
        made.performed(two, SUCCESS)
        await keeper_of(made).refresh()
        assert made.said.told == []

    run(server.url, work)
    unique, running = locks["performing"]
    assert about(DAY, client.ttl(unique))
    assert about(300 + 120, client.ttl(running))  # until others may have recovered it
    for jid in ("performed", "listed"):
        assert all(about(50, client.ttl(key)) for key in locks[jid])


def test_r14_the_queue_that_a_job_was_found_on_counts_where_it_names_none(server: Server, client: Client) -> None:
    raw = b'{"class":"a","args":[],"jid":"j1","unique":"until_executed"}'
    client.set(unique_of(raw), "j1", ex=50)

    async def work(made: Parts) -> None:
        made.started(made.child(), raw)
        await keeper_of(made).refresh()

    run(server.url, work)
    assert about(DAY, client.ttl(unique_of(raw)))


@pytest.mark.parametrize(("ttl", "threshold"), [(0.2, 0.3), (90.25, 100.75)])
def test_r6_fractional_times_work_for_jobs_at_work_too(
    ttl: float, threshold: float, server: Server, client: Client
) -> None:
    client.set(UNIQUE, "j1", px=150)
    client.set(RUNNING, "j1", ex=5)

    async def work(made: Parts) -> None:
        made.started(made.child(), JOB)
        await keeper_of(made, Locks(KEYS, ttl, threshold)).refresh()
        assert made.said.told == []

    run(server.url, work)
    assert 1000 * math.ceil(ttl) - 900 < client.pttl(UNIQUE) <= 1000 * math.ceil(ttl)
    assert about(math.ceil(threshold + 120), client.ttl(RUNNING))


@pytest.mark.parametrize(
    ("fields", "taken"),
    [(EXECUTED_RUN, True), (PERIODIC_RUN, False), ({**UNIQUE_RUN, **EXECUTED_RUN}, True), (UNIQUE_RUN, False)],
    ids=str,
)
def test_r15_a_lapsed_running_lock_is_taken_again_on_the_first_round_after_a_failed_beat_and_on_no_other(
    fields: dict[str, Any], taken: bool, server: Server, client: Client
) -> None:
    raw = job(**fields)

    async def work(made: Parts) -> None:
        keeper = keeper_of(made)
        made.started(made.child(), raw)
        await keeper.refresh()
        assert client.keys("*") == []
        keeper.interrupted()
        await keeper.refresh()
        assert client.keys("*") == ([RUNNING] if taken else [])
        if taken:
            assert client.get(RUNNING) == "j1"
            assert about(300 + 120, client.ttl(RUNNING))
        client.delete(RUNNING)
        await keeper.refresh()
        assert client.keys("*") == []

    run(server.url, work)


def test_r15_a_failed_beat_before_a_job_has_begun_does_not_count_for_it(server: Server, client: Client) -> None:
    async def work(made: Parts) -> None:
        keeper = keeper_of(made)
        keeper.interrupted()
        await keeper.refresh()
        made.started(made.child(), JOB)
        await keeper.refresh()
        assert client.keys("*") == []

    run(server.url, work)


def test_r15_a_round_that_failed_itself_is_not_the_first_after_a_failed_beat(server: Server, client: Client) -> None:
    async def work(made: Parts) -> None:
        keeper = keeper_of(made)
        made.started(made.child(), JOB)
        keeper.interrupted()
        with pytest.raises(redis.ResponseError):
            await keeper.refresh()
        client.execute_command("ACL", "SETUSER", name, "+evalsha")
        assert client.keys("*") == []
        await keeper.refresh()
        assert client.get(RUNNING) == "j1"

    with limited_user(server, client, "-evalsha") as url:
        name = urlsplit(url).username
        run(url, work)


def test_r50_a_lock_that_somebody_else_holds_is_neither_refreshed_nor_taken(server: Server, client: Client) -> None:
    """R15: not even after a failed beat."""
    client.set(UNIQUE, "j2", ex=50)
    client.set(RUNNING, "j3", ex=50)

    async def work(made: Parts) -> None:
        keeper = keeper_of(made)
        made.started(made.child(), JOB)
        keeper.interrupted()
        await keeper.refresh()
        lost = sorted((said["lock"], said["jid"]) for said in made.said.of("lock.lost"))
        assert lost == sorted([(UNIQUE, "j1"), (RUNNING, "j1")])

    run(server.url, work)
    assert (client.get(UNIQUE), client.get(RUNNING)) == ("j2", "j3")
    assert about(50, client.ttl(UNIQUE))
    assert about(50, client.ttl(RUNNING))


@pytest.mark.parametrize("first", [True, False])
def test_r16_one_lock_of_the_wrong_type_and_one_job_that_cannot_be_read_keep_no_other_from_being_refreshed(
    first: bool, server: Server, client: Client
) -> None:
    odd, fine = job("odd", periodic_pjid="odd", **UNIQUE_RUN), job("fine", periodic_pjid="fine", **UNIQUE_RUN)
    broken, lost = b'{"class":"a","unique":"until_executed"', job("lost", **UNIQUE_RUN)
    client.rpush(unique_of(odd), "odd")
    keys = [KEYS.periodic_running("odd"), unique_of(fine), KEYS.periodic_running("fine")]
    for key in keys:
        client.set(key, "odd" if key.endswith("odd") else "fine", ex=50)
    guarded: list[bool] = []

    async def work(made: Parts) -> None:
        made.link.wrong_type = lambda: guarded.append(True)
        for raw in (broken, odd, fine, lost) if first else (lost, fine, odd, broken):
            made.started(made.child(), raw)
        await keeper_of(made).refresh()
        ((_, error), (_, told)) = sorted(made.said.told, reverse=True)
        assert error["site"] == f"lock {unique_of(odd)}"
        assert "WRONGTYPE" in error["error"]
        assert told == {"lock": unique_of(lost), "jid": "lost"}

    run(server.url, work)
    assert all(client.ttl(key) > 400 for key in keys)
    assert client.lrange(unique_of(odd), 0, -1) == ["odd"]
    assert client.ttl(unique_of(odd)) == -1
    assert guarded == [True]


@pytest.mark.parametrize("field", ["args", "kwargs"])
def test_r16_no_depth_of_nesting_makes_the_locks_of_a_job_unreadable(field: str) -> None:
    """Whoever asks for them, a recovery above all, must get an answer: a job that cannot be read has none."""
    for depth in range(800, 1050):
        value = "[" * depth + "]" * depth
        given = value if field == "args" else '{"a":' + value + "}"
        LOCKS.of_bytes(f'{{"class":"a","jid":"j","unique":"until_executed","{field}":{given}}}'.encode(), "default")


def test_a_lost_lock_is_told_once_for_each_time_it_is_lost(server: Server, client: Client) -> None:
    async def work(made: Parts) -> None:
        keeper = keeper_of(made)
        made.started(made.child(), job(**UNIQUE_RUN))
        lock = unique_of(job(**UNIQUE_RUN))
        for times in (1, 2):
            client.set(lock, "j1", ex=50)
            await keeper.refresh()
            client.delete(lock)
            for _ in range(3):
                await keeper.refresh()
            assert made.said.of("lock.lost") == [{"lock": lock, "jid": "j1"}] * times
            assert not client.exists(lock)

    run(server.url, work)


def test_refresh_answers_for_each_lock_in_its_order(store: Store) -> None:
    store.client.set("mine", "a", ex=50)
    store.client.rpush("odd", "b")
    store.client.set("theirs", "x", ex=50)
    wanted = [
        LockRefresh("theirs", "c", 100, True),
        LockRefresh("odd", "b", 100, True),
        LockRefresh("lapsed", "d", 100, True),
        LockRefresh("mine", "a", 100, False),
        LockRefresh("released", "e", 100, False),
    ]
    theirs, odd, *rest = store.run(scripts.refresh_locks(wanted))
    assert (theirs, *rest) == (0, 1, 1, 0)
    assert b"WRONGTYPE" in odd
    assert store.client.get("lapsed") == b"d"
    assert about(100, store.client.ttl("lapsed"))
    assert not store.client.exists("released")


# ---- deferred releases -------------------------------------------------------------------------------------


def locks_held(client: Client, count: int) -> list[Unreleased]:
    """Locks of as many jobs, that could not be released."""
    found = [Unreleased(KEYS.unique(f"u{n}"), f"j{n}", "NOPERM") for n in range(count)]
    for lock in found:
        client.set(lock.key, lock.owner, ex=500)
    return found


def test_r51_a_release_that_fails_does_not_keep_others_from_being_made_and_is_tried_again(
    server: Server, client: Client
) -> None:
    """R51: with its owner: a lock that has another one by then is left alone."""
    first, second, third = locks_held(client, 3)

    async def work(made: Parts) -> None:
        made.deferred.add([first, second, third, first])
        assert len(made.said.of("lock.deferred")) == 3
        await made.deferred.retry()
        assert client.exists(first.key, second.key, third.key) == 1
        client.set(second.key, "another", ex=500)
        client.execute_command("ACL", "SETUSER", name, "resetkeys", "~*")
        await made.deferred.retry()
        assert client.get(second.key) == "another"
        client.set(second.key, second.owner)
        await made.deferred.retry()
        assert client.get(second.key) == second.owner  # its turn is over

    with limited_user(server, client, "resetkeys", f"~{first.key}", f"~{third.key}") as url:
        name = urlsplit(url).username
        run(url, work)


def test_r51_a_release_that_can_never_work_is_dropped_with_one_line(server: Server, client: Client) -> None:
    (lock, other) = locks_held(client, 2)

    async def work(made: Parts) -> None:
        made.deferred.add([lock, other])
        client.delete(lock.key)
        client.rpush(lock.key, lock.owner)
        for _ in range(2):
            await made.deferred.retry()
        (line,) = made.said.of("lock.dropped")
        assert (line["lock"], line["jid"]) == (lock.key, lock.owner)

    run(server.url, work)
    assert client.lrange(lock.key, 0, -1) == [lock.owner]
    assert not client.exists(other.key)


def test_r51_the_first_release_that_finds_the_server_away_ends_the_round_and_all_wait(
    server: Server, client: Client
) -> None:
    found = locks_held(client, 3)
    proxy = CuttingProxy(server.port)

    async def work(made: Parts) -> None:
        made.deferred.add(found)
        proxy.cut_before(found[1].key.encode(), times=100)
        with pytest.raises(redis.ConnectionError):
            await made.deferred.retry()
        assert proxy.sent.count(found[2].key.encode()) == 0
        assert client.exists(*(lock.key for lock in found)) == 2
        proxy.cut_before(b"nothing", times=0)
        await made.deferred.retry()

    try:
        run(proxy.url, work)
    finally:
        proxy.close()
    assert not client.exists(*(lock.key for lock in found))


def test_r50_no_script_gives_a_lock_up_or_takes_one_without_its_owner(store: Store) -> None:
    """The one lock in the hands of another, whatever the script is called with."""
    lock = KEYS.unique("u")
    store.client.set(lock, "another", ex=500)
    held = JobLocks("j1", (lock,), True, 60)
    for call in (
        scripts.release_lock(lock, "j1"),
        scripts.refresh_locks([LockRefresh(lock, "j1", 60, True)]),
        scripts.push_unique(KEYS, held, "default", b"{}", None),
        scripts.push_unique(KEYS, held, "default", b"{}", 5.0),
    ):
        assert store.run(call) in (0, [0])
        assert store.client.get(lock) == b"another"
        assert about(500, store.client.ttl(lock))
    assert not store.client.exists(QUEUE, KEYS.schedule)
