"""The scripts of a periodic slot: what each answers, and every key that it leaves, against the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from cogworkerd.locks import JobLocks
from cogworkerd.store import scripts
from cogworkerd.store.keys import Keys
from cogworkerd.store.scripts import Call, Slot
from cogworkerd.unique import periodic_id
from tests.support import Server

PJID = periodic_id("0 * * * *", "HourlyCleanupJob", [])
AT = 1_700_002_800
MEMORY = 7_783_200
RUNNING_TTL = 86_400
UNIQUE_TTL = 90_000
JOB = b'{"class":"HourlyCleanupJob","jid":"j1"}'
KEYS = Keys()
LAST, RUNNING = KEYS.periodic_last_slot(PJID), KEYS.periodic_running(PJID)
LOCK, SEEN, RESERVED = KEYS.periodic_lock(PJID, AT), KEYS.periodic_seen(PJID), KEYS.periodic_reservation(PJID)
QUEUE = KEYS.queue("default")
UNIQUE = KEYS.unique("u")
RECEIPTS = KEYS.periodic_fired(PJID)
FIRED = {LAST: b"1700002800", RECEIPTS: {b"me": b"1700002800  j1"}, LOCK: b"1", QUEUE: [JOB], KEYS.queues: {b"default"}}


@dataclass
class Store:
    """The server, without decoding, and how to run a call on it."""

    client: Any  # the types of redis-py do not know whether it decodes

    def run(self, call: Call) -> Any:
        return self.client.register_script(call.script.text)(keys=call.keys, args=call.args)

    def contents(self) -> dict[str, Any]:
        """Every key with what it holds."""
        return {key.decode(): self._content(key) for key in self.client.keys("*")}

    def _content(self, key: bytes) -> Any:
        kind = self.client.type(key)
        if kind == b"string":
            return self.client.get(key)
        if kind == b"list":
            return self.client.lrange(key, 0, -1)
        if kind == b"set":
            return self.client.smembers(key)
        if kind == b"hash":
            return self.client.hgetall(key)
        return dict(self.client.zrange(key, 0, -1, withscores=True))

    def lives_for(self, key: str, seconds: int) -> bool:
        """Whether a key has just got this lifetime."""
        return bool(seconds - 5 <= self.client.ttl(key) <= seconds)


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with redis.Redis(port=server.port) as client:
        yield Store(client)


def fire(
    keys: Keys = KEYS,
    slot: int = AT,
    jid: str = "j1",
    until_executed: bool = False,
    queue: str = "default",
    due: float | None = None,
    unique: bool = False,
) -> Call:
    lock = JobLocks(jid, (keys.unique("u"),), ttl=UNIQUE_TTL) if unique else None
    return scripts.fire_slot(
        keys, Slot(PJID, slot, until_executed, MEMORY), "me", jid, JOB, queue, due, lock, ttl=RUNNING_TTL
    )


def reserve(who: str = "me", until_executed: bool = False) -> Call:
    return scripts.reserve_slot(KEYS, Slot(PJID, AT, until_executed, MEMORY), who, 5)


def pass_on(slot: int = AT) -> Call:
    return scripts.pass_slot(KEYS, Slot(PJID, slot, False, MEMORY))


def claims(until_executed: bool = False) -> list[Call]:
    """Both scripts that ask whether the slot can be claimed."""
    return [fire(until_executed=until_executed), reserve(until_executed=until_executed)]


# ---- fire_slot: what is written ------------------------------------------------------------------------


def test_a_slot_that_fires_leaves_its_lock_its_memory_and_its_job(store: Store) -> None:
    """R53: the answer has no previous slot where there was none."""
    assert store.run(fire()) == [b"fired", b""]
    assert store.contents() == FIRED
    assert store.lives_for(LOCK, 20)
    assert store.lives_for(LAST, MEMORY)
    assert store.lives_for(RECEIPTS, 3600)
    assert store.client.ttl(QUEUE) == store.client.ttl(KEYS.queues) == -1


def test_a_slot_that_fires_answers_the_one_before_it(store: Store) -> None:
    """R53."""
    store.client.set(LAST, AT - 3600)
    assert store.run(fire()) == [b"fired", b"%d" % (AT - 3600)]
    assert store.contents() == {**FIRED, RECEIPTS: {b"me": b"%d %d j1" % (AT, AT - 3600)}}
    assert store.lives_for(LAST, MEMORY)


def test_the_running_lock_of_an_until_executed_entry_is_written_with_the_claim(store: Store) -> None:
    """R54: it holds the id that the job carries."""
    assert store.run(fire(until_executed=True)) == [b"fired", b""]
    assert store.contents() == {**FIRED, RUNNING: b"j1"}
    assert store.lives_for(RUNNING, RUNNING_TTL)


def test_the_unique_lock_of_the_job_is_written_with_the_claim(store: Store) -> None:
    assert store.run(fire(unique=True)) == [b"fired", b""]
    assert store.contents() == {**FIRED, UNIQUE: b"j1"}
    assert store.lives_for(UNIQUE, UNIQUE_TTL)


def test_a_job_goes_to_the_head_of_its_queue(store: Store) -> None:
    store.client.lpush(QUEUE, "older")
    store.run(fire())
    assert store.client.lrange(QUEUE, 0, -1) == [JOB, b"older"]


def test_a_job_that_is_due_later_goes_to_schedule_and_lists_no_queue(store: Store) -> None:
    due = AT + 90_061.125
    assert store.run(fire(due=due, until_executed=True, unique=True)) == [b"fired", b""]
    assert store.contents() == {
        LAST: b"1700002800",
        LOCK: b"1",
        RUNNING: b"j1",
        UNIQUE: b"j1",
        RECEIPTS: {b"me": b"1700002800  j1"},
        KEYS.schedule: {JOB: due},
    }


def test_a_queue_that_cannot_be_listed_does_not_keep_the_slot_from_firing(store: Store) -> None:
    """R2."""
    store.client.set(KEYS.queues, "odd")
    assert store.run(fire()) == [b"fired", b""]
    assert store.contents() == {**FIRED, KEYS.queues: b"odd"}


def test_every_key_of_a_namespace_has_its_prefix(store: Store) -> None:
    keys = Keys("shop")
    assert store.run(fire(keys, until_executed=True, unique=True)) == [b"fired", b""]
    slot = Slot(PJID, AT + 1, False, MEMORY)
    assert store.run(scripts.reserve_slot(keys, slot, "me", 5)) == [b"reserved"]
    assert store.run(scripts.pass_slot(keys, slot)) == 1
    assert set(store.contents()) == {
        f"shop:periodic:last_slot:{PJID}",
        f"shop:periodic:lock:{PJID}:{AT}",
        f"shop:periodic:running:{PJID}",
        f"shop:cogworker:x:periodic_fired:{PJID}",
        f"shop:cogworker:x:periodic_reservation:{PJID}",
        f"shop:cogworker:x:periodic_seen:{PJID}",
        "shop:cogworker:queue:default",
        "shop:cogworker:queues",
        "shop:cogworker:unique:u",
    }


def test_without_a_namespace_the_keys_are_those_of_the_wire_format() -> None:
    assert [*fire(until_executed=True, unique=True).keys] == [
        "periodic:disabled",
        f"periodic:last_slot:{PJID}",
        f"periodic:lock:{PJID}:{AT}",
        f"periodic:running:{PJID}",
        "cogworker:queue:default",
        "cogworker:queues",
        "cogworker:unique:u",
        f"cogworker:x:periodic_fired:{PJID}",
    ]


@pytest.mark.parametrize("before", ["a text", ["a", "list"], {f"daemon {number}": "1  j" for number in range(64)}])
def test_receipts_begin_anew_where_they_are_none_or_too_many(before: Any, store: Store) -> None:
    if isinstance(before, str):
        store.client.set(RECEIPTS, before)
    elif isinstance(before, list):
        store.client.rpush(RECEIPTS, *before)
    else:
        store.client.hset(RECEIPTS, mapping=before)
    assert store.run(fire()) == [b"fired", b""]
    assert store.contents() == FIRED


def test_each_daemon_has_its_receipt(store: Store) -> None:
    store.client.hset(RECEIPTS, mapping={f"daemon {number}": "1  j" for number in range(63)})
    store.run(fire())
    assert store.client.hlen(RECEIPTS) == 64
    assert store.client.hget(RECEIPTS, "me") == b"1700002800  j1"


# ---- why a slot is not claimed -------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [None, LOCK, LAST])
def test_a_slot_is_claimed_once(gone: str | None, store: Store) -> None:
    """R53: also when its lock has expired, and also when the memory is gone but the lock is not."""
    store.run(fire())
    if gone:
        store.client.delete(gone)
    before = store.contents()
    for call in (fire(jid="j2", until_executed=True, unique=True), reserve()):
        assert store.run(call) == [b"lost"]
    assert store.contents() == before


@pytest.mark.parametrize(("last", "answer"), [(AT + 1, b"lost"), (AT, b"lost"), (AT - 1, None)])
def test_a_slot_before_one_that_was_claimed_is_lost(last: int, answer: bytes | None, store: Store) -> None:
    """R53."""
    for call, claimed in zip(claims(), (b"fired", b"reserved"), strict=True):
        store.client.flushall()
        store.client.set(LAST, last)
        assert store.run(call)[0] == (answer or claimed)
        if answer:
            assert store.contents() == {LAST: b"%d" % last}


def test_a_slot_behind_a_running_lock_is_blocked_and_not_lost(store: Store) -> None:
    """R56."""
    store.client.set(RUNNING, "j0")
    before = store.contents()
    for call in claims(until_executed=True):
        assert store.run(call) == [b"blocked"]
    assert store.contents() == before


def test_a_running_lock_does_not_block_an_entry_that_may_run_twice(store: Store) -> None:
    store.client.set(RUNNING, "j0")
    assert store.run(fire()) == [b"fired", b""]
    assert store.contents() == {**FIRED, RUNNING: b"j0"}


@pytest.mark.parametrize("sign", [lambda store: store.client.set(LAST, AT), lambda store: store.client.set(LOCK, 1)])
def test_a_slot_that_is_both_lost_and_blocked_is_lost(sign: Callable[[Store], Any], store: Store) -> None:
    """R56: a daemon that lost must not wait for the run that won, and then skip the slot."""
    store.client.set(RUNNING, "the winner")
    sign(store)
    for call in claims(until_executed=True):
        assert store.run(call) == [b"lost"]


def test_a_disabled_entry_claims_nothing_whatever_else_is_the_case(store: Store) -> None:
    """R58."""
    store.client.sadd(KEYS.periodic_disabled, PJID)
    for extra in (None, RUNNING, LAST, LOCK, UNIQUE):
        if extra:
            store.client.set(extra, AT)
        before = store.contents()
        for call in (*claims(until_executed=True), fire(unique=True)):
            assert store.run(call) == [b"disabled"]
        assert store.contents() == before


def test_another_entry_that_is_disabled_is_none_of_this_ones_business(store: Store) -> None:
    store.client.sadd(KEYS.periodic_disabled, "another")
    assert store.run(reserve()) == [b"reserved"]
    assert store.run(fire()) == [b"fired", b""]


@pytest.mark.parametrize("previous", [None, AT - 3600])
def test_a_duplicate_of_a_unique_job_claims_nothing(previous: int | None, store: Store) -> None:
    store.client.set(UNIQUE, "j0", ex=100)
    if previous:
        store.client.set(LAST, previous)
    before = store.contents()
    assert store.run(fire(until_executed=True, unique=True)) == [b"duplicate"]
    assert store.contents() == before
    assert store.lives_for(UNIQUE, 100)


def test_a_slot_that_is_blocked_leaves_the_unique_lock_alone(store: Store) -> None:
    store.client.set(RUNNING, "j0")
    assert store.run(fire(until_executed=True, unique=True)) == [b"blocked"]
    assert store.contents() == {RUNNING: b"j0"}


# ---- a push that is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("until_executed", [False, True])
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("previous", [None, AT - 3600])
@pytest.mark.parametrize(("due", "target"), [(None, QUEUE), (AT + 60.5, KEYS.schedule)])
def test_a_push_that_is_refused_undoes_all_of_the_claim(
    due: float | None, target: str, previous: int | None, unique: bool, until_executed: bool, store: Store
) -> None:
    """R55: the slot can be fired as soon as the queue is usable."""
    store.client.set(target, "odd")
    if previous:
        store.client.set(LAST, previous)
    before = store.contents()
    call = fire(until_executed=until_executed, unique=unique, due=due)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.run(call)
    assert store.contents() == before
    if previous:
        assert store.lives_for(LAST, MEMORY)
    store.client.delete(target)
    assert store.run(call) == [b"fired", b"%d" % previous if previous else b""]


def test_a_refused_push_does_not_release_the_locks_of_others(store: Store) -> None:
    """R50: an entry that may run twice has not written the running lock, and a job without one no unique lock."""
    store.client.mset({RUNNING: "j0", UNIQUE: "j0", QUEUE: "odd"})
    with pytest.raises(redis.ResponseError):
        store.run(fire())
    assert store.contents() == {RUNNING: b"j0", UNIQUE: b"j0", QUEUE: b"odd"}


# ---- keys of the wrong type ----------------------------------------------------------------------------


@pytest.mark.parametrize("until_executed", [False, True])
@pytest.mark.parametrize(
    ("odd", "answer"),
    [
        (KEYS.periodic_disabled, [b"fired", b""]),
        (LAST, [b"fired", b""]),
        (LOCK, [b"lost"]),
        (RUNNING, None),
        (UNIQUE, [b"duplicate"]),
        (KEYS.queues, [b"fired", b""]),
        (SEEN, [b"fired", b""]),
        (RESERVED, [b"fired", b""]),
    ],
)
def test_a_key_of_the_wrong_type_never_ends_the_script_in_the_middle(
    odd: str, answer: list[bytes] | None, until_executed: bool, store: Store
) -> None:
    """R59: it hinders as if it were held, or not at all."""
    store.client.zadd(odd, {"odd": 1})
    before = store.contents()
    expected = answer or ([b"blocked"] if until_executed else [b"fired", b""])
    assert store.run(fire(until_executed=until_executed, unique=True)) == expected
    if expected[0] == b"fired":
        kept = {} if odd == LAST else {odd: {b"odd": 1.0}}
        running = {RUNNING: b"j1"} if until_executed else {}
        assert store.contents() == {**FIRED, UNIQUE: b"j1", **running, **kept}
    else:
        assert store.contents() == before


@pytest.mark.parametrize("text", ["", "odd", "-5", "12.5", "1e10", " 1700002800", "1700002800x"])
def test_a_memory_that_is_no_number_is_none(text: str, store: Store) -> None:
    store.client.set(LAST, text)
    assert store.run(reserve()) == [b"reserved"]
    assert store.run(fire()) == [b"fired", text.encode()]
    assert store.contents() == {**FIRED, RESERVED: b"me"}


@pytest.mark.parametrize(
    ("odd", "answer"),
    [
        (KEYS.periodic_disabled, b"reserved"),
        (LAST, b"reserved"),
        (LOCK, b"lost"),
        (RUNNING, b"blocked"),
        (RESERVED, b"reserved elsewhere"),
    ],
)
def test_a_reservation_knows_keys_of_the_wrong_type(odd: str, answer: bytes, store: Store) -> None:
    store.client.zadd(odd, {"odd": 1})
    before = store.contents()
    assert store.run(reserve(until_executed=True)) == [answer]
    assert store.contents() == {**before, **({RESERVED: b"me"} if answer == b"reserved" else {})}


# ---- reserve_slot --------------------------------------------------------------------------------------


def test_a_reservation_says_who_has_it_and_claims_nothing(store: Store) -> None:
    assert store.run(reserve(until_executed=True)) == [b"reserved"]
    assert store.contents() == {RESERVED: b"me"}
    assert store.lives_for(RESERVED, 5)


def test_a_slot_is_reserved_by_one(store: Store) -> None:
    store.run(reserve())
    assert store.run(reserve("another")) == [b"reserved elsewhere"]
    assert store.run(reserve()) == [b"reserved elsewhere"]
    assert store.contents() == {RESERVED: b"me"}
    store.run(scripts.release_lock(RESERVED, "another"))
    assert store.contents() == {RESERVED: b"me"}
    store.run(scripts.release_lock(RESERVED, "me"))
    assert store.run(reserve("another")) == [b"reserved"]


def test_a_slot_that_was_fired_is_lost_although_it_is_reserved(store: Store) -> None:
    """R53: a reservation only keeps others from asking; the claim alone decides."""
    store.run(reserve("another"))
    assert store.run(fire()) == [b"fired", b""]
    assert store.run(reserve()) == [b"lost"]
    assert store.contents() == {**FIRED, RESERVED: b"another"}


# ---- pass_slot -----------------------------------------------------------------------------------------


def test_a_slot_that_is_passed_is_noted_and_nothing_else(store: Store) -> None:
    """R58."""
    assert store.run(pass_on()) == 1
    assert store.contents() == {SEEN: b"1700002800"}
    assert store.lives_for(SEEN, MEMORY)


@pytest.mark.parametrize(("slot", "answer", "noted"), [(AT - 1, 0, AT), (AT, 1, AT), (AT + 1, 1, AT + 1)])
def test_the_newest_slot_that_was_passed_stays_noted(slot: int, answer: int, noted: int, store: Store) -> None:
    store.client.set(SEEN, AT, ex=100)
    assert store.run(pass_on(slot)) == answer
    assert store.contents() == {SEEN: b"%d" % noted}
    assert store.lives_for(SEEN, MEMORY if answer else 100)


def test_a_note_that_is_no_number_is_overwritten(store: Store) -> None:
    store.client.set(SEEN, "odd")
    assert store.run(pass_on()) == 1
    assert store.contents() == {SEEN: b"1700002800"}


def test_a_note_of_the_wrong_type_is_told_and_left(store: Store) -> None:
    """R60: it is for the key guard to move it aside."""
    store.client.lpush(SEEN, "odd")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.run(pass_on())
    assert store.contents() == {SEEN: [b"odd"]}
