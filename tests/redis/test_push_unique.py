"""Pushes of unique jobs against a real server: one lock and one job, or neither."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from cogworkerd import App
from cogworkerd.client import CHUNK_JOBS
from cogworkerd.errors import PushFailed, PushUnknown
from cogworkerd.job import Call, Job
from cogworkerd.payload import parse
from cogworkerd.store import scripts
from cogworkerd.unique import unique_digest
from tests.process.cases.test_c08_lost_replies import LosingProxy
from tests.redis.test_push import Proxy
from tests.support import Client, Server, eventually

QUEUE = "cogworker:queue:default"
SCHEDULE = "cogworker:schedule"
DAY = 86_400


class Shop:
    """An application with a unique job, and one that is not."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = App(url, **settings)

        @self.app.job(name="once", unique="until_executed")
        def once(n: int, text: str = "", *, loud: bool = False, low: bool = False) -> None: ...

        @self.app.job(name="many")
        def many(n: int) -> None: ...

        self.once: Job[..., None] = once
        self.many: Job[..., None] = many


@pytest.fixture
def shop(server: Server) -> Iterator[Shop]:
    found = Shop(server.url)
    yield found
    found.app.client.close()


@pytest.fixture(autouse=True)
def _every_lock_has_an_end(client: Client) -> Iterator[None]:
    yield
    endless = [key for key in client.scan_iter("cogworker:unique:*") if client.ttl(key) == -1]
    assert [key for key in endless if client.type(key) == "string"] == []


def lock_of(n: int, queue: str = "default", name: str = "once", **kwargs: Any) -> str:
    return f"cogworker:unique:{unique_digest({'class': name, 'args': [n], 'kwargs': kwargs}, queue)}"


def jids(client: Client, queue: str = "default") -> list[str]:
    """The ids of a queue's jobs, first in first."""
    return [json.loads(raw)["jid"] for raw in reversed(client.lrange(f"cogworker:queue:{queue}", 0, -1))]


def scheduled(client: Client) -> list[str]:
    return [json.loads(raw)["jid"] for raw in client.zrange(SCHEDULE, 0, -1)]


def locks(client: Client) -> list[str]:
    found: list[str] = client.keys("cogworker:unique:*")
    return found


def about(seconds: float, ttl: int) -> bool:
    return seconds - 5 <= ttl <= seconds


# ---- one job -----------------------------------------------------------------------------------------------


def test_a_second_job_of_the_same_arguments_is_not_pushed(shop: Shop, client: Client) -> None:
    first = shop.once.enqueue(1)
    assert first is not None
    assert shop.once.enqueue(1) is None
    assert jids(client) == [first]
    assert client.get(lock_of(1)) == first
    assert about(DAY, client.ttl(lock_of(1)))
    assert json.loads(client.lindex(QUEUE, 0))["unique"] == "until_executed"
    assert client.smembers("cogworker:queues") == {"default"}


def test_other_arguments_another_queue_and_a_lock_that_was_released_are_no_duplicates(
    shop: Shop, client: Client
) -> None:
    first = shop.once.enqueue(1)
    assert shop.once.enqueue(2)
    assert shop.once.enqueue(1, "x")
    assert shop.once.using(queue="other").enqueue(1)
    assert shop.app.push("another", [1], unique="until_executed")
    assert len(locks(client)) == 5
    client.delete(lock_of(1))
    assert shop.once.enqueue(1) not in (None, first)
    assert client.llen(QUEUE) == 5


def test_a_duplicate_changes_neither_the_lock_nor_its_end(shop: Shop, client: Client) -> None:
    first = shop.once.enqueue(1)
    client.expire(lock_of(1), 50)
    assert shop.once.enqueue(1) is None
    assert shop.once.enqueue_in(3600, 1) is None
    assert client.get(lock_of(1)) == first
    assert about(50, client.ttl(lock_of(1)))
    assert scheduled(client) == []


def test_keyword_arguments_count_whatever_their_order(shop: Shop, client: Client) -> None:
    first = shop.once.enqueue(1, loud=True, low=False)
    assert shop.once.enqueue(1, low=False, loud=True) is None
    assert shop.once.enqueue(1, loud=True) is not None
    assert shop.once.enqueue(1) is not None
    assert client.get(lock_of(1, loud=True, low=False)) == first
    assert client.llen(QUEUE) == 3


@pytest.mark.parametrize("ttl", [0.5, 90.25, 86_400])
@pytest.mark.parametrize("how", ["enqueue_in", "enqueue_at", "aenqueue_in", "aenqueue_at", "push"])
def test_r6_the_lock_of_a_job_with_a_due_time_lasts_for_the_wait_and_the_ttl(
    how: str, ttl: float, server: Server, client: Client
) -> None:
    shop = Shop(server.url, unique_lock_ttl=ttl)
    calls: dict[str, Callable[[], str | None]] = {
        "enqueue_in": lambda: shop.once.enqueue_in(3600.5, 1),
        "enqueue_at": lambda: shop.once.enqueue_at(time.time() + 3600.5, 1),
        "aenqueue_in": lambda: asyncio.run(_awaited(shop.once.aenqueue_in(3600.5, 1))),
        "aenqueue_at": lambda: asyncio.run(_awaited(shop.once.aenqueue_at(time.time() + 3600.5, 1))),
        "push": lambda: shop.app.push("once", [1], delay=3600.5),
    }
    jid = calls[how]()
    assert scheduled(client) == [jid]
    assert client.get(lock_of(1)) == jid
    left = client.pttl(lock_of(1)) / 1000
    assert 3595 + ttl < left <= math.ceil(3600.5 + ttl)
    assert calls[how]() is None
    assert shop.once.enqueue(1) is None
    assert scheduled(client) == [jid]
    assert not client.exists(QUEUE)
    shop.app.client.close()


async def _awaited(push: Awaitable[str | None]) -> str | None:
    return await push


@pytest.mark.parametrize(("ttl", "seconds"), [(0.2, 1), (90.25, 91)])
def test_r6_a_fractional_ttl_is_rounded_up(ttl: float, seconds: int, server: Server, client: Client) -> None:
    shop = Shop(server.url, unique_lock_ttl=ttl)
    assert shop.once.enqueue(1)
    assert 1000 * seconds - 900 < client.pttl(lock_of(1)) <= 1000 * seconds
    shop.app.client.close()


def test_r6_the_ttl_of_the_environment_counts_for_a_client(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COGWORKERD_UNIQUE_LOCK_TTL", "12.5")
    shop = Shop(server.url)
    assert shop.once.enqueue(1)
    assert about(13, client.ttl(lock_of(1)))
    shop.app.client.close()


def test_a_due_time_that_is_past_takes_nothing_off_the_lock(shop: Shop, client: Client) -> None:
    jid = shop.once.enqueue_at(1, 1)
    assert jids(client) == [jid]
    assert about(DAY, client.ttl(lock_of(1)))


def test_the_async_twins_know_duplicates_of_each_other_and_of_the_blocking_ones(shop: Shop, client: Client) -> None:
    async def push() -> list[str | None]:
        first = await shop.once.aenqueue(1)
        return [
            first,
            await shop.once.aenqueue(1),
            await shop.once.aenqueue_in(60, 1),
            await shop.app.apush("once", [1]),
            *await shop.once.aenqueue_many([(1,), (2,), (2,)]),
            *await shop.app.aenqueue_many([shop.once.call(2), shop.many.call(1)]),
        ]

    found = asyncio.run(push())
    assert [jid is not None for jid in found] == [True, *[False] * 4, True, *[False] * 2, True]
    assert jids(client) == [jid for jid in found if jid is not None]
    assert shop.once.enqueue(1) is None


def test_many_tasks_and_one_job_push_one(shop: Shop, client: Client) -> None:
    async def push() -> list[str | None]:
        return await asyncio.gather(*(shop.once.aenqueue(1) for _ in range(50)))

    found = [jid for jid in asyncio.run(push()) if jid is not None]
    assert jids(client) == found
    assert len(found) == 1


def test_a_namespace_is_in_the_lock_too(server: Server, client: Client) -> None:
    shop = Shop(server.url, namespace="shop")
    assert shop.once.enqueue(1)
    assert sorted(client.keys("*")) == sorted(f"shop:{key}" for key in (QUEUE, "cogworker:queues", lock_of(1)))
    shop.app.client.close()


# ---- options -----------------------------------------------------------------------------------------------


def test_without_unique_for_one_call_a_job_is_pushed_beside_the_unique_one_and_holds_nothing(
    shop: Shop, client: Client
) -> None:
    plain = shop.once.using(unique=None)
    assert plain.enqueue(2)
    assert locks(client) == []
    first = shop.once.enqueue(1)
    assert plain.enqueue(1) not in (None, first)
    assert "unique" not in json.loads(client.lindex(QUEUE, 0))
    assert client.get(lock_of(1)) == first
    assert shop.once.using(retry=1).enqueue(1) is None


def test_unique_may_be_chosen_for_a_call_and_for_a_push_by_name(shop: Shop, client: Client) -> None:
    assert shop.many.using(unique="until_executed").enqueue(1)
    assert shop.many.using(unique="until_executed").enqueue(1) is None
    assert shop.app.push("many", [1], unique="until_executed") is None
    assert shop.app.push("many", [1])
    assert shop.app.push("of another program", [1], unique="until_executed")
    assert shop.app.push("of another program", [1], unique="until_executed") is None
    assert shop.app.push("once", [1])
    assert shop.app.push("once", [1]) is None
    assert shop.app.push("once", [1], unique=None)
    assert len(locks(client)) == 3
    assert client.llen(QUEUE) == 5


UNKNOWN: list[Any] = ["until_executing", "", True, False, 1, ["until_executed"], {}]


@pytest.mark.parametrize("value", UNKNOWN, ids=repr)
def test_a_value_of_unique_that_is_not_known_is_refused_where_it_stands(value: Any, shop: Shop, client: Client) -> None:
    def work() -> None: ...

    for refused in (
        lambda: shop.app.job(name="odd", unique=value)(work),
        lambda: shop.once.using(unique=value),
        lambda: shop.app.push("once", [1], unique=value),
    ):
        with pytest.raises(ValueError, match=r"unique = .*allowed is 'until_executed', or None"):
            refused()
    assert "odd" not in shop.app.jobs
    assert client.keys("*") == []


def test_a_mode_that_client_middleware_made_up_is_pushed_without_a_lock(shop: Shop, client: Client) -> None:
    """As every program of the wire format treats a mode that it does not know."""

    @shop.app.client_middleware
    def changed(job: Any, call_next: Callable[[], None]) -> None:
        job.payload["unique"] = "of another program"
        call_next()

    assert shop.once.enqueue(1)
    assert shop.once.enqueue(1)
    assert locks(client) == []


def test_client_middleware_is_told_of_no_duplicate_and_the_lock_is_that_of_what_it_left(
    shop: Shop, client: Client
) -> None:
    @shop.app.client_middleware
    def moved(job: Any, call_next: Callable[[], None]) -> None:
        job.queue = "moved"
        call_next()

    first = shop.once.enqueue(1)
    assert client.get(lock_of(1, "moved")) == first
    assert shop.once.enqueue(1) is None
    assert shop.once.enqueue_many([(1,), (2,), (2,)])[0::2] == [None, None]
    assert len(jids(client, "moved")) == 2
    assert asyncio.run(shop.once.aenqueue(2)) is None


# ---- many --------------------------------------------------------------------------------------------------


def enqueue_many(how: str, app: App, calls: list[Call]) -> list[str | None]:
    """In one of two ways: "blocking" or "async"."""
    return asyncio.run(app.aenqueue_many(calls)) if how == "async" else app.enqueue_many(calls)


def test_many_jobs_tell_in_order_which_were_duplicates_of_each_other_or_of_earlier_ones(
    shop: Shop, client: Client
) -> None:
    earlier = shop.once.enqueue(0)
    found = shop.once.enqueue_many([(0,), (1,), (2,), (1,), (0,), (3,)])
    assert [jid is not None for jid in found] == [False, True, True, False, False, True]
    assert jids(client) == [earlier, *(jid for jid in found if jid is not None)]
    assert client.get(lock_of(2)) == found[2]


def test_unique_and_other_jobs_of_several_queues_go_together(shop: Shop, client: Client) -> None:
    elsewhere = shop.once.using(queue="other")
    calls = [
        shop.many.call(1),
        shop.once.call(1),
        elsewhere.call(1),
        shop.many.call(1),
        shop.once.call(1, loud=True),
        shop.once.call(1),
        elsewhere.call(1),
        shop.many.using(queue="third").call(1),
        shop.once.using(unique=None).call(1),
    ]
    found = shop.app.enqueue_many(calls)
    assert [index for index, jid in enumerate(found) if jid is None] == [5, 6]
    assert sorted(jids(client)) == sorted(str(found[index]) for index in (0, 1, 3, 4, 8))
    assert jids(client, "other") == [found[2]]
    assert jids(client, "third") == [found[7]]
    assert client.smembers("cogworker:queues") == {"default", "other", "third"}
    assert len(locks(client)) == 3


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_duplicates_are_told_in_order_over_several_chunks(how: str, shop: Shop, client: Client) -> None:
    """Every third job is not unique; each unique one comes twice, the second time in another chunk."""
    count = CHUNK_JOBS + CHUNK_JOBS // 2
    numbers = [*range(count), *range(count)]
    calls = [(shop.many if n % 3 == 0 else shop.once).call(n) for n in numbers]
    found = enqueue_many(how, shop.app, calls)
    assert len(found) == 2 * count
    assert [jid is None for jid in found] == [index >= count and n % 3 != 0 for index, n in enumerate(numbers)]
    wanted = {jid: n for jid, n in zip(found, numbers, strict=True) if jid is not None}
    stored = [parse(raw.encode()) for raw in client.lrange(QUEUE, 0, -1)]
    assert {job["jid"]: job["args"][0] for job in stored} == wanted
    assert len(stored) == len(wanted)
    assert len(locks(client)) == sum(1 for n in range(count) if n % 3)


# ---- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [False, True])
def test_a_key_of_the_wrong_type_is_an_error_and_leaves_no_lock(later: bool, shop: Shop, client: Client) -> None:
    client.set(SCHEDULE if later else QUEUE, "another type")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        shop.once.enqueue_in(60 if later else 0, 1)
    assert locks(client) == []
    client.delete(QUEUE, SCHEDULE)
    assert shop.once.enqueue(1) is not None


@pytest.mark.parametrize("later", [False, True])
def test_a_key_of_the_wrong_type_takes_no_lock_of_somebody_else_away(later: bool, shop: Shop, client: Client) -> None:
    client.set(SCHEDULE if later else QUEUE, "another type")
    client.set(lock_of(1), "another", ex=50)
    assert shop.once.enqueue_in(60 if later else 0, 1) is None
    assert client.get(lock_of(1)) == "another"


def test_a_lock_of_another_type_counts_as_held_and_stays_as_it_is(shop: Shop, client: Client) -> None:
    client.rpush(lock_of(1), "x")
    assert shop.once.enqueue(1) is None
    assert client.lrange(lock_of(1), 0, -1) == ["x"]
    assert jids(client) == []


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_a_duplicate_is_not_among_those_that_were_pushed_before_a_failure(how: str, shop: Shop, client: Client) -> None:
    client.set("cogworker:queue:odd", "no list")
    earlier = shop.once.enqueue(1)
    calls = [
        shop.once.call(1),
        shop.once.call(2),
        shop.once.using(queue="odd").call(3),
        shop.once.call(2),
        shop.many.call(4),
        shop.once.call(5),
    ]
    with pytest.raises(PushFailed, match="WRONGTYPE") as failed:
        enqueue_many(how, shop.app, calls)
    assert len(failed.value.pushed) == 3
    assert {earlier, *failed.value.pushed} == set(jids(client))
    assert sorted(locks(client)) == sorted([lock_of(1), lock_of(2), lock_of(5)])


def test_a_duplicate_of_an_earlier_chunk_is_not_among_those_that_were_pushed_either(shop: Shop, client: Client) -> None:
    client.set("cogworker:queue:odd", "no list")
    calls = [shop.once.call(n % 10) for n in range(CHUNK_JOBS)] + [shop.once.using(queue="odd").call(1)]
    with pytest.raises(PushFailed) as failed:
        shop.app.enqueue_many(calls)
    assert failed.value.pushed == jids(client)
    assert len(failed.value.pushed) == 10


def test_r65_a_server_that_has_lost_its_scripts_takes_unique_jobs_all_the_same(shop: Shop, client: Client) -> None:
    assert shop.once.enqueue(1)
    client.script_flush()
    assert shop.once.enqueue(2)
    client.script_flush()
    assert [jid is not None for jid in shop.once.enqueue_many([(2,), (3,), (4,)])] == [False, True, True]
    client.script_flush()
    assert asyncio.run(shop.once.aenqueue(4)) is None


def test_r1_a_unique_push_asks_the_server_once_and_the_script_travels_once_a_packet(shop: Shop, client: Client) -> None:
    """R1: one command for each job, none of them in preparation."""
    shop.many.enqueue(0)
    client.config_resetstat()
    shop.once.enqueue_many([(1,), (2,), (3,)])
    stats = client.info("commandstats")
    counted = {name: stats[f"cmdstat_{name}"]["calls"] for name in ("eval", "evalsha", "sadd", "lpush", "set")}
    assert counted == {"eval": 1, "evalsha": 2, "sadd": 1, "lpush": 3, "set": 3}
    assert "cmdstat_script|load" not in stats


# ---- answers that get lost ---------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    found = Proxy(server.port)
    yield found
    found.close()


def test_r4_an_answer_that_never_came_names_the_job_which_has_its_lock(proxy: Proxy, client: Client) -> None:
    shop = Shop(f"redis://127.0.0.1:{proxy.port}/0")
    shop.many.enqueue(0)
    proxy.swallow_after(0)
    with pytest.raises(PushUnknown) as unknown:
        shop.once.enqueue(1)
    (jid,) = unknown.value.jids
    eventually(lambda: jid in jids(client))
    assert client.get(lock_of(1)) == jid
    proxy.replies_wanted = None
    assert shop.once.enqueue(1) is None  # pushing again is no second copy
    assert len(jids(client)) == 2
    shop.app.client.close()


def test_r2_a_lost_answer_to_the_listing_alone_is_no_error(proxy: Proxy, client: Client) -> None:
    shop = Shop(f"redis://127.0.0.1:{proxy.port}/0")
    shop.many.enqueue(0)
    proxy.swallow_after(2)
    found = shop.once.enqueue_many([(1,), (1,)])
    assert found[1] is None
    assert jids(client)[1:] == [found[0]]
    shop.app.client.close()


@pytest.mark.parametrize("closes", [False, True], ids=["silent", "closed"])
@pytest.mark.parametrize("way", ["enqueue", "enqueue_in", "enqueue_many", "aenqueue"])
@pytest.mark.timeout(30)
def test_c08_a_unique_push_without_an_answer_leaves_lock_and_job_or_neither(
    way: str, closes: bool, server: Server, client: Client
) -> None:
    """R4, and no lock without a job."""
    proxy = LosingProxy(server.port)
    proxy.closes = closes
    shop = Shop(f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1")
    calls: dict[str, Callable[[int], str | list[str | None] | None]] = {
        "enqueue": lambda n: shop.once.enqueue(n),
        "enqueue_in": lambda n: shop.once.enqueue_in(3600, n),
        "enqueue_many": lambda n: shop.once.enqueue_many([(n,), (n + 10,), (n,)]),
        "aenqueue": lambda n: asyncio.run(shop.once.aenqueue(n)),
    }
    try:
        for turn in (1, 2):  # both replies that get lost
            with pytest.raises(PushUnknown) as unknown:
                calls[way](turn)
            assert proxy.pushes == turn
            stored = [*jids(client), *scheduled(client)]
            assert len(stored) == len(set(stored)) == len(locks(client))
            assert set(unknown.value.jids) & set(stored)
            assert sorted(client.mget(locks(client))) == sorted(stored)
        again = calls[way](1)
        assert again is None or again == [None] * 3
        accepted = calls[way](3)
        assert accepted
        stored = [*jids(client), *scheduled(client)]
        told = accepted if isinstance(accepted, list) else [accepted]
        assert {jid for jid in told if jid is not None} <= set(stored)
        assert len(stored) == len(set(stored))
        assert sorted(client.mget(locks(client))) == sorted(stored)
    finally:
        shop.app.client.close()
        proxy.close()


# ---- the script --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("due", [None, 1.5])
def test_the_script_pushes_once_however_often_it_is_run(due: float | None, shop: Shop, client: Client) -> None:
    held = shop.app.locks.waiting({"jid": "j1", "class": "once", "args": [1], "unique": "until_executed"}, "default")
    call = scripts.push_unique(shop.app.client.keys, held, "default", b"a job", due)
    run = client.register_script(call.script.text)
    assert [run(keys=call.keys, args=call.args) for _ in range(3)] == [1, 0, 0]
    if due is None:
        assert client.lrange(QUEUE, 0, -1) == ["a job"]
    else:
        assert client.zrange(SCHEDULE, 0, -1, withscores=True) == [("a job", due)]
    assert client.get(lock_of(1)) == "j1"
