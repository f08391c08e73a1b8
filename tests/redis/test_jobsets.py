"""Queues and sets, looked at and changed by hand: what moves, what stays, whose locks go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from cogworkerd.jobsets import PAGE, DeadSet, Entry, JobSet, Queue, RetrySet, ScheduledSet, Store
from cogworkerd.locks import Locks
from cogworkerd.store.keys import Keys
from tests.support import Client, Server

KEYS = Keys()
LOCKS = Locks(KEYS, 100.0)
SETS: list[type[JobSet]] = [ScheduledSet, RetrySet, DeadSet]


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield Store(client, KEYS, LOCKS)


def payload(n: int, name: str = "mail", **fields: Any) -> dict[str, Any]:
    return {"class": name, "args": [n], "queue": "low", "jid": f"{n:024d}", **fields}


def lock_of(job: dict[str, Any]) -> str:
    return LOCKS.held(job, "low")[0]


def fill(store: Store, kind: type[JobSet], count: int, name: str = "mail", **fields: Any) -> list[dict[str, Any]]:
    jobs = [payload(n, name, **fields) for n in range(count)]
    key = getattr(KEYS, kind.kind)
    store.client.zadd(key, {json.dumps(job): 1000 + n for n, job in enumerate(jobs)})
    for job in jobs:
        if job.get("unique"):
            store.client.set(lock_of(job), job["jid"], ex=50)
    return jobs


# ---- sets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SETS)
def test_a_set_is_read_in_pages_and_found_in(kind: type[JobSet], store: Store) -> None:
    jobs = fill(store, kind, 2 * PAGE + 7)
    found = kind(store)
    assert len(found) == len(jobs)
    assert {entry.jid for entry in found} == {job["jid"] for job in jobs}
    assert [entry.jid for entry in found.page(3, 2)] == [jobs[3]["jid"], jobs[4]["jid"]]
    assert [entry.score for entry in found.page(0, 1, newest=True)] == [1000 + 2 * PAGE + 6]
    entry = found.find(jobs[700]["jid"])
    assert entry is not None
    assert (entry.name, entry.queue, entry.score) == ("mail", "low", 1700.0)
    assert found.find("nobody") is None


@pytest.mark.parametrize("kind", SETS)
def test_a_retry_puts_the_job_on_its_queue_once_and_holds_its_lock(
    kind: type[JobSet], store: Store, client: Client
) -> None:
    (job,) = fill(store, kind, 1, unique="until_executed", odd={"kept": 1})
    client.delete(lock_of(job))  # a dead one has none
    found = kind(store)
    (entry,) = found
    before = time.time()
    assert [found.retry(entry), found.retry(entry)] == [True, False]
    (raw,) = client.lrange(KEYS.queue("low"), 0, -1)
    pushed = json.loads(raw)
    assert pushed.pop("enqueued_at") >= before
    assert pushed == job
    assert client.sismember(KEYS.queues, "low")
    assert client.get(lock_of(job)) == job["jid"]
    assert 95 < client.ttl(lock_of(job)) <= 100
    assert len(found) == 0


def test_a_retry_does_not_take_a_lock_that_another_job_holds(store: Store, client: Client) -> None:
    (job,) = fill(store, DeadSet, 1, unique="until_executed")
    client.set(lock_of(job), "another")
    dead = DeadSet(store)
    assert dead.retry(next(iter(dead)))
    assert client.get(lock_of(job)) == "another"


@pytest.mark.parametrize("kind", SETS)
def test_deleting_takes_locks_and_attempts_along(kind: type[JobSet], store: Store, client: Client) -> None:
    (job,) = fill(store, kind, 1, unique="until_executed")
    client.rpush(KEYS.attempts(job["jid"]), "{}")
    found = kind(store)
    (entry,) = found
    assert [found.delete(entry), found.delete(entry)] == [True, False]
    assert client.keys("*") == []


@pytest.mark.parametrize("kind", [ScheduledSet, RetrySet])
def test_burying_releases_the_lock_and_rescheduling_keeps_the_bytes(
    kind: type[ScheduledSet] | type[RetrySet], store: Store, client: Client
) -> None:
    (job,) = fill(store, kind, 1, unique="until_executed")
    found = kind(store)
    (entry,) = found
    assert found.reschedule(entry, 5_000.0)
    assert [(moved.raw, moved.score) for moved in found] == [(entry.raw, 5_000.0)]
    before = time.time()
    assert [found.bury(entry), found.bury(entry), found.reschedule(entry, 1.0)] == [True, False, False]
    ((raw, score),) = client.zrange(KEYS.dead, 0, -1, withscores=True)
    assert raw.encode() == entry.raw
    assert before <= score <= time.time()
    assert not client.exists(lock_of(job))


@pytest.mark.parametrize("kind", SETS)
def test_all_that_a_filter_names_are_moved_and_no_other(kind: type[JobSet], store: Store, client: Client) -> None:
    fill(store, kind, PAGE + 50, "mail")
    fill(store, kind, 30, "other")
    found = kind(store)
    assert found.retry_all(lambda entry: entry.name == "other") == 30
    assert client.llen(KEYS.queue("low")) == 30
    assert found.delete_all() == PAGE + 50
    assert len(found) == 0


def test_bytes_that_are_no_job_are_shown_and_deleted_but_not_retried(store: Store) -> None:
    entries: dict[Any, float] = {b"\xff nonsense": 1.0, json.dumps(payload(1, "(unparseable)")): 2.0}
    store.client.zadd(KEYS.dead, entries)
    dead = DeadSet(store)
    assert {entry.is_job for entry in dead} == {False}
    for entry in dead.page():
        with pytest.raises(ValueError, match="no job"):
            dead.retry(entry)
    assert dead.retry_all() == 0
    assert dead.delete_all() == 2


# ---- queues ---------------------------------------------------------------------------------------------


def push(store: Store, count: int, **fields: Any) -> list[dict[str, Any]]:
    jobs = [payload(n, **fields) for n in range(count)]
    store.client.lpush(KEYS.queue("low"), *[json.dumps(job) for job in jobs])
    for job in jobs:
        if job.get("unique"):
            store.client.set(lock_of(job), job["jid"], ex=50)
    return jobs


def test_a_queue_is_read_newest_first_and_found_in(store: Store) -> None:
    jobs = push(store, PAGE + 3)
    queue = Queue(store, "low")
    assert len(queue) == PAGE + 3
    assert [entry.jid for entry in queue] == [job["jid"] for job in reversed(jobs)]
    assert queue.find(jobs[0]["jid"]) is not None
    assert queue.find("nobody") is None


def test_one_job_of_a_queue_is_deleted_with_its_lock(store: Store, client: Client) -> None:
    jobs = push(store, 3, unique="until_executed")
    queue = Queue(store, "low")
    entry = queue.find(jobs[1]["jid"])
    assert entry is not None
    assert [queue.delete(entry), queue.delete(entry)] == [True, False]
    assert [entry.jid for entry in queue] == [jobs[2]["jid"], jobs[0]["jid"]]
    assert [bool(client.exists(lock_of(job))) for job in jobs] == [True, False, True]


def test_a_cleared_queue_leaves_no_lock_and_takes_nothing_that_comes_meanwhile(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, 2 * PAGE + 5, unique="until_executed")
    queue = Queue(store, "low")
    late = json.dumps(payload(9999))
    original = queue._delete

    def meanwhile(raws: list[bytes]) -> int:
        client.lpush(KEYS.queue("low"), late)
        return original(raws)

    monkeypatch.setattr(queue, "_delete", meanwhile)
    assert queue.clear() == 2 * PAGE + 5
    assert set(client.lrange(KEYS.queue("low"), 0, -1)) == {late}
    assert client.keys("cogworker:unique:*") == []


def test_a_pause_is_a_member_of_the_set_that_daemons_read(store: Store, client: Client) -> None:
    queue = Queue(store, "low")
    queue.pause()
    assert queue.paused
    assert client.smembers(KEYS.paused_queues) == {"low"}
    queue.resume()
    assert not queue.paused


def test_a_queue_has_a_name(store: Store) -> None:
    with pytest.raises(ValueError, match="no white space"):
        Queue(store, "a b")


def test_an_entry_of_another_program_is_read_like_ours() -> None:
    entry = Entry.read(b'{"class":"GreetingJob","args":["world"],"jid":"abc"}', 5.0)
    assert (entry.name, entry.queue, entry.jid, entry.is_job) == ("GreetingJob", "default", "abc", True)
