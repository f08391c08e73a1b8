"""The inspection API on a real server: what is done to many entries at once, page by page, while others work on the
same sets; and what other programs have put there."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from cogworkerd import App
from cogworkerd.inspect import DeadSet, Entry, JobSet, Queue, RetrySet, ScheduledSet, Stats, Store
from cogworkerd.jobsets import PAGE
from cogworkerd.locks import Locks
from cogworkerd.store.keys import Keys
from tests.support import Client, Server, eventually

KEYS = Keys()
LOCKS = Locks(KEYS, 100.0)
SETS: list[type[JobSet]] = [ScheduledSet, RetrySet, DeadSet]
WAITING: list[type[ScheduledSet] | type[RetrySet]] = [ScheduledSet, RetrySet]
MANY = 2 * PAGE + 200
LOW = KEYS.queue("low")


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with redis.Redis(port=server.port) as client:
        yield Store(client, KEYS, LOCKS)


def job(n: int, **fields: Any) -> dict[str, Any]:
    return {"class": f"job-{n % 10}", "args": [n], "queue": "low", "jid": f"{n:024d}", **fields}


def fill(store: Store, kind: type[JobSet], count: int = MANY, **fields: Any) -> list[dict[str, Any]]:
    jobs = [job(n, **fields) for n in range(count)]
    if not jobs:
        return []
    key = getattr(KEYS, kind.kind)
    store.client.zadd(key, {json.dumps(each): 1000 + n for n, each in enumerate(jobs)})
    if fields.get("unique"):
        store.client.mset({LOCKS.held(each, "low")[0]: each["jid"] for each in jobs})
    return jobs


def of_class(n: int) -> Callable[[Entry], bool]:
    return lambda entry: entry.name == f"job-{n}"


def numbers(raws: list[Any]) -> list[int]:
    """Which of our jobs these are."""
    return sorted(json.loads(raw)["args"][0] for raw in raws)


def in_set(client: Client, kind: type[JobSet]) -> list[int]:
    return numbers(client.zrange(getattr(KEYS, kind.kind), 0, -1))


def on_queue(client: Client) -> list[int]:
    return numbers(client.lrange(LOW, 0, -1))


def locked(client: Client) -> list[int]:
    return sorted(int(owner) for owner in client.mget(client.keys("cogworker:unique:*")))


# ---- many at once ---------------------------------------------------------------------------------------

THREES = list(range(3, MANY, 10))
OTHERS = [n for n in range(MANY) if n % 10 != 3]


@pytest.mark.parametrize("kind", SETS)
def test_those_of_a_filter_are_retried_and_keep_their_locks(kind: type[JobSet], store: Store, client: Client) -> None:
    fill(store, kind, unique="until_executed")
    before = time.time()
    assert kind(store).retry_all(of_class(3)) == len(THREES)
    assert (on_queue(client), in_set(client, kind)) == (THREES, OTHERS)
    assert locked(client) == list(range(MANY))
    for raw in client.lrange(LOW, 0, 5):
        assert json.loads(raw)["enqueued_at"] >= before
    assert client.smembers(KEYS.queues) == {"low"}


@pytest.mark.parametrize("kind", SETS)
def test_those_of_a_filter_are_deleted_with_their_locks(kind: type[JobSet], store: Store, client: Client) -> None:
    fill(store, kind, unique="until_executed")
    store.client.rpush(KEYS.attempts(f"{3:024d}"), "{}")
    assert kind(store).delete_all(of_class(3)) == len(THREES)
    assert (in_set(client, kind), locked(client), client.keys("cogworker:job_attempts:*")) == (OTHERS, OTHERS, [])
    assert kind(store).delete_all() == len(OTHERS)
    assert client.keys("*") == []


@pytest.mark.parametrize("kind", WAITING)
def test_those_of_a_filter_are_buried_as_they_are_and_their_locks_released(
    kind: type[ScheduledSet] | type[RetrySet], store: Store, client: Client
) -> None:
    fill(store, kind, unique="until_executed")
    bytes_before = set(client.zrange(getattr(KEYS, kind.kind), 0, -1))
    before = time.time()
    assert kind(store).bury_all(of_class(3)) == len(THREES)
    assert (in_set(client, DeadSet), in_set(client, kind), locked(client)) == (THREES, OTHERS, OTHERS)
    dead = client.zrange(KEYS.dead, 0, -1, withscores=True)
    assert {raw for raw, _ in dead} <= bytes_before
    assert all(before <= score <= time.time() for _, score in dead)
    assert kind(store).bury_all() == len(OTHERS)
    assert locked(client) == []
    assert client.get(KEYS.failed) is None, "burying by hand is no failure"


@pytest.mark.parametrize("kind", WAITING)
def test_those_of_a_filter_get_another_time_and_keep_their_bytes_and_locks(
    kind: type[ScheduledSet] | type[RetrySet], store: Store, client: Client
) -> None:
    fill(store, kind, unique="until_executed")
    key = getattr(KEYS, kind.kind)
    bytes_before = set(client.zrange(key, 0, -1))
    assert kind(store).reschedule_all(5e9, of_class(3)) == len(THREES)
    assert numbers(client.zrangebyscore(key, 5e9, 5e9)) == THREES
    assert numbers(client.zrangebyscore(key, 0, 4e9)) == OTHERS
    assert set(client.zrange(key, 0, -1)) == bytes_before
    assert kind(store).reschedule_all(6e9) == MANY
    assert client.zcount(key, 6e9, 6e9) == MANY
    assert locked(client) == list(range(MANY))


@pytest.mark.parametrize("when", [float("nan"), float("inf"), "soon", True, None], ids=repr)
def test_a_time_that_is_none_changes_nothing(when: Any, store: Store, client: Client) -> None:
    fill(store, RetrySet, 3)
    with pytest.raises((TypeError, ValueError), match="a time is"):
        RetrySet(store).reschedule_all(when)
    assert client.zrange(KEYS.retry, 0, -1, withscores=True)[0][1] == 1000


ACTS: dict[str, Callable[..., int]] = {
    "retry": lambda found, *args: found.retry_all(*args),
    "delete": lambda found, *args: found.delete_all(*args),
    "bury": lambda found, *args: found.bury_all(*args),
    "reschedule": lambda found, *args: found.reschedule_all(5e9, *args),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("count", [0, 5, 100, MANY])
def test_progress_is_told_after_each_page_and_ends_with_all(act: str, count: int, store: Store) -> None:
    fill(store, RetrySet, count)
    told: list[tuple[int, int]] = []
    changed = ACTS[act](RetrySet(store), of_class(3), lambda *numbers: told.append(numbers))
    assert changed == len(range(3, count, 10))
    assert told == sorted(told)
    if count:
        assert told[-1] == (count, changed)
        assert len(told) >= count / (2 * PAGE)
        assert all(after[0] - before[0] <= 2 * PAGE for before, after in itertools.pairwise(told))


@pytest.mark.parametrize("act", ACTS)
def test_a_filter_or_a_progress_that_raises_ends_it_there_and_what_was_done_is_whole(
    act: str, store: Store, client: Client
) -> None:
    fill(store, RetrySet)

    def progress(seen: int, changed: int) -> None:
        raise KeyboardInterrupt

    def where(entry: Entry) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ACTS[act](RetrySet(store), where)
    assert len(in_set(client, RetrySet)) == MANY
    with pytest.raises(KeyboardInterrupt):
        ACTS[act](RetrySet(store), lambda entry: True, progress)
    moved = on_queue(client) + in_set(client, DeadSet)
    if act != "delete":
        assert sorted(moved + in_set(client, RetrySet)) == list(range(MANY))
    assert 0 < client.zcount(KEYS.retry, 0, 4e9) < MANY


# ---- while others work on it ----------------------------------------------------------------------------


class Other:
    """Another client that works on a set until it is told to stop."""

    def __init__(self, server: Server, turn: Callable[[Client, int], None]) -> None:
        self._client = server.client()
        self._over = threading.Event()
        self._turn = turn
        self.turns = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            self._turn(self._client, self.turns)
            self.turns += 1

    def __enter__(self) -> Other:
        self._thread.start()
        eventually(lambda: self.turns > 5)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()


@pytest.mark.parametrize("act", ["retry", "bury", "delete"])
def test_each_entry_is_changed_once_by_one_of_two_that_do_the_same(act: str, server: Server, store: Store) -> None:
    fill(store, RetrySet, 4 * PAGE, unique="until_executed")
    counts: list[int] = []

    def work() -> None:
        with redis.Redis(port=server.port) as client:
            counts.append(ACTS[act](RetrySet(Store(client, KEYS, LOCKS))))

    both = [threading.Thread(target=work) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sum(counts) == 4 * PAGE
    with server.client() as client:
        assert client.zcard(KEYS.retry) == 0
        expected = [] if act == "delete" else list(range(4 * PAGE))
        assert on_queue(client) + in_set(client, DeadSet) == expected
        assert locked(client) == (expected if act == "retry" else [])


@pytest.mark.parametrize("act", ACTS)
def test_what_stays_is_seen_while_another_client_adds_and_removes(
    act: str, server: Server, store: Store, client: Client
) -> None:
    """Sets grow and shrink under the reading, and are laid out anew by the server for it."""
    fill(store, RetrySet)

    def turn(other: Client, n: int) -> None:
        extra = {json.dumps({**job(n), "class": "extra", "jid": f"x{n}-{i}"}): 3e9 for i in range(200)}
        other.zadd(KEYS.retry, extra)
        other.zrem(KEYS.retry, *extra)

    with Other(server, turn) as other:
        before = other.turns
        assert ACTS[act](RetrySet(store), lambda entry: entry.name in ("job-3", "job-4")) == 2 * len(THREES)
        eventually(lambda: other.turns > before)
    rest = numbers(client.zrangebyscore(KEYS.retry, 0, 4e9))
    assert rest == [n for n in range(MANY) if n % 10 not in (3, 4)]


def test_an_entry_that_another_client_takes_meanwhile_is_neither_counted_nor_doubled(
    store: Store, client: Client
) -> None:
    fill(store, DeadSet)
    taken: list[int] = []

    def where(entry: Entry) -> bool:
        if entry.name == "job-5":
            taken.extend([entry.payload["args"][0]] * client.zrem(KEYS.dead, entry.raw))
        return entry.name in ("job-5", "job-6")

    assert DeadSet(store).retry_all(where) == len(range(6, MANY, 10))
    assert sorted(taken) == list(range(5, MANY, 10))
    assert on_queue(client) == list(range(6, MANY, 10))


def test_rescheduling_does_not_bring_back_what_another_client_took(store: Store, client: Client) -> None:
    fill(store, RetrySet)

    def where(entry: Entry) -> bool:
        return not client.zrem(KEYS.retry, entry.raw) or entry.name == "job-3"

    assert RetrySet(store).reschedule_all(5e9, where) == 0
    assert client.keys("*") == []


@pytest.mark.parametrize("act", ["retry"])
def test_r36_an_entry_that_cannot_be_moved_does_not_hold_up_the_rest(act: str, store: Store, client: Client) -> None:
    fill(store, RetrySet)
    bad = [json.dumps({**job(n), "queue": "spoilt"}) for n in range(3)]
    client.zadd(KEYS.retry, dict.fromkeys(bad, 1.0))
    client.set(KEYS.queue("spoilt"), "text")
    try:
        ACTS[act](RetrySet(store))
    except redis.ResponseError:
        pass  # whether it says so is another matter
    assert set(client.zrange(KEYS.retry, 0, -1)) == set(bad)
    assert on_queue(client) == list(range(MANY))


@pytest.mark.parametrize("act", ["retry", "bury", "delete"])
def test_a_lock_of_a_wrong_type_keeps_no_entry_from_being_changed(act: str, store: Store, client: Client) -> None:
    jobs = fill(store, RetrySet, 20, unique="until_executed")
    for each in jobs[::2]:
        client.delete(LOCKS.held(each, "low")[0])
        client.rpush(LOCKS.held(each, "low")[0], "mine")
    assert ACTS[act](RetrySet(store)) == 20
    assert client.zcard(KEYS.retry) == 0


def test_a_lock_that_another_job_holds_by_now_is_left_to_it(store: Store, client: Client) -> None:
    (only,) = fill(store, RetrySet, 1, unique="until_executed")
    lock = LOCKS.held(only, "low")[0]
    client.set(lock, "another")
    assert RetrySet(store).bury_all() == 1
    assert client.get(lock) == "another"


# ---- entries that are no jobs ---------------------------------------------------------------------------

NO_JOBS: list[bytes] = [
    *(b"", b"\xff\xfe", b"nonsense", b"[]", b"5", b"null", b"{}", b'{"class":5}', b'{"class":"x","args":{}}'),
    *(b'{"class":"x","jid":""}', b'{"class":"x","jid":"\\ud800"}', b'{"class":"(unparseable)","args":[]}', b"[" * 5000),
]


@pytest.mark.parametrize("kind", SETS)
def test_entries_that_are_no_jobs_are_shown_deleted_and_buried_but_never_retried(
    kind: type[JobSet], store: Store, client: Client
) -> None:
    key = getattr(KEYS, kind.kind)
    store.client.zadd(key, {raw: float(n) for n, raw in enumerate(NO_JOBS)})
    fill(store, kind, 50)
    found = kind(store)
    odd = [entry for entry in found if not entry.is_job]
    assert {entry.raw for entry in odd} == set(NO_JOBS)
    assert {(entry.name, entry.queue) for entry in odd} == {("(unparseable)", "default")}
    assert len({entry.jid for entry in odd}) == len(NO_JOBS)
    for entry in odd:
        assert entry.shown["class"] == "(unparseable)"
        assert found.find(entry.jid) == entry
    asked: list[Entry] = []

    def where(entry: Entry) -> bool:
        asked.append(entry)
        return True

    assert found.retry_all(where) == 50
    assert all(entry.is_job for entry in asked), "a filter need not expect them"
    assert client.zcard(key) == len(NO_JOBS)
    if isinstance(found, ScheduledSet | RetrySet):
        assert found.reschedule_all(5e9) == len(NO_JOBS)
        assert found.bury_all() == len(NO_JOBS)
        found = DeadSet(store)
        assert {entry.raw for entry in found} == set(NO_JOBS)
    assert found.delete_all(lambda entry: not entry.is_job) == len(NO_JOBS)


@pytest.mark.parametrize(
    "args", [b"[NaN]", b"[1e999,-Infinity]", b'["\\ud800"]', b"[" * 95 + b"]" * 95, b"[12345678901234567890123]"]
)
def test_a_job_that_cannot_be_written_again_is_moved_with_its_arguments_untouched(args: bytes, store: Store) -> None:
    raw = b'{"class":"x","args":%s,"queue":"low","jid":"j1","odd":{"kept":[1]}} ' % args
    store.client.zadd(KEYS.dead, {raw: 1.0})
    assert DeadSet(store).retry_all() == 1
    (entry,) = Queue(store, "low")
    assert args in entry.raw
    assert (entry.jid, entry.name, entry.payload["odd"]) == ("j1", "x", {"kept": [1]})
    assert entry.payload["enqueued_at"] > 1e9


def test_a_page_of_no_entries_is_empty(store: Store) -> None:
    fill(store, DeadSet, 5)
    assert DeadSet(store).page(0, 0) == []


# ---- queues ---------------------------------------------------------------------------------------------


def test_the_latency_of_a_queue_is_the_time_that_its_oldest_job_has_waited(store: Store) -> None:
    queue = Queue(store, "low")
    assert queue.latency == 0.0
    now = time.time()
    for n, ago in enumerate((100.0, 50.0, 1.0)):
        store.client.lpush(LOW, json.dumps(job(n, enqueued_at=now - ago)))
    assert 100.0 <= queue.latency < 100.0 + 600
    store.client.rpop(LOW)
    assert 50.0 <= queue.latency < 100.0


@pytest.mark.parametrize(
    "value",
    [
        *("null", '"soon"', "[]", "{}", "NaN", "Infinity", "1e999", "4e9", '""'),
        *("1" + "0" * 400, "-1" + "0" * 400),
    ],
    ids=lambda text: text[:9],
)
def test_an_oldest_job_that_does_not_say_when_it_was_enqueued_has_waited_no_time(value: str, store: Store) -> None:
    store.client.lpush(LOW, b'{"class":"x","args":[],"enqueued_at":' + value.encode() + b"}")
    assert Queue(store, "low").latency == 0.0


@pytest.mark.parametrize("value", [b"-Infinity", b"-1e999"])
def test_a_latency_is_a_finite_number(value: bytes, store: Store) -> None:
    store.client.lpush(LOW, b'{"class":"x","args":[],"enqueued_at":' + value + b"}")
    json.dumps(Queue(store, "low").latency, allow_nan=False)


@pytest.mark.parametrize("raw", NO_JOBS[:-2])
def test_an_oldest_entry_that_is_no_job_has_waited_no_time(raw: bytes, store: Store) -> None:
    store.client.lpush(LOW, raw)
    assert Queue(store, "low").latency == 0.0


def test_a_queue_and_a_set_are_found_by_an_app_too(server: Server, client: Client) -> None:
    app = App(server.url, namespace="shop")
    app.push("x", [1], queue="low")
    app.push("y", [1], delay=500, queue="low")
    assert [entry.name for entry in Queue(app, "low")] == ["x"]
    assert [entry.name for entry in ScheduledSet(app)] == ["y"]
    assert ScheduledSet(app).retry_all() == 1
    assert len(Queue(app, "low")) == 2
    assert Queue(app, "low").latency < 600
    assert (Stats(app).processed, Stats(app).failed) == (0, 0)
    assert all(key.startswith("shop:") for key in client.keys("*"))
    app.client.close()


# ---- entries of the gem ---------------------------------------------------------------------------------

GEM = (
    '{"class":"Billing::ChargeJob","args":[1,"a b",true,null,{"k":[1.5]},"\\u003cb\\u003e \u00e9/\u00fc"],'
    '"queue":"low",'
    '"retry":true,"jid":"b4a577edbccf1d805744efa9","created_at":1700000000.1234567,"enqueued_at":1700000001.5,'
    '"unique":"until_executed","at":1700000000.0,"retry_count":3,"failed_at":1700000002.5,'
    '"error_class":"Net::OpenTimeout","error_message":"execution expired","periodic_slot":1700000000,'
    '"backtrace_id":{"x":[1e+16,1.0e-07]}}'
)


@pytest.mark.parametrize("kind", SETS)
def test_an_entry_of_the_gem_is_handled_like_ours(kind: type[JobSet], store: Store, client: Client) -> None:
    theirs = json.loads(GEM)
    key = getattr(KEYS, kind.kind)
    client.zadd(key, {GEM: 1_700_000_100.25})
    (lock,) = LOCKS.held(theirs, "low")
    client.set(lock, theirs["jid"])
    found = kind(store)
    (entry,) = found
    assert (entry.raw, entry.score, entry.payload) == (GEM.encode(), 1_700_000_100.25, theirs)
    assert (entry.name, entry.queue, entry.is_job, entry.shown) == ("Billing::ChargeJob", "low", True, theirs)
    assert found.find(theirs["jid"]) == entry
    assert found.retry_all(lambda entry: entry.payload["retry_count"] == 3) == 1
    (raw,) = client.lrange(LOW, 0, -1)
    ours = json.loads(raw)
    assert ours.pop("enqueued_at") > theirs.pop("enqueued_at")
    assert ours == theirs, "every field survives the move"
    assert client.get(lock) == theirs["jid"]
    (queued,) = Queue(store, "low")
    assert Queue(store, "low").delete(queued)
    assert not client.exists(lock)


@pytest.mark.parametrize("kind", WAITING)
def test_an_entry_of_the_gem_is_buried_and_rescheduled_byte_for_byte(
    kind: type[ScheduledSet] | type[RetrySet], store: Store, client: Client
) -> None:
    client.zadd(getattr(KEYS, kind.kind), {GEM: 5.0})
    (lock,) = LOCKS.held(json.loads(GEM), "low")
    client.set(lock, json.loads(GEM)["jid"])
    found = kind(store)
    assert found.reschedule_all(7e9) == 1
    assert client.zrange(getattr(KEYS, kind.kind), 0, -1, withscores=True) == [(GEM, 7e9)]
    assert found.bury_all() == 1
    assert client.zrange(KEYS.dead, 0, -1) == [GEM]
    assert not client.exists(lock)


def test_a_gem_job_without_the_optional_fields_goes_back_to_the_default_queue(store: Store, client: Client) -> None:
    client.zadd(KEYS.retry, {'{"class":"GreetingJob"}': 5.0})
    assert RetrySet(store).retry_all() == 1
    (raw,) = client.lrange(KEYS.queue("default"), 0, -1)
    pushed = json.loads(raw)
    assert (pushed["class"], pushed["queue"]) == ("GreetingJob", "default")
    assert client.smembers(KEYS.queues) == {"default"}
