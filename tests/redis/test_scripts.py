"""Each Lua script against the real server, called through the function that lays out its keys and arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from cogworkerd.locks import JobLocks
from cogworkerd.outcome import SUCCESS, Kind, Outcome, Settlement
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys, suspects_of
from cogworkerd.store.scripts import Burial, Call, Listed
from tests.support import Server

KEYS = Keys()
ME = "host:1:abc"
MINE = KEYS.inprogress(ME)
NOW = 1_700_000_000.0
QUEUE = KEYS.queue("default")
JOB = b'{"class":"a","jid":"j1"}'
RETRY = Outcome(Kind.RETRY, 12.5, b'{"later":1}', b'{"attempt":1}')
DEAD = Outcome(Kind.DEAD, 13.5, b'{"dead":1}', b'{"attempt":4}')


class Store:
    """The server, without decoding, and how to run a call on it."""

    def __init__(self, client: Any) -> None:
        self.client = client  # Any: the types of redis-py do not know whether it decodes

    def run(self, call: Call) -> Any:
        return self.client.register_script(call.script.text)(keys=call.keys, args=call.args)

    def list(self, key: str) -> list[bytes]:
        found: list[bytes] = self.client.lrange(key, 0, -1)
        return found

    def everything(self) -> dict[bytes, bytes | None]:
        """All keys with their contents, to see that nothing was written."""
        return {key: self.client.dump(key) for key in self.client.keys("*")}


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with redis.Redis(port=server.port) as client:
        client.sadd(KEYS.inprogress_identities, ME)
        yield Store(client)


def settlement(outcome: Outcome, *locks: str) -> Settlement:
    return Settlement(JOB, "j1", locks, outcome)


# ---- settle ---------------------------------------------------------------------------------------------


def test_settle_takes_a_success_off_the_list_and_counts_it(store: Store) -> None:
    store.client.lpush(MINE, JOB)
    store.client.set(KEYS.orphanings("j1"), 2)
    assert store.run(scripts.settle(KEYS, ME, settlement(SUCCESS), NOW)) == b"settled"
    assert store.list(MINE) == []
    assert store.client.get(KEYS.processed) == b"1"
    assert store.client.hgetall(KEYS.throughput(NOW)) == {b"processed": b"1"}
    assert 0 < store.client.ttl(KEYS.throughput(NOW)) <= 90_000
    assert not store.client.exists(KEYS.orphanings("j1"), KEYS.failed, KEYS.retry, KEYS.dead, KEYS.attempts("j1"))


@pytest.mark.parametrize(("outcome", "key"), [(RETRY, KEYS.retry), (DEAD, KEYS.dead)])
def test_settle_files_a_failure_and_notes_the_attempt(outcome: Outcome, key: str, store: Store) -> None:
    store.client.lpush(MINE, JOB)
    assert store.run(scripts.settle(KEYS, ME, settlement(outcome), NOW)) == b"settled"
    assert store.client.zrange(key, 0, -1, withscores=True) == [(outcome.payload, outcome.score)]
    assert store.list(MINE) == []
    assert store.client.get(KEYS.failed) == b"1"
    assert store.list(KEYS.attempts("j1")) == [outcome.attempt]
    assert 0 < store.client.ttl(KEYS.attempts("j1")) <= 2_592_000


def test_settle_keeps_the_last_25_attempts(store: Store) -> None:
    store.client.rpush(KEYS.attempts("j1"), *[str(n) for n in range(30)])
    store.client.lpush(MINE, JOB)
    store.run(scripts.settle(KEYS, ME, settlement(RETRY), NOW))
    kept = store.list(KEYS.attempts("j1"))
    assert len(kept) == 25
    assert (kept[0], kept[-1]) == (b"6", RETRY.attempt)


def test_settle_drops_a_discarded_job_and_counts_it_as_failed(store: Store) -> None:
    store.client.lpush(MINE, JOB)
    discarded = Outcome(Kind.DISCARD, attempt=b'{"attempt":1}')
    assert store.run(scripts.settle(KEYS, ME, settlement(discarded), NOW)) == b"settled"
    assert not store.client.exists(MINE, KEYS.retry, KEYS.dead)
    assert store.client.get(KEYS.failed) == b"1"


@pytest.mark.parametrize("outcome", [SUCCESS, RETRY, DEAD])
@pytest.mark.parametrize("registered", [True, False])
def test_settle_of_a_job_that_is_not_listed_writes_nothing(registered: bool, outcome: Outcome, store: Store) -> None:
    """P5, R35."""
    store.client.lpush(MINE, JOB + b" ")
    store.client.set(KEYS.unique("u"), "j1")
    store.client.set(KEYS.orphanings("j1"), 1)
    if not registered:
        store.client.srem(KEYS.inprogress_identities, ME)
    before = store.everything()
    answer = store.run(scripts.settle(KEYS, ME, settlement(outcome, KEYS.unique("u")), NOW))
    assert answer == (b"gone" if registered else b"taken")
    assert store.everything() == before


def test_settle_removes_one_of_two_copies(store: Store) -> None:
    store.client.lpush(MINE, JOB, b"other", JOB)
    assert store.run(scripts.settle(KEYS, ME, settlement(SUCCESS), NOW)) == b"settled"
    assert sorted(store.list(MINE)) == sorted([JOB, b"other"])


def test_settle_releases_only_locks_of_its_own(store: Store) -> None:
    """R50."""
    mine, theirs, odd, free = (KEYS.unique(name) for name in ("mine", "theirs", "odd", "free"))
    store.client.set(mine, "j1")
    store.client.set(theirs, "j2")
    store.client.rpush(odd, "j1")
    store.client.lpush(MINE, JOB)
    reply = store.run(scripts.settle(KEYS, ME, settlement(SUCCESS, mine, theirs, odd, free), NOW))
    answer, (unreleased,) = scripts.split_answer(reply, "j1")
    assert (answer, unreleased.key, unreleased.owner) == (b"settled", odd, "j1")
    assert "WRONGTYPE" in unreleased.error
    assert store.client.exists(mine, free) == 0
    assert store.client.get(theirs) == b"j2"
    assert store.list(odd) == [b"j1"]


def test_settle_is_not_stopped_by_statistics_of_a_wrong_type(store: Store) -> None:
    """R26."""
    store.client.rpush(KEYS.failed, "x")
    store.client.set(KEYS.throughput(NOW), "x")
    store.client.set(KEYS.attempts("j1"), "x")
    store.client.rpush(KEYS.orphanings("j1"), "x")
    store.client.lpush(MINE, JOB)
    assert store.run(scripts.settle(KEYS, ME, settlement(RETRY), NOW)) == b"settled"
    assert store.list(MINE) == []
    assert store.client.zcard(KEYS.retry) == 1
    assert store.client.type(KEYS.failed) == b"list"


def test_settle_that_cannot_file_leaves_the_job_listed(store: Store) -> None:
    """R35: written first, removed after."""
    store.client.set(KEYS.retry, "no set")
    store.client.lpush(MINE, JOB)
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        store.run(scripts.settle(KEYS, ME, settlement(RETRY), NOW))
    assert store.list(MINE) == [JOB]
    assert not store.client.exists(KEYS.failed)


# ---- fetch, settle_and_fetch ----------------------------------------------------------------------------


def both(*queues: str, outcome: Outcome = SUCCESS) -> Call:
    return scripts.settle_and_fetch(KEYS, ME, settlement(outcome), NOW, queues, [KEYS.queue(name) for name in queues])


def test_settle_and_fetch_does_both_in_one_step(store: Store) -> None:
    store.client.lpush(MINE, JOB)
    store.client.lpush(KEYS.queue("b"), b"first", b"second")
    assert store.run(both("a", "b")) == [b"settled", 2, b"first"]
    assert store.list(MINE) == [b"first"]
    assert store.list(KEYS.queue("b")) == [b"second"]


def test_settle_and_fetch_puts_locks_and_queues_in_their_places(store: Store) -> None:
    store.client.lpush(MINE, JOB)
    store.client.set(KEYS.unique("u"), "j1")
    store.client.set(KEYS.unique("v"), "j1")
    store.client.lpush(KEYS.queue("b"), b"next")
    done = settlement(DEAD, KEYS.unique("u"), KEYS.unique("v"))
    queues = ["a", "b"]
    call = scripts.settle_and_fetch(KEYS, ME, done, NOW, queues, [KEYS.queue(name) for name in queues])
    assert store.run(call) == [b"settled", 2, b"next"]
    assert not store.client.exists(KEYS.unique("u"), KEYS.unique("v"))
    assert store.client.zrange(KEYS.dead, 0, -1) == [DEAD.payload]


def test_settle_and_fetch_takes_the_queues_in_the_given_order(store: Store) -> None:
    """R34."""
    for name in ("a", "b"):
        store.client.lpush(KEYS.queue(name), name)
    store.client.lpush(MINE, JOB)
    assert store.run(both("b", "a")) == [b"settled", 1, b"b"]
    assert store.run(both("b", "a")) == [b"gone", 2, b"a"]
    assert store.run(both("b", "a")) == [b"gone", 0, b""]
    assert store.list(MINE) == [b"a", b"b"]


def test_settle_and_fetch_fetches_nothing_for_an_identity_that_is_not_registered(store: Store) -> None:
    """P4."""
    store.client.srem(KEYS.inprogress_identities, ME)
    store.client.lpush(KEYS.queue("a"), b"job")
    assert store.run(both("a")) == [b"taken", -1, b""]
    store.client.lpush(MINE, JOB)
    assert store.run(both("a")) == [b"settled", -1, b""]
    assert store.list(MINE) == []
    assert store.list(KEYS.queue("a")) == [b"job"]


def test_settle_and_fetch_skips_a_paused_queue(store: Store) -> None:
    """R34."""
    store.client.sadd(KEYS.paused_queues, "a")
    store.client.lpush(KEYS.queue("a"), b"paused")
    store.client.lpush(KEYS.queue("b"), b"job")
    assert store.run(both("a", "b")) == [b"gone", 2, b"job"]
    assert store.run(both("a", "b")) == [b"gone", 0, b"", b"a"]


def test_settle_and_fetch_reports_a_queue_of_the_wrong_type_when_no_other_has_a_job(store: Store) -> None:
    store.client.set(KEYS.queue("a"), "no list")
    store.client.lpush(KEYS.queue("b"), b"job")
    store.client.lpush(MINE, JOB)
    assert store.run(both("a", "b")) == [b"settled", 2, b"job"]
    result, index, problem = store.run(both("a", "b"))
    assert (result, index) == (b"gone", -2)
    assert b"WRONGTYPE" in problem


def test_settle_and_fetch_fetches_all_the_same_where_the_paused_set_has_the_wrong_type(store: Store) -> None:
    store.client.set(KEYS.paused_queues, "no set")
    store.client.lpush(KEYS.queue("a"), b"job")
    assert store.run(both("a")) == [b"gone", 1, b"job"]


def test_fetch_answers_as_settle_and_fetch_does(store: Store) -> None:
    """R34."""
    queues = ["a", "b"]
    call = scripts.fetch(KEYS, ME, queues, [KEYS.queue(name) for name in queues])
    assert store.run(call) == [0, b""]
    store.client.lpush(KEYS.queue("b"), b"job")
    store.client.sadd(KEYS.paused_queues, "b")
    assert store.run(call) == [0, b"", b"b"]
    store.client.srem(KEYS.paused_queues, "b")
    assert store.run(call) == [2, b"job"]
    store.client.srem(KEYS.inprogress_identities, ME)
    assert store.run(call) == [-1, b""]


# ---- look, register -------------------------------------------------------------------------------------


def test_look_and_register_share_one_rising_number(store: Store) -> None:
    """P13, P18."""
    store.client.srem(KEYS.inprogress_identities, ME)
    store.client.lpush(MINE, b"old", b"new")
    assert store.run(scripts.register(KEYS, ME, NOW)) == [0, 1, [b"new", b"old"]]
    assert store.run(scripts.look(KEYS, ME)) == [2, [b"new", b"old"]]
    assert store.run(scripts.register(KEYS, ME, NOW)) == [1, 3, [b"new", b"old"]]
    assert store.run(scripts.look(KEYS, ME)) == [4, [b"new", b"old"]]
    assert store.client.sismember(KEYS.inprogress_identities, ME)
    stamp = float(store.client.hget(KEYS.last_beat, ME))
    assert abs(stamp - store.client.time()[0]) <= 2
    assert 0 < store.client.ttl(KEYS.look(ME)) <= 604_800


# ---- requeue, give_back ---------------------------------------------------------------------------------


def requeue(number: int = 1, blame: bool = True, *locks: str, limit: int = 3) -> Call:
    return scripts.requeue(
        KEYS, ME, JOB, "default", number, blame, limit, Burial(JobLocks("j1", locks, ttl=60), DEAD), NOW
    )


def test_requeue_puts_a_job_where_it_is_popped_next_and_counts(store: Store) -> None:
    store.run(scripts.look(KEYS, ME))
    store.client.lpush(MINE, JOB)
    store.client.lpush(QUEUE, b"waits")
    assert store.run(requeue()) == b"requeued"
    assert store.client.rpop(QUEUE) == JOB
    assert store.list(MINE) == []
    assert store.client.sismember(KEYS.queues, "default")
    assert store.client.get(KEYS.orphanings("j1")) == b"1"
    assert 0 < store.client.ttl(KEYS.orphanings("j1")) <= 604_800


def test_requeue_without_blame_leaves_the_counter_as_it_is(store: Store) -> None:
    """P12."""
    store.run(scripts.look(KEYS, ME))
    store.client.lpush(MINE, JOB)
    store.client.set(KEYS.orphanings("j1"), 9)
    assert store.run(requeue(1, False)) == b"requeued"
    assert store.client.get(KEYS.orphanings("j1")) == b"9"


@pytest.mark.parametrize("newest", [None, 2])
def test_requeue_is_void_under_any_look_but_the_newest(newest: int | None, store: Store) -> None:
    for _ in range(newest or 0):
        store.run(scripts.look(KEYS, ME))
    store.client.lpush(MINE, JOB)
    before = store.everything()
    assert store.run(requeue(1)) == b"void"
    assert store.everything() == before


def test_requeue_of_a_job_that_is_not_listed_writes_nothing(store: Store) -> None:
    """R35."""
    store.run(scripts.look(KEYS, ME))
    before = store.everything()
    assert store.run(requeue()) == b"gone"
    assert store.everything() == before


def test_requeue_buries_a_job_that_was_orphaned_too_often(store: Store) -> None:
    store.run(scripts.look(KEYS, ME))
    mine, theirs = KEYS.unique("mine"), KEYS.unique("theirs")
    store.client.set(mine, "j1")
    store.client.set(theirs, "j2")
    for count in (b"1", b"2"):
        store.client.lpush(MINE, JOB)
        assert store.run(requeue(1, True, mine, theirs, limit=2)) == b"requeued"
        assert store.client.get(KEYS.orphanings("j1")) == count
        assert store.client.rpop(QUEUE) == JOB
    store.client.lpush(MINE, JOB)
    assert store.run(requeue(1, True, mine, theirs, limit=2)) == b"buried"
    assert store.client.zrange(KEYS.dead, 0, -1, withscores=True) == [(DEAD.payload, DEAD.score)]
    assert not store.client.exists(MINE, QUEUE, KEYS.orphanings("j1"), mine)
    assert store.client.get(theirs) == b"j2"
    assert store.client.get(KEYS.failed) == b"1"
    assert store.list(KEYS.attempts("j1")) == [DEAD.attempt]


@pytest.mark.parametrize("unusable", ["text", "list"])
def test_requeue_starts_an_unusable_counter_over(unusable: str, store: Store) -> None:
    """R40."""
    key = KEYS.orphanings("j1")
    if unusable == "text":
        store.client.set(key, "many")
    else:
        store.client.rpush(key, "x")
    store.run(scripts.look(KEYS, ME))
    store.client.lpush(MINE, JOB)
    assert store.run(requeue()) == b"requeued"
    assert store.client.get(key) == b"1"


def test_requeue_onto_a_key_that_is_no_list_leaves_the_job_listed(store: Store) -> None:
    """R35."""
    store.run(scripts.look(KEYS, ME))
    store.client.set(QUEUE, "no list")
    store.client.lpush(MINE, JOB)
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        store.run(requeue())
    assert store.list(MINE) == [JOB]
    assert not store.client.exists(KEYS.orphanings("j1"))


def test_give_back_moves_a_listed_job_to_the_front_and_no_other(store: Store) -> None:
    store.client.lpush(QUEUE, b"waits")
    assert store.run(scripts.give_back(KEYS, ME, JOB, "default", JobLocks("j1", ttl=60))) == 0
    assert store.list(QUEUE) == [b"waits"]
    store.client.lpush(MINE, JOB, JOB)
    assert store.run(scripts.give_back(KEYS, ME, JOB, "default", JobLocks("j1", ttl=60))) == 1
    assert store.client.rpop(QUEUE) == JOB
    assert store.list(MINE) == [JOB]


# ---- due entries ----------------------------------------------------------------------------------------


def test_move_due_moves_what_is_there_and_lists_the_queues(store: Store) -> None:
    """R36."""
    store.client.zadd(KEYS.schedule, {b"a": 1, b"b": 2, b"later": 9e9})
    entries = [(b"a", b"A", "one"), (b"taken", b"T", "one"), (b"b", b"B", "two")]
    assert store.run(scripts.move_due(KEYS, KEYS.schedule, entries)) == [1, 0, 1]
    assert store.client.zrange(KEYS.schedule, 0, -1) == [b"later"]
    assert store.list(KEYS.queue("one")) == [b"A"]
    assert store.list(KEYS.queue("two")) == [b"B"]
    assert store.client.smembers(KEYS.queues) == {b"one", b"two"}


def test_move_due_leaves_an_entry_whose_queue_cannot_be_written_and_moves_the_rest(store: Store) -> None:
    """R36."""
    store.client.set(KEYS.queue("odd"), "no list")
    store.client.set(KEYS.queues, "no set")
    store.client.zadd(KEYS.retry, {b"a": 1, b"b": 2})
    problem, moved = store.run(scripts.move_due(KEYS, KEYS.retry, [(b"a", b"A", "odd"), (b"b", b"B", "fine")]))
    assert b"WRONGTYPE" in problem
    assert moved == 1
    assert store.client.zrange(KEYS.retry, 0, -1) == [b"a"]
    assert store.list(KEYS.queue("fine")) == [b"B"]


def test_bury_due_files_an_entry_once(store: Store) -> None:
    store.client.zadd(KEYS.schedule, {b"poison": 1})
    call = scripts.bury_due(KEYS, KEYS.schedule, b"poison", b"entry", 17.25)
    assert store.run(call) == 1
    assert store.run(call) == 0
    assert store.client.zcard(KEYS.schedule) == 0
    assert store.client.zrange(KEYS.dead, 0, -1, withscores=True) == [(b"entry", 17.25)]
    assert store.client.get(KEYS.failed) == b"1"
    assert store.client.hget(KEYS.throughput(17.25), "failed") == b"1"


# ---- recover --------------------------------------------------------------------------------------------

DEAD_ONE = "gone:9:def"
LIST = KEYS.inprogress(DEAD_ONE)
SUSPECTS = KEYS.queue(suspects_of("default"))


def listed(raw: bytes, queue: str = "default", jid: str = "j1") -> Listed:
    """A job without locks."""
    return Listed(raw, queue, JobLocks(jid, ttl=60))


def dead_daemon(store: Store, *jobs: bytes, age: float = 1000, present: bool = False) -> list[Listed]:
    """A ward with jobs on its list (first fetched first); what `recover` is told of them."""
    store.client.sadd(KEYS.wards, DEAD_ONE)
    store.client.sadd(KEYS.inprogress_identities, DEAD_ONE)
    store.client.hset(KEYS.last_beat, DEAD_ONE, store.client.time()[0] - age)
    if present:
        store.client.hset(KEYS.process(DEAD_ONE), "busy", 1)
    if jobs:
        store.client.lpush(LIST, *jobs)
    return [listed(raw, jid=f"jid-{raw.decode()}") for raw in store.list(LIST)]


def recover(jobs: list[Listed], seen_gone: bool = False, limit: int = 3) -> Call:
    return scripts.recover(KEYS, DEAD_ONE, jobs, 300, seen_gone, limit, NOW)


@pytest.mark.parametrize(("age", "present"), [(1000, True), (10, False), (10, True)])
def test_recover_leaves_a_daemon_alone_that_is_present_or_has_just_beaten(
    age: float, present: bool, store: Store
) -> None:
    """R37."""
    jobs = dead_daemon(store, b"a", b"b", age=age, present=present)
    before = store.everything()
    assert store.run(recover(jobs)) == [b"alive", 0, 0, 2]
    assert store.everything() == before


@pytest.mark.parametrize("stamp", [None, "soon"])
def test_recover_goes_by_presence_alone_without_a_readable_stamp(stamp: str | None, store: Store) -> None:
    """R37."""
    jobs = dead_daemon(store, b"a")
    store.client.hdel(KEYS.last_beat, DEAD_ONE)
    if stamp:
        store.client.hset(KEYS.last_beat, DEAD_ONE, stamp)
    assert store.run(recover(jobs)) == [b"forgotten", 1, 0, 0]


def test_recover_keeps_the_order_and_forgets_the_identity(store: Store) -> None:
    """R38, R39, R43."""
    jobs = dead_daemon(store, b"first", b"second", b"third")
    store.client.lpush(SUSPECTS, b"waits")
    assert store.run(recover(jobs)) == [b"forgotten", 3, 0, 0]
    assert [store.client.rpop(SUSPECTS) for _ in range(4)] == [b"first", b"second", b"third", b"waits"]
    assert not store.client.sismember(KEYS.inprogress_identities, DEAD_ONE)
    assert not store.client.hexists(KEYS.last_beat, DEAD_ONE)
    assert store.client.sismember(KEYS.queues, suspects_of("default"))
    for name in ("first", "second", "third"):
        assert store.client.get(KEYS.orphanings(f"jid-{name}")) == b"1"
        assert 0 < store.client.ttl(KEYS.orphanings(f"jid-{name}")) <= 604_800


@pytest.mark.parametrize(("age", "present"), [(10, False), (10, True), (1000, True)])
def test_recover_of_processes_seen_to_be_gone_asks_for_neither_but_does_not_forget(
    age: float, present: bool, store: Store
) -> None:
    """P22, R37."""
    jobs = dead_daemon(store, b"a", age=age, present=present)
    assert store.run(recover(jobs, seen_gone=True)) == [b"recovered", 1, 0, 0]
    assert store.client.sismember(KEYS.inprogress_identities, DEAD_ONE)
    assert store.client.hexists(KEYS.last_beat, DEAD_ONE)


def test_recover_parks_a_job_that_is_over_the_limit(store: Store) -> None:
    """R39."""
    jobs = dead_daemon(store, b"once", b"often")
    store.client.set(KEYS.orphanings("jid-often"), 3)
    assert store.run(recover(jobs)) == [b"forgotten", 1, 1, 0]
    assert store.list(KEYS.repeat_orphans) == [b"often"]
    assert store.list(SUSPECTS) == [b"once"]


def test_recover_puts_a_job_whose_queue_cannot_be_written_to_the_back_and_goes_on(store: Store) -> None:
    """R38."""
    dead_daemon(store, b"odd", b"fine", b"last")
    store.client.set(KEYS.queue(suspects_of("odd")), "no list")
    jobs = [listed(b"last", "default", "l"), listed(b"fine", "default", "f"), listed(b"odd", "odd", "o")]
    assert store.run(recover(jobs)) == [b"left", 2, 0, 1]
    assert store.list(LIST) == [b"odd"]
    assert [store.client.rpop(SUSPECTS) for _ in range(2)] == [b"fine", b"last"]
    assert store.client.sismember(KEYS.inprogress_identities, DEAD_ONE)
    assert not store.client.exists(KEYS.orphanings("o"))
    store.client.delete(KEYS.queue(suspects_of("odd")))
    assert store.run(recover([listed(b"odd", "odd", "o")])) == [b"forgotten", 1, 0, 0]


def test_recover_moves_an_unwritable_job_out_of_the_way_of_a_batch(store: Store) -> None:
    """R38: the next pass reads the head of the list, and must meet the others there."""
    dead_daemon(store, b"old", b"odd")
    store.client.set(KEYS.queue(suspects_of("odd")), "no list")
    assert store.run(recover([listed(b"odd", "odd", "o")])) == [b"left", 0, 0, 2]
    assert store.list(LIST) == [b"old", b"odd"]


def test_recover_does_not_move_what_is_not_listed_any_more(store: Store) -> None:
    jobs = dead_daemon(store, b"a")
    assert store.run(recover([*jobs, listed(b"elsewhere", "default", "e")])) == [b"forgotten", 1, 0, 0]
    assert store.list(SUSPECTS) == [b"a"]


@pytest.mark.parametrize(("age", "state"), [(1000, b"forgotten"), (10, b"recovered")])
def test_recover_forgets_an_empty_identity_only_when_its_beat_is_old(age: float, state: bytes, store: Store) -> None:
    """R43."""
    dead_daemon(store, age=age)
    assert store.run(recover([], seen_gone=True)) == [state, 0, 0, 0]
    assert bool(store.client.sismember(KEYS.inprogress_identities, DEAD_ONE)) is (state == b"recovered")


def test_bury_repeat_orphan_files_a_job_once_and_releases_what_it_held(store: Store) -> None:
    """R39, R48."""
    mine, theirs = KEYS.unique("mine"), KEYS.periodic_running("theirs")
    store.client.set(mine, "j1")
    store.client.set(theirs, "j2")
    store.client.set(KEYS.orphanings("j1"), 4)
    store.client.rpush(KEYS.repeat_orphans, JOB)
    call = scripts.bury_repeat_orphan(KEYS, JOB, Burial(JobLocks("j1", (mine, theirs), ttl=60), DEAD), NOW)
    assert store.run(call) == 1
    assert store.run(call) == 0
    assert store.client.zrange(KEYS.dead, 0, -1, withscores=True) == [(DEAD.payload, DEAD.score)]
    assert not store.client.exists(KEYS.repeat_orphans, KEYS.orphanings("j1"), mine)
    assert store.client.get(theirs) == b"j2"
    assert store.client.get(KEYS.failed) == b"1"
    assert store.list(KEYS.attempts("j1")) == [DEAD.attempt]


def test_r39_the_death_of_a_daemon_that_is_no_ward_is_counted_for_none_of_its_jobs(store: Store) -> None:
    """One of them may have killed it, and nobody knows which."""
    jobs = dead_daemon(store, b"first", b"second")
    store.client.srem(KEYS.wards, DEAD_ONE)
    store.client.set(KEYS.orphanings("jid-first"), 3, ex=500)
    assert store.run(recover(jobs)) == [b"forgotten", 2, 0, 0]
    assert [store.client.rpop(SUSPECTS) for _ in range(2)] == [b"first", b"second"]
    assert store.client.get(KEYS.orphanings("jid-first")) == b"3"
    assert store.client.ttl(KEYS.orphanings("jid-first")) > 100
    assert not store.client.exists(KEYS.orphanings("jid-second"), QUEUE)


def test_recover_forgets_a_ward_with_its_identity(store: Store) -> None:
    dead_daemon(store)
    assert store.run(recover([])) == [b"forgotten", 0, 0, 0]
    assert not store.client.exists(KEYS.wards)


@pytest.mark.parametrize("wards", ["no set", None])
def test_where_it_cannot_be_known_who_is_a_ward_nobody_is_counted(wards: str | None, store: Store) -> None:
    jobs = dead_daemon(store, b"a")
    store.client.delete(KEYS.wards)
    if wards:
        store.client.set(KEYS.wards, wards)
    assert store.run(recover(jobs)) == [b"forgotten", 1, 0, 0]
    assert not store.client.exists(KEYS.orphanings("jid-a"))


# ---- farewell -------------------------------------------------------------------------------------------


def leaving(store: Store, *jobs: bytes) -> None:
    store.client.lpush(MINE, *jobs)
    store.client.hset(KEYS.process(ME), "busy", 0)
    store.client.hset(KEYS.workers(ME), "t", "{}")
    store.client.sadd(KEYS.processes, ME)
    store.client.hset(KEYS.last_beat, ME, 1)
    store.client.set(KEYS.look(ME), 5)


def test_farewell_requeues_in_order_drops_acks_and_forgets(store: Store) -> None:
    """R46, P19, P20."""
    leaving(store, b"first", b"done", b"second")
    store.client.lpush(QUEUE, b"waits")
    jobs = [listed(b"second"), listed(b"first")]
    assert store.run(scripts.farewell(KEYS, ME, [b"done"], jobs, forget=True)) == [2, 0]
    assert [store.client.rpop(QUEUE) for _ in range(3)] == [b"first", b"second", b"waits"]
    assert store.client.keys("*") == [KEYS.queues.encode()]


def test_farewell_that_may_not_forget_stays_registered_with_its_stamp(store: Store) -> None:
    """R43."""
    leaving(store, b"job")
    assert store.run(scripts.farewell(KEYS, ME, [], [listed(b"job")], forget=False)) == [1, 0]
    assert store.client.sismember(KEYS.inprogress_identities, ME)
    assert store.client.hget(KEYS.last_beat, ME) == b"1"
    assert not store.client.exists(MINE, KEYS.process(ME), KEYS.workers(ME), KEYS.look(ME), KEYS.processes)


def test_farewell_keeps_what_cannot_be_requeued_and_stays_registered(store: Store) -> None:
    """R46."""
    leaving(store, b"fine", b"odd", b"unnamed")
    store.client.set(KEYS.queue("odd"), "no list")
    jobs = [listed(b"odd", "odd"), listed(b"fine"), listed(b"not listed")]
    assert store.run(scripts.farewell(KEYS, ME, [], jobs, forget=True)) == [1, 2]
    assert store.list(MINE) == [b"unnamed", b"odd"]
    assert store.list(QUEUE) == [b"fine"]
    assert store.client.sismember(KEYS.inprogress_identities, ME)


def test_farewell_drops_one_copy_for_each_ack(store: Store) -> None:
    leaving(store, b"copy", b"copy", b"copy")
    jobs = [listed(b"copy")]
    assert store.run(scripts.farewell(KEYS, ME, [b"copy", b"copy"], jobs, forget=True)) == [1, 0]
    assert store.list(QUEUE) == [b"copy"]


# ---- beat -----------------------------------------------------------------------------------------------

SECONDARY = (KEYS.inprogress_identities, KEYS.last_beat, KEYS.live_queues, KEYS.queues, KEYS.processes)


def test_beat_registers_stamps_and_lists(store: Store) -> None:
    """R10, R11."""
    server_now = store.client.time()[0]
    store.client.zadd(KEYS.live_queues, {"old": server_now - 90_000, "young": server_now - 80_000})
    assert store.run(scripts.beat(KEYS, ME, NOW, ["a", "b"])) == []
    assert store.client.sismember(KEYS.inprogress_identities, ME)
    assert store.client.sismember(KEYS.processes, ME)
    assert abs(float(store.client.hget(KEYS.last_beat, ME)) - server_now) <= 2
    assert store.client.smembers(KEYS.queues) == {b"a", b"b"}
    live = dict(store.client.zrange(KEYS.live_queues, 0, -1, withscores=True))
    assert set(live) == {b"a", b"b", b"young"}
    assert abs(live[b"a"] - server_now) <= 2


@pytest.mark.parametrize("wrong", SECONDARY)
def test_beat_with_one_key_of_the_wrong_type_names_it_and_writes_the_others(wrong: str, store: Store) -> None:
    """R8."""
    store.client.delete(wrong)
    store.client.set(wrong, "another type")
    problems = store.run(scripts.beat(KEYS, ME, NOW, ["a"]))
    assert problems
    assert all(problem.startswith(f"{wrong}: ".encode()) and b"WRONGTYPE" in problem for problem in problems)
    assert store.client.get(wrong) == b"another type"
    written: dict[str, Callable[[], Any]] = {
        KEYS.inprogress_identities: lambda: store.client.sismember(KEYS.inprogress_identities, ME),
        KEYS.last_beat: lambda: store.client.hexists(KEYS.last_beat, ME),
        KEYS.live_queues: lambda: store.client.zscore(KEYS.live_queues, "a") is not None,
        KEYS.queues: lambda: store.client.sismember(KEYS.queues, "a"),
        KEYS.processes: lambda: store.client.sismember(KEYS.processes, ME),
    }
    assert {key for key in SECONDARY if key != wrong and not written[key]()} == set()


def test_a_namespace_is_in_every_key_of_every_script(store: Store) -> None:
    keys = Keys("shop")
    store.client.delete(KEYS.inprogress_identities)
    burial = Burial(JobLocks("j1", (keys.unique("u"),), ttl=60), DEAD)
    jobs = [Listed(JOB, "default", JobLocks("j1", (keys.unique("u"),), ttl=60))]
    for call in (
        scripts.beat(keys, ME, NOW, ["default"]),
        scripts.register(keys, ME, NOW),
        scripts.look(keys, ME),
        scripts.settle_and_fetch(keys, ME, settlement(RETRY), NOW, ["default"], [keys.queue("default")]),
        scripts.requeue(keys, ME, JOB, "default", 2, True, 3, burial, NOW),
        scripts.recover(keys, ME, jobs, 300, True, 3, NOW),
        scripts.bury_repeat_orphan(keys, JOB, burial, NOW),
        scripts.farewell(keys, ME, [JOB], jobs, True),
    ):
        assert all(key.startswith("shop:") for key in call.keys), call.script.name
        store.run(call)
    assert all(key.startswith(b"shop:") for key in store.client.keys("*"))


def test_no_script_reads_json() -> None:
    for script in vars(scripts).values():
        if isinstance(script, scripts.Script):
            assert "cjson" not in script.text
            assert "--@include" not in script.text
    assert json.loads(RETRY.payload) == {"later": 1}
