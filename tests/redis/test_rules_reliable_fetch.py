"""The rules of reliable fetch: what each script does when it cannot, and passes of poller, recovery and farewell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
import redis
import redis.exceptions

from cogworkerd.locks import JobLocks
from cogworkerd.outcome import SUCCESS, Kind, Outcome, Settlement
from cogworkerd.store import scripts
from cogworkerd.store.keys import suspects_of
from cogworkerd.store.scripts import Burial, Call, Listed
from cogworkerd.worker.reports import Result
from tests.supervisor_parts import KEYS, ME, MINE, Parts, Work, limited_user, parts
from tests.support import Client, Server

NOW = 1_700_000_000.0
QUEUE = KEYS.queue("default")
SUSPECTS = KEYS.queue(suspects_of("default"))
LOCK = KEYS.unique("u")
GONE = "elsewhere:9:bbbbbbbbbbbb"
THEIRS = KEYS.inprogress(GONE)
JOB = b'{"class":"a","jid":"j1","queue":"default"}'
RETRY = Outcome(Kind.RETRY, 12.5, b'{"later":1}', b'{"attempt":1}')
DEAD = Outcome(Kind.DEAD, 13.5, b'{"dead":1}', b'{"attempt":4}')
LOCKS = JobLocks("j1", (LOCK,), ttl=60)
BURIAL = Burial(LOCKS, DEAD)
LISTED = Listed(JOB, "default", LOCKS)


def run(url: str, work: Work) -> None:
    async def inside() -> None:
        async with parts(url) as made:
            await work(made)

    asyncio.run(inside())


# ---- R34 -----------------------------------------------------------------------------------------------


def test_a_fetch_takes_the_tail_of_the_queue_to_the_head_of_the_list(server: Server, client: Client) -> None:
    """R34: the oldest job of the queue, in front of what the list holds; a paused queue is passed over."""
    client.sadd(KEYS.inprogress_identities, ME)
    client.lpush(QUEUE, "old", "young")
    client.lpush(KEYS.queue("paused"), "stays")
    client.sadd(KEYS.paused_queues, "paused")
    client.lpush(MINE, "held")
    names = ["paused", "default"]
    call = scripts.fetch(KEYS, ME, names, [KEYS.queue(name) for name in names])

    async def work(made: Parts) -> None:
        assert await made.link.call(call) == [2, b"old"]

    run(server.url, work)
    assert client.lrange(MINE, 0, -1) == ["old", "held"]
    assert client.lrange(QUEUE, 0, -1) == ["young"]
    assert client.lrange(KEYS.queue("paused"), 0, -1) == ["stays"]


# ---- R35 -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """One way in which a script moves a job."""

    name: str
    source: str
    target: str
    call: Call


def done(outcome: Outcome) -> Settlement:
    return Settlement(JOB, "j1", (LOCK,), outcome)


def moves() -> list[Move]:
    """Every move that a script can make, each through the function that lays out its arguments."""
    both = [
        scripts.settle_and_fetch(KEYS, ME, done(outcome), NOW, ["x"], [KEYS.queue("x")]) for outcome in (RETRY, DEAD)
    ]
    requeues = [scripts.requeue(KEYS, ME, JOB, "default", 1, True, limit, BURIAL, NOW) for limit in (3, 0)]
    found = [
        Move("fetch", QUEUE, MINE, scripts.fetch(KEYS, ME, ["default"], [QUEUE])),
        Move("settle to retry", MINE, KEYS.retry, scripts.settle(KEYS, ME, done(RETRY), NOW)),
        Move("settle to dead", MINE, KEYS.dead, scripts.settle(KEYS, ME, done(DEAD), NOW)),
        Move("settle to retry and fetch", MINE, KEYS.retry, both[0]),
        Move("settle to dead and fetch", MINE, KEYS.dead, both[1]),
        Move("requeue", MINE, QUEUE, requeues[0]),
        Move("requeue to dead", MINE, KEYS.dead, requeues[1]),
        Move("give back", MINE, QUEUE, scripts.give_back(KEYS, ME, JOB, "default", LOCKS)),
        Move("due of schedule", KEYS.schedule, QUEUE, scripts.move_due(KEYS, KEYS.schedule, [(JOB, JOB, "default")])),
        Move("due of retry", KEYS.retry, QUEUE, scripts.move_due(KEYS, KEYS.retry, [(JOB, JOB, "default")])),
        Move("due to dead", KEYS.retry, KEYS.dead, scripts.bury_due(KEYS, KEYS.retry, JOB, b"entry", NOW)),
        Move("recover", THEIRS, SUSPECTS, scripts.recover(KEYS, GONE, [LISTED], 300, False, 3, NOW)),
        Move(
            "repeat orphan to dead",
            KEYS.repeat_orphans,
            KEYS.dead,
            scripts.bury_repeat_orphan(KEYS, JOB, BURIAL, NOW),
        ),
        Move("farewell", MINE, QUEUE, scripts.farewell(KEYS, ME, [], [LISTED], True)),
    ]
    return [*found, *_moves_of_parked()]


def _moves_of_parked() -> list[Move]:
    record = b'{"set":"cogworker:dead"}'
    return [
        Move("park", MINE, KEYS.unsettled, scripts.park(KEYS, ME, done(DEAD), record, False, NOW)),
        Move(
            "file what was parked",
            KEYS.unsettled,
            KEYS.dead,
            scripts.file_parked(KEYS, JOB, KEYS.dead, 1.5, b"entry", LOCKS, NOW),
        ),
        Move(
            "set a record aside",
            KEYS.unsettled,
            KEYS.quarantined_records,
            scripts.set_record_aside(KEYS, JOB),
        ),
    ]


EVERY_MOVE = pytest.mark.parametrize("move", moves(), ids=lambda move: move.name)
MOVES_OF_ONE_JOB = [move for move in moves() if move.name != "fetch"]  # which takes whatever is there
BOOKS = (KEYS.processed, KEYS.failed, KEYS.throughput(NOW), KEYS.attempts("j1"), KEYS.orphanings("j1"))


class Store:
    """A server with what the moves need, and no job anywhere yet."""

    def __init__(self, client: Any) -> None:
        self.client = client
        client.sadd(KEYS.inprogress_identities, ME, GONE)
        client.sadd(KEYS.wards, GONE)
        client.set(KEYS.look(ME), 1)
        client.set(LOCK, "j1")

    def put(self, key: str, job: bytes) -> None:
        if key in (KEYS.schedule, KEYS.retry):
            self.client.zadd(key, {job: 1})
        else:
            self.client.lpush(key, job)

    def held(self, key: str) -> list[bytes]:
        """What a key holds, if it is of one of the two kinds that hold jobs."""
        kind = self.client.type(key)
        if kind == b"string":
            return []
        found: list[bytes] = self.client.zrange(key, 0, -1) if kind == b"zset" else self.client.lrange(key, 0, -1)
        return found

    def run(self, call: Call) -> Any:
        return self.client.register_script(call.script.text)(keys=list(call.keys), args=list(call.args))

    @property
    def untold(self) -> bool:
        """Nothing was counted, noted or released."""
        return not self.client.exists(*BOOKS) and bool(self.client.get(LOCK) == b"j1")


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield Store(client)


@EVERY_MOVE
def test_a_job_goes_from_its_source_to_its_target(move: Move, store: Store) -> None:
    """R35: what the two tests below take away."""
    store.put(move.source, JOB)
    store.run(move.call)
    assert store.held(move.source) == []
    assert len(store.held(move.target)) == 1


@EVERY_MOVE
def test_a_script_that_cannot_write_its_target_leaves_the_source_as_it_was(move: Move, store: Store) -> None:
    """R35: it writes there before it removes here, and nothing else is done."""
    store.put(move.source, JOB)
    store.client.set(move.target, "another type")
    with contextlib.suppress(redis.exceptions.ResponseError):
        store.run(move.call)
    assert store.held(move.source) == [JOB]
    assert store.client.get(move.target) == b"another type"
    assert store.untold


@EVERY_MOVE
def test_a_script_that_runs_out_of_memory_leaves_the_source_as_it_was(
    move: Move, make_server: Callable[..., Server]
) -> None:
    """R35: the other way in which a target cannot be written."""
    with redis.Redis(port=make_server().port) as client:
        store = Store(client)
        store.put(move.source, JOB)
        client.config_set("maxmemory", "1")
        with contextlib.suppress(redis.exceptions.ResponseError):
            store.run(move.call)
        assert store.held(move.source) == [JOB]
        assert store.held(move.target) == []
        assert store.untold


@pytest.mark.parametrize("move", MOVES_OF_ONE_JOB, ids=lambda move: move.name)
def test_a_script_whose_source_has_the_job_no_more_does_nothing(move: Move, store: Store) -> None:
    """R35: another job is there, which is left where it is."""
    store.put(move.source, b"another")
    store.run(move.call)
    assert store.held(move.source) == [b"another"]
    assert store.held(move.target) == []
    assert store.untold


@EVERY_MOVE
def test_a_script_that_is_run_twice_moves_a_job_once(move: Move, store: Store) -> None:
    """R35: its answer was lost and somebody asked again."""
    store.put(move.source, JOB)
    for _ in range(2):
        store.client.set(KEYS.look(ME), 1)
        store.run(move.call)
    assert len(store.held(move.target)) == 1


# ---- R36 -----------------------------------------------------------------------------------------------


def entry(n: int, queue: str = "default", **fields: Any) -> bytes:
    return json.dumps({"class": "a", "jid": f"j{n}", "args": [n], "queue": queue, **fields}).encode()


def queued(client: Client, queue: str = "default") -> list[dict[str, Any]]:
    """The jobs of a queue, first in first."""
    return [json.loads(raw) for raw in reversed(client.lrange(KEYS.queue(queue), 0, -1))]


async def poll_all(made: Parts, now: float) -> None:
    poller = made.poller()
    while await poller.poll(now):
        pass


@pytest.mark.parametrize("source", [KEYS.schedule, KEYS.retry])
def test_a_due_entry_goes_to_its_queue_with_a_new_stamp(source: str, server: Server, client: Client) -> None:
    """R36: every other field is as it was, what is not due stays, and the queue is listed."""
    now = time.time()
    client.zadd(source, {entry(1, "mail", enqueued_at=5.0, at=9.0, odd=[None]): now - 1, entry(2): now + 60})

    async def work(made: Parts) -> None:
        await poll_all(made, now)

    run(server.url, work)
    (job,) = queued(client, "mail")
    assert job.pop("enqueued_at") == now
    assert job == {"class": "a", "jid": "j1", "args": [1], "queue": "mail", "at": 9.0, "odd": [None]}
    assert client.zrange(source, 0, -1) == [entry(2).decode()]
    assert client.smembers(KEYS.queues) == {"mail"}


def test_due_entries_go_although_their_queues_cannot_be_listed(server: Server, client: Client) -> None:
    """R36: the listing is best-effort."""
    client.set(KEYS.queues, "no set")
    client.zadd(KEYS.schedule, {entry(n): 1 for n in range(3)})

    async def work(made: Parts) -> None:
        await poll_all(made, NOW)

    run(server.url, work)
    assert len(queued(client)) == 3
    assert not client.exists(KEYS.schedule)


def test_more_entries_than_a_batch_that_cannot_be_moved_do_not_hold_up_the_one_behind_them(
    server: Server, client: Client
) -> None:
    """R36: their queue has another type."""
    client.set(KEYS.queue("odd"), "no list")
    client.zadd(KEYS.schedule, {entry(n, "odd"): 1 for n in range(250)})
    client.zadd(KEYS.schedule, {entry(999): 2})

    async def work(made: Parts) -> None:
        await poll_all(made, NOW)

    run(server.url, work)
    assert [job["jid"] for job in queued(client)] == ["j999"]
    assert client.zcard(KEYS.schedule) == 250


@pytest.mark.parametrize("wrong", [KEYS.retry, KEYS.schedule, KEYS.paused_queues])
def test_one_set_of_the_wrong_type_does_not_hold_up_the_other(wrong: str, server: Server, client: Client) -> None:
    """R36: nor does the set of paused queues."""
    client.zadd(KEYS.schedule, {entry(1): 1})
    client.zadd(KEYS.retry, {entry(2): 1})
    client.delete(wrong)
    client.set(wrong, "another type")

    async def work(made: Parts) -> None:
        await poll_all(made, NOW)

    run(server.url, work)
    expected = {KEYS.retry: ["j1"], KEYS.schedule: ["j2"], KEYS.paused_queues: ["j2", "j1"]}[wrong]
    assert [job["jid"] for job in queued(client)] == expected


@pytest.mark.parametrize("source", [KEYS.schedule, KEYS.retry])
def test_an_entry_that_is_no_job_and_cannot_be_buried_does_not_hold_up_the_rest(
    source: str, server: Server, client: Client
) -> None:
    """R36: `dead` has another type."""
    client.set(KEYS.dead, "no set")
    client.zadd(source, {b"{": 0, entry(1): 1})
    client.zadd(KEYS.retry if source == KEYS.schedule else KEYS.schedule, {entry(2): 1})

    async def work(made: Parts) -> None:
        poller = made.poller()
        for _ in range(3):
            with contextlib.suppress(redis.exceptions.ResponseError):
                await poller.poll(NOW)

    run(server.url, work)
    assert sorted(job["jid"] for job in queued(client)) == ["j1", "j2"]
    assert client.zrange(source, 0, -1) == ["{"]


# ---- R37 -----------------------------------------------------------------------------------------------


def leave_behind(client: Client, identity: str, *jobs: bytes, age: float | None = 1000.0) -> None:
    """A daemon of another machine that is gone, with jobs on its list: first fetched first."""
    client.sadd(KEYS.inprogress_identities, identity)
    if age is not None:
        client.hset(KEYS.last_beat, identity, client.time()[0] - age)
    if jobs:
        client.lpush(KEYS.inprogress(identity), *jobs)


async def two_looks(made: Parts) -> None:
    """Turns of one recovery, so far apart that its second look is due."""
    recovery = made.recovery()
    for now in (1000.0, 1011.0):
        await recovery.turn(now)


@pytest.mark.parametrize("stamp", ["", "soon", "nan", "-nan", "inf", "0x7fffffff", b"\xff"])
@pytest.mark.parametrize("present", [False, True])
def test_an_unreadable_stamp_counts_as_none(present: bool, stamp: str | bytes, server: Server, client: Client) -> None:
    """R37: presence alone decides, in the script as well."""
    leave_behind(client, GONE, JOB, age=None)
    client.hset(KEYS.last_beat, GONE, stamp)
    if present:
        client.hset(KEYS.process(GONE), "busy", 1)
    run(server.url, two_looks)
    assert client.lrange(SUSPECTS, 0, -1) == ([] if present else [JOB.decode()])
    assert bool(client.sismember(KEYS.inprogress_identities, GONE)) is present


def test_stamps_that_cannot_be_read_at_all_count_as_none(server: Server, client: Client) -> None:
    """R37: their hash has another type; what was recovered is told, and the identity is forgotten."""
    leave_behind(client, GONE, JOB, age=None)
    client.set(KEYS.last_beat, "no hash")

    async def work(made: Parts) -> None:
        await two_looks(made)
        assert made.said.of("recovery.done", dead=GONE, requeued=1)
        assert not made.said.of("redis.error")

    run(server.url, work)
    assert client.lrange(SUSPECTS, 0, -1) == [JOB.decode()]
    assert not client.sismember(KEYS.inprogress_identities, GONE)


@pytest.mark.parametrize("change", ["a beat", "a presence"])
def test_a_sign_of_life_that_comes_after_the_look_is_seen_by_the_script(
    change: str, server: Server, client: Client
) -> None:
    """R37: whether the owner is dead is asked in the step that takes its jobs."""
    leave_behind(client, GONE, JOB)
    call = scripts.recover(KEYS, GONE, [LISTED], 300, False, 3, NOW)
    if change == "a beat":
        client.hset(KEYS.last_beat, GONE, client.time()[0])
    else:
        client.hset(KEYS.process(GONE), "busy", 1)

    async def work(made: Parts) -> None:
        assert (await made.link.call(call))[0] == b"alive"

    run(server.url, work)
    assert client.lrange(THEIRS, 0, -1) == [JOB.decode()]
    assert not client.exists(SUSPECTS)


def test_where_the_servers_clock_may_not_be_asked_recovery_goes_by_its_own(server: Server, client: Client) -> None:
    """R11, R37: the stamps are by the daemons' own clocks there."""
    leave_behind(client, GONE, JOB)
    leave_behind(client, "alive:1:cccccccccccc", b"runs", age=10)
    with limited_user(server, client, "-time") as url:
        run(url, two_looks)
    assert client.lrange(SUSPECTS, 0, -1) == [JOB.decode()]
    assert client.lrange(KEYS.inprogress("alive:1:cccccccccccc"), 0, -1) == ["runs"]


# ---- R38 -----------------------------------------------------------------------------------------------


def test_jobs_keep_their_order_across_batches_and_one_that_cannot_go_is_tried_on_each_pass(
    server: Server, client: Client
) -> None:
    """R38: more jobs than one step takes, the first of them for a queue that cannot be written."""
    jobs = [entry(0, "odd"), *(entry(n) for n in range(1, 451))]
    leave_behind(client, GONE, *jobs)
    client.lpush(SUSPECTS, entry(999))
    client.set(KEYS.queue(suspects_of("odd")), "no list")

    async def work(made: Parts) -> None:
        recovery = made.recovery()
        now = 1000.0
        for repaired in (False, True):
            if repaired:
                client.delete(KEYS.queue(suspects_of("odd")))
            for _ in range(8):
                await recovery.turn(now)
                now += 61
            assert client.lrange(THEIRS, 0, -1) == ([] if repaired else [jobs[0].decode()])

    run(server.url, work)
    order = [json.loads(client.rpop(SUSPECTS))["args"][0] for _ in range(451)]
    assert order[-1] == 999
    assert sorted(order) == [*range(1, 451), 999]
    assert queued(client, suspects_of("odd")) == [json.loads(jobs[0])]
    assert order[:-1] == list(range(1, 451))


# ---- R43 -----------------------------------------------------------------------------------------------


def _list_of_another_type(client: Client) -> bytes:
    leave_behind(client, "bad:1:dddddddddddd")
    client.set(KEYS.inprogress("bad:1:dddddddddddd"), "no list")
    return b"bad:1:dddddddddddd"


def _neighbours_presence_of_another_type(client: Client) -> bytes:
    leave_behind(client, "here:2:dddddddddddd", b"x")
    client.set(KEYS.process("here:2:dddddddddddd"), "no hash")
    return b"here:2:dddddddddddd"


def _name_that_is_no_text(client: Client) -> bytes:
    client.sadd(KEYS.inprogress_identities, b"\xff\xfe:1:x")
    return b"\xff\xfe:1:x"


def _name_without_a_pid(client: Client) -> bytes:
    leave_behind(client, "")
    leave_behind(client, ":::")
    return b":::"


@pytest.mark.parametrize(
    "bad",
    [
        _list_of_another_type,
        _neighbours_presence_of_another_type,
        _name_that_is_no_text,
        _name_without_a_pid,
    ],
)
def test_one_identity_that_cannot_be_processed_does_not_keep_others_from_being_recovered(
    bad: Callable[[Client], bytes], server: Server, client: Client
) -> None:
    """R43: those before it and those behind it."""
    bad(client)
    for name in ("aaa:1:eeeeeeeeeeee", "zzz:1:eeeeeeeeeeee"):
        leave_behind(client, name, entry(1, name[:3]))

    async def work(made: Parts) -> None:
        await two_looks(made)
        if bad is _list_of_another_type:
            assert [line for line in made.said.of("redis.error") if "bad:1" in str(line)]

    run(server.url, work)
    assert len(queued(client, suspects_of("aaa"))) == len(queued(client, suspects_of("zzz"))) == 1


# ---- R44 -----------------------------------------------------------------------------------------------


def test_recovery_tells_that_it_has_looked_only_once_the_lists_of_the_dead_were_scanned(
    server: Server, client: Client
) -> None:
    """R44: a first look that only notes who seems to be dead is none."""
    leave_behind(client, GONE, JOB)
    told: list[tuple[bool, bool]] = []

    async def work(made: Parts) -> None:
        recovery = cast(Any, made.recovery())
        for now in (1000.0, 1005.0, 1011.0, 1016.0):
            looked = await recovery.turn(now)
            told.append((looked is True, bool(client.exists(SUSPECTS))))

    run(server.url, work)
    assert told[-1] == (True, True)
    assert (True, False) not in told


@pytest.mark.parametrize("what", ["registry", "list"])
def test_recovery_that_could_not_read_does_not_tell_that_it_has_looked(
    what: str, server: Server, client: Client
) -> None:
    """R44: the registry, or the list of one who is dead, has another type."""
    if what == "registry":
        client.set(KEYS.inprogress_identities, "no set")
    else:
        leave_behind(client, GONE)
        client.set(THEIRS, "no list")
    told: list[Any] = []

    async def work(made: Parts) -> None:
        recovery = cast(Any, made.recovery())
        for now in (1000.0, 1011.0, 1072.0):
            with contextlib.suppress(redis.exceptions.ResponseError):
                told.append(await recovery.turn(now))

    run(server.url, work)
    assert True not in told


# ---- R45 -----------------------------------------------------------------------------------------------


def test_a_stray_goes_back_only_when_every_child_that_could_hold_it_has_answered(
    server: Server, client: Client
) -> None:
    """R45: and a child in the middle of a job holds that job alone."""
    client.lpush(MINE, JOB, entry(2))

    async def work(made: Parts) -> None:
        silent, busy, dies = made.child(), made.child(), made.child()
        made.started(busy, entry(2))
        reconciler = made.reconciler()
        await reconciler.register()
        for answering in (False, True):
            if answering:
                made.idle(silent)
            await reconciler.reconcile()
            await reconciler.reconcile()
            assert client.llen(MINE) == 2
        made.ledger.died(dies, ours=False, reason="signal 9")
        await reconciler.reconcile()
        assert made.said.of("job.stray", jid="j1")

    run(server.url, work)
    assert client.lrange(MINE, 0, -1) == [entry(2).decode()]
    assert client.lrange(QUEUE, 0, -1) == [JOB.decode()]


# ---- R46 -----------------------------------------------------------------------------------------------


def test_at_stop_outcomes_are_settled_first_and_the_rest_is_requeued_in_its_order(
    server: Server, client: Client
) -> None:
    """R46."""
    client.lpush(MINE, entry(1), JOB, entry(2), entry(3))
    client.lpush(QUEUE, entry(9))

    async def work(made: Parts) -> None:
        child = made.child()
        reconciler = made.reconciler()
        await reconciler.register()
        made.started(child, JOB)
        made.performed(child, RETRY)
        made.ledger.died(child, ours=True, reason="")
        await made.say_farewell(reconciler)

    run(server.url, work)
    assert [json.loads(client.rpop(QUEUE))["args"][0] for _ in range(4)] == [1, 2, 3, 9]
    assert client.zrange(KEYS.retry, 0, -1) == [RETRY.payload.decode()]
    assert not client.exists(MINE, KEYS.dead, KEYS.process(ME))
    assert not client.sismember(KEYS.inprogress_identities, ME)


def test_at_stop_a_job_whose_outcome_can_be_neither_filed_nor_handed_over_is_kept_and_not_run_again(
    server: Server, client: Client
) -> None:
    """R46: the ack beside it is dropped, the others are requeued, and the identity stays for others to find."""
    client.lpush(MINE, JOB, entry(1), entry(2))
    for key in (KEYS.retry, "cogworker:unsettled"):
        client.set(key, "another type")

    async def work(made: Parts) -> None:
        one, two = made.child(), made.child()
        reconciler = made.reconciler()
        await reconciler.register()
        for child, raw, outcome in ((one, JOB, RETRY), (two, entry(1), SUCCESS)):
            made.started(child, raw)
            made.performed(child, outcome)
            made.finished(child, Result.UNKNOWN)
            made.ledger.died(child, ours=True, reason="")
        await made.say_farewell(reconciler)

    run(server.url, work)
    assert client.lrange(MINE, 0, -1) == [JOB.decode()]
    assert [job["args"] for job in queued(client)] == [[2]]
    assert client.sismember(KEYS.inprogress_identities, ME)


def test_at_stop_a_job_that_only_waits_for_its_ack_is_dropped_by_the_last_step(server: Server, client: Client) -> None:
    """R46: its settling was refused to the end, since this user may not touch the counters; it is not run again."""
    client.lpush(MINE, JOB, entry(1))

    async def work(made: Parts) -> None:
        child = made.child()
        reconciler = made.reconciler()
        await reconciler.register()
        made.started(child, JOB)
        made.performed(child, SUCCESS)
        made.finished(child, Result.UNKNOWN)
        made.ledger.died(child, ours=True, reason="")
        await made.say_farewell(reconciler)
        assert len(made.ledger.unsettled) == 1
        assert made.said.of("daemon.stopped", requeued=1, kept=0)

    with limited_user(server, client, "resetkeys", "~cogworker:[^s]*") as url:
        run(url, work)
    assert [job["args"] for job in queued(client)] == [[1]]
    assert not client.exists(MINE)
