"""Jobs whose daemons died too often: the limit, the counter, the list of repeat orphans, and what stands in for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from cogworkerd.locks import Locks
from cogworkerd.payload import parse
from cogworkerd.store import scripts
from cogworkerd.store.connection import Server as Address
from cogworkerd.store.keys import Keys, suspects_of
from cogworkerd.supervisor.burial import burial_of, listed_job
from cogworkerd.supervisor.deferred import DeferredReleases
from cogworkerd.supervisor.link import Link
from cogworkerd.supervisor.recovery import Recovery
from cogworkerd.unique import unique_digest
from tests.support import Recorder, Server

KEYS = Keys()
GONE = "gone:1:0123456789ab"
NOW = 1_700_000_000.0
LIMIT = 3
RAW = json.dumps({"class": "a", "jid": "j", "args": [], "queue": "mail", "unique": "until_executed"}).encode()
LOCKS = Locks(KEYS)
LOCK = KEYS.unique(unique_digest(json.loads(RAW), "mail"))
COUNTER = KEYS.orphanings("j")

# Each would switch the limit off if it were taken for a count, or stop the recovery.
UNUSABLE = ["nan", "-nan", "inf", "-1000000", "1e9", "0x10", " 3", "3.5", "", "many", "99999999999999999999", b"\xff"]


@pytest.fixture
def store(server: Server) -> Iterator[Any]:
    """A client that does not decode. A dead ward holds one job, which has a lock."""
    with redis.Redis(port=server.port) as client:
        client.sadd(KEYS.inprogress_identities, GONE)
        client.sadd(KEYS.wards, GONE)
        client.lpush(KEYS.inprogress(GONE), RAW)
        client.set(LOCK, "j")
        yield client


def run(store: Any, call: scripts.Call) -> Any:
    return store.register_script(call.script.text)(keys=call.keys, args=call.args)


def recover(store: Any) -> list[Any]:
    return list(run(store, scripts.recover(KEYS, GONE, [listed_job(RAW, LOCKS)], 60.0, False, LIMIT, NOW)))


def turn(server: Server, turns: int = 1) -> Recorder:
    """Turns of a real recovery, so far apart that each second look is due; what it logged."""
    log: Any = Recorder()

    async def go() -> None:
        link = Link(Address.parse(server.url), log)
        recovery = Recovery(
            link, KEYS, LOCKS, "here:1:ba9876543210", 60.0, LIMIT, log, DeferredReleases(link, log), lambda _: None
        )
        try:
            for n in range(turns):
                await recovery.turn(100.0 + 70.0 * n)
        finally:
            await link.close()

    asyncio.run(go())
    recorder: Recorder = log
    return recorder


@pytest.mark.parametrize("value", UNUSABLE)
def test_r40_an_unusable_counter_starts_over_in_a_recovery(value: str | bytes, store: Any) -> None:
    store.set(COUNTER, value)
    assert recover(store) == [b"forgotten", 1, 0, 0]
    assert store.get(COUNTER) == b"1"
    assert store.ttl(COUNTER) > 0


@pytest.mark.parametrize("value", UNUSABLE)
def test_r40_an_unusable_counter_starts_over_when_a_child_dies(value: str | bytes, store: Any) -> None:
    store.set(COUNTER, value)
    store.set(KEYS.look(GONE), 7)
    burial = burial_of(RAW, "mail", "it died", LOCKS, NOW)
    assert run(store, scripts.requeue(KEYS, GONE, RAW, "mail", 7, True, LIMIT, burial, NOW)) == b"requeued"
    assert store.get(COUNTER) == b"1"


def test_r40_a_counter_of_another_type_starts_over(store: Any) -> None:
    store.lpush(COUNTER, "x")
    assert recover(store) == [b"forgotten", 1, 0, 0]
    assert store.get(COUNTER) == b"1"


def test_r39_over_the_limit_a_job_is_buried_with_the_reason_whatever_its_retry_says(server: Server, store: Any) -> None:
    store.set(COUNTER, LIMIT)
    log = turn(server, turns=2)
    ((entry, score),) = store.zrange(KEYS.dead, 0, -1, withscores=True)
    assert "died more than 3 times" in parse(entry)["error_message"]
    assert parse(entry)["error_class"] == "ProcessDied"
    assert score > NOW
    assert not store.exists(KEYS.repeat_orphans, LOCK, COUNTER, KEYS.queue(suspects_of("mail")), KEYS.inprogress(GONE))
    assert store.get(KEYS.failed) == b"1"
    assert log.fields("job.buried") == [{"jid": "j", "set": KEYS.dead}]


def test_r39_with_an_unusable_list_a_job_goes_to_dead_raw_and_is_completed_later(server: Server, store: Any) -> None:
    store.set(COUNTER, LIMIT)
    store.set(KEYS.repeat_orphans, "no list")
    assert recover(store) == [b"forgotten", 0, 1, 0]
    assert store.zrange(KEYS.dead, 0, -1) == [RAW]
    assert store.exists(LOCK)
    store.delete(KEYS.repeat_orphans)  # as the key guard does
    turn(server)
    (entry,) = store.zrange(KEYS.dead, 0, -1)
    assert "died more than 3 times" in parse(entry)["error_message"]
    assert not store.exists(LOCK, COUNTER, KEYS.raw_burials)
    assert store.get(KEYS.failed) == b"1"
    turn(server)
    assert store.zcard(KEYS.dead) == 1
    assert store.get(KEYS.failed) == b"1"


def test_r39_a_raw_burial_is_completed_also_after_a_failure_in_between(server: Server, store: Any) -> None:
    store.set(COUNTER, LIMIT)
    store.set(KEYS.repeat_orphans, "no list")
    recover(store)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        turn(server)  # the list of repeat orphans is still unusable
    store.delete(KEYS.repeat_orphans)
    turn(server)
    (entry,) = store.zrange(KEYS.dead, 0, -1)
    assert parse(entry)["error_class"] == "ProcessDied"


def test_r39_a_raw_burial_that_somebody_took_in_hand_is_left_alone(server: Server, store: Any) -> None:
    store.set(COUNTER, LIMIT)
    store.set(KEYS.repeat_orphans, "no list")
    recover(store)
    store.delete(KEYS.repeat_orphans, KEYS.dead)  # retried in a web page
    turn(server)
    assert not store.exists(KEYS.dead, KEYS.raw_burials, KEYS.failed)


def test_r39_with_dead_unusable_too_the_job_stays_listed(server: Server, store: Any) -> None:
    store.set(COUNTER, LIMIT)
    store.set(KEYS.repeat_orphans, "no list")
    store.set(KEYS.dead, "no zset")
    assert recover(store) == [b"left", 0, 0, 1]
    assert store.lrange(KEYS.inprogress(GONE), 0, -1) == [RAW]
    assert store.get(COUNTER) == str(LIMIT).encode()
    store.delete(KEYS.repeat_orphans, KEYS.dead)
    assert recover(store) == [b"forgotten", 0, 1, 0]
    assert store.lrange(KEYS.repeat_orphans, 0, -1) == [RAW]


def test_r41_a_job_that_goes_back_to_a_queue_that_nobody_reads_is_told_and_its_queue_listed(
    server: Server, store: Any
) -> None:
    log = turn(server, turns=2)
    assert log.fields("queue.unread") == [{"queue": "mail"}]
    assert store.smembers(KEYS.queues) == {b"x:suspects:mail"}


@pytest.mark.parametrize(("age", "told"), [(100, False), (140, True)])
def test_r41_a_queue_counts_as_read_for_two_minutes_by_the_servers_clock(
    age: int, told: bool, server: Server, store: Any
) -> None:
    store.zadd(KEYS.live_queues, {"mail": store.time()[0] - age})
    assert bool(turn(server, turns=2).fields("queue.unread")) == told


BYTES = b"no job, and it ends whoever reads it"


def test_bytes_that_are_no_job_are_counted_as_one_and_buried_over_the_limit(server: Server, store: Any) -> None:
    """R31, R39: their count is kept under an id that follows from the bytes."""
    store.delete(KEYS.inprogress(GONE))
    for _ in range(LIMIT + 1):
        store.sadd(KEYS.inprogress_identities, GONE)
        store.sadd(KEYS.wards, GONE)
        store.lpush(KEYS.inprogress(GONE), BYTES)
        store.delete(KEYS.queue(suspects_of("default")), KEYS.recovery_lease)
        turn(server, turns=2)
    ((entry, _),) = store.zrange(KEYS.dead, 0, -1, withscores=True)
    assert parse(entry)["raw_payload"] == BYTES.decode()
    assert store.keys(KEYS.orphanings("*")) == []
