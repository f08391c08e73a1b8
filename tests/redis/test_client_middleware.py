"""Client middleware against a real server: what it may change, what it may stop, and how it stands to async callers."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from cogworkerd import App, PendingJob
from cogworkerd.job import Job
from cogworkerd.unique import unique_digest
from tests.support import Client, Server

CallNext = Callable[[], None]
QUEUE = "cogworker:queue:default"
SCHEDULE = "cogworker:schedule"
shade: contextvars.ContextVar[str] = contextvars.ContextVar("shade", default="none")


class Shop:
    """An application whose client goes to one server."""

    def __init__(self, url: str) -> None:
        self.app = App(url, max_payload=2000)

        @self.app.job(name="add")
        def add(n: int, text: str = "") -> None: ...

        @self.app.job(name="once", unique="until_executed")
        def once(n: int) -> None: ...

        self.add: Job[..., None] = add
        self.once: Job[..., None] = once
        self.seen: list[Any] = []

    def changes(self, change: Callable[[PendingJob], object]) -> None:
        """Middleware that changes every job."""

        @self.app.client_middleware
        def changing(job: PendingJob, call_next: CallNext) -> None:
            change(job)
            call_next()

    def stops(self, *numbers: int) -> None:
        """Middleware that lets no job with these arguments pass."""

        @self.app.client_middleware
        def stopping(job: PendingJob, call_next: CallNext) -> None:
            self.seen.append(job.payload["args"][0])
            if job.payload["args"][0] not in numbers:
                call_next()


@pytest.fixture
def shop(server: Server) -> Iterator[Shop]:
    found = Shop(server.url)
    yield found
    found.app.client.close()


def jobs(client: Client, key: str = QUEUE) -> list[dict[str, Any]]:
    """The jobs of a queue, first in first."""
    return [json.loads(raw) for raw in reversed(client.lrange(key, 0, -1))]


def scheduled(client: Client) -> list[tuple[dict[str, Any], float]]:
    return [(json.loads(raw), score) for raw, score in client.zrange(SCHEDULE, 0, -1, withscores=True)]


def nothing_there(client: Client) -> bool:
    return not client.keys("*")


WAYS: dict[str, Callable[[Shop], Any]] = {
    "enqueue": lambda shop: shop.add.enqueue(1),
    "enqueue_in": lambda shop: shop.add.enqueue_in(60, 1),
    "enqueue_at": lambda shop: shop.add.enqueue_at(time.time() + 60, 1),
    "enqueue_many": lambda shop: shop.add.enqueue_many([(1,)])[0],
    "push": lambda shop: shop.app.push("add", [1]),
    "push of another program's": lambda shop: shop.app.push("GreetingJob", [1]),
    "app.enqueue_many": lambda shop: shop.app.enqueue_many([shop.add.call(1)])[0],
    "aenqueue": lambda shop: asyncio.run(shop.add.aenqueue(1)),
    "aenqueue_in": lambda shop: asyncio.run(shop.add.aenqueue_in(60, 1)),
    "aenqueue_at": lambda shop: asyncio.run(shop.add.aenqueue_at(time.time() + 60, 1)),
    "aenqueue_many": lambda shop: asyncio.run(shop.add.aenqueue_many([(1,)]))[0],
    "apush": lambda shop: asyncio.run(shop.app.apush("add", [1])),
    "app.aenqueue_many": lambda shop: asyncio.run(shop.app.aenqueue_many([shop.add.call(1)]))[0],
}
every_way = pytest.mark.parametrize("way", WAYS)


# ---- passing and stopping -------------------------------------------------------------------------------


@every_way
def test_each_way_to_enqueue_goes_through_the_chain(way: str, shop: Shop, client: Client) -> None:
    @shop.app.client_middleware
    def outer(job: PendingJob, call_next: Any) -> str:
        shop.seen.append((job.name, job.jid, job.queue, job.payload["args"], job.due is not None))
        shop.seen.append(call_next())
        return "not looked at"

    @shop.app.client_middleware
    def inner(job: PendingJob, call_next: CallNext) -> None:
        job.payload["meta"] = {"by": "inner"}
        call_next()

    jid = WAYS[way](shop)
    late = way.removeprefix("a") in ("enqueue_in", "enqueue_at")
    name = "GreetingJob" if "another" in way else "add"
    assert shop.seen == [(name, jid, "default", [1], late), None]
    (job,) = [job for job, _ in scheduled(client)] if late else jobs(client)
    assert (job["jid"], job["meta"]) == (jid, {"by": "inner"})


@every_way
def test_without_call_next_nothing_is_pushed_and_the_caller_gets_none(way: str, shop: Shop, client: Client) -> None:
    shop.stops(1)
    assert WAYS[way](shop) is None
    assert shop.seen == [1]
    assert nothing_there(client)


@every_way
def test_an_error_of_the_middleware_is_the_callers_and_nothing_is_pushed(way: str, shop: Shop, client: Client) -> None:
    @shop.app.client_middleware
    def forbids(job: PendingJob, call_next: CallNext) -> None:
        raise PermissionError(job.name)

    with pytest.raises(PermissionError):
        WAYS[way](shop)
    assert nothing_there(client)


def test_the_first_one_registered_is_the_outermost(shop: Shop, client: Client) -> None:
    def stands(name: str) -> None:
        @shop.app.client_middleware
        def middleware(job: PendingJob, call_next: CallNext) -> None:
            shop.seen.append(f"{name} in")
            call_next()
            shop.seen.append(f"{name} out, {client.llen(QUEUE)} pushed")

    stands("first")
    stands("second")
    shop.add.enqueue(1)
    assert shop.seen == ["first in", "second in", "second out, 1 pushed", "first out, 1 pushed"]


def test_call_next_pushes_once_only(shop: Shop, client: Client) -> None:
    @shop.app.client_middleware
    def eager(job: PendingJob, call_next: CallNext) -> None:
        call_next()
        call_next()

    with pytest.raises(RuntimeError, match=r"client_middleware .*eager.* call_next\(\) a second time"):
        shop.add.enqueue(1)
    assert client.llen(QUEUE) == 1


def test_call_next_raises_what_the_push_raises_and_who_handles_it_makes_it_none(shop: Shop, client: Client) -> None:
    @shop.app.client_middleware
    def calm(job: PendingJob, call_next: CallNext) -> None:
        try:
            call_next()
        except redis.ResponseError as error:
            shop.seen.append(str(error))

    client.set(QUEUE, "no list")
    assert shop.add.enqueue(1) is None
    assert len(shop.seen) == 1
    assert "WRONGTYPE" in shop.seen[0]


# ---- many -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async"])
def test_many_jobs_go_through_the_chain_one_by_one_and_those_that_pass_are_pushed_together(
    how: str, shop: Shop, client: Client
) -> None:
    shop.stops(0, 2, 5)

    @shop.app.client_middleware
    def looks(job: PendingJob, call_next: CallNext) -> None:
        call_next()
        shop.seen.append(client.llen(QUEUE))

    calls = [(n,) for n in range(6)]
    many = shop.add.enqueue_many
    jids = many(calls) if how == "sync" else asyncio.run(shop.add.aenqueue_many(calls))
    assert shop.seen == [0, 1, 0, 2, 3, 0, 4, 0, 5]  # what it saw of the queue is always 0
    assert [jid is None for jid in jids] == [True, False, True, False, False, True]
    assert [(job["args"], job["jid"]) for job in jobs(client)] == [([n], jids[n]) for n in (1, 3, 4)]


def test_of_many_jobs_the_duplicates_and_the_stopped_ones_are_none_each_in_its_place(
    shop: Shop, client: Client
) -> None:
    shop.stops(2)
    jids = shop.app.enqueue_many([job.call(n) for n, job in ((1, shop.once), (2, shop.once), (1, shop.once))] * 2)
    assert [jid is None for jid in jids] == [False, True, True, True, True, True]
    assert [job["jid"] for job in jobs(client)] == [jids[0]]
    assert shop.add.enqueue_many([(2,), (2,)]) == [None, None]
    assert shop.add.enqueue_many([]) == []


@pytest.mark.parametrize("fault", ["raises", "twice", "bad change"])
def test_of_many_jobs_none_is_sent_if_the_chain_fails_for_one(fault: str, shop: Shop, client: Client) -> None:
    @shop.app.client_middleware
    def fails(job: PendingJob, call_next: CallNext) -> None:
        if job.payload["args"] == [2]:
            if fault == "raises":
                raise RuntimeError("no")
            if fault == "bad change":
                job.queue = "two words"
            else:
                call_next()
        call_next()

    with pytest.raises((RuntimeError, ValueError)):
        shop.add.enqueue_many([(n,) for n in range(4)])
    assert nothing_there(client)


# ---- changes --------------------------------------------------------------------------------------------


def test_another_queue(shop: Shop, client: Client) -> None:
    shop.changes(lambda job: setattr(job, "queue", "mail"))
    shop.add.enqueue(1)
    assert [job["queue"] for job in jobs(client, "cogworker:queue:mail")] == ["mail"]
    assert client.smembers("cogworker:queues") == {"mail"}
    assert not client.exists(QUEUE)


def test_other_arguments_and_fields(shop: Shop, client: Client) -> None:
    def change(job: PendingJob) -> None:
        job.payload = {**job.payload, "args": [1, ("a", "b")], "trace": {"id": "t1"}, "retry": 2}

    shop.changes(change)
    jid = shop.add.enqueue(1)
    (job,) = jobs(client)
    assert (job["jid"], job["args"], job["trace"], job["retry"]) == (jid, [1, ["a", "b"]], {"id": "t1"}, 2)


def test_another_id_is_the_one_that_the_caller_gets(shop: Shop, client: Client) -> None:
    shop.changes(lambda job: job.payload.update(jid=f"mine-{job.payload['args'][0]}"))
    assert shop.add.enqueue(1) == "mine-1"
    assert shop.add.enqueue_many([(2,), (3,)]) == ["mine-2", "mine-3"]
    assert [job["jid"] for job in jobs(client)] == ["mine-1", "mine-2", "mine-3"]


def test_the_lock_of_a_unique_job_is_that_of_the_changed_job(shop: Shop, client: Client) -> None:
    shop.changes(lambda job: job.payload.update(args=[7], jid=f"mine-{job.payload['args'][0]}"))
    assert [shop.once.enqueue(1), shop.once.enqueue(2)] == ["mine-1", None]
    (lock,) = client.keys("cogworker:unique:*")
    assert lock == f"cogworker:unique:{unique_digest({'class': 'once', 'args': [7]}, 'default')}"
    assert client.get(lock) == "mine-1"


def test_middleware_may_make_a_job_unique(shop: Shop, client: Client) -> None:
    shop.changes(lambda job: job.payload.update(unique="until_executed"))
    assert shop.add.enqueue(1) is not None
    assert shop.add.enqueue(1) is None
    assert client.llen(QUEUE) == 1


def test_another_due_time_of_a_scheduled_job(shop: Shop, client: Client) -> None:
    due = time.time() + 1000
    shop.changes(lambda job: setattr(job, "due", due))
    shop.add.enqueue_in(60, 1)
    ((_, score),) = scheduled(client)
    assert score == due


def test_r3_a_changed_due_time_is_also_the_one_in_the_job(shop: Shop, client: Client) -> None:
    due = time.time() + 1000
    shop.changes(lambda job: setattr(job, "due", due))
    shop.add.enqueue_in(60, 1)
    ((job, _),) = scheduled(client)
    assert job["at"] == due


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_job_that_gets_a_due_time_goes_to_schedule(many: bool, shop: Shop, client: Client) -> None:
    due = time.time() + 1000
    shop.changes(lambda job: setattr(job, "due", due))
    jids = shop.add.enqueue_many([(1,)]) if many else [shop.add.enqueue(1)]
    assert [(job["jid"], score) for job, score in scheduled(client)] == [(jids[0], due)]
    assert not client.exists(QUEUE)


def test_r3_a_job_that_gets_a_due_time_has_no_enqueued_at(shop: Shop, client: Client) -> None:
    due = time.time() + 1000
    shop.changes(lambda job: setattr(job, "due", due))
    shop.add.enqueue(1)
    ((job, _),) = scheduled(client)
    assert (job.get("at"), "enqueued_at" in job) == (due, False)


def test_a_job_whose_due_time_is_taken_away_goes_to_its_queue(shop: Shop, client: Client) -> None:
    shop.changes(lambda job: setattr(job, "due", None))
    jid = shop.add.enqueue_in(60, 1)
    assert [job["jid"] for job in jobs(client)] == [jid]
    assert not client.exists(SCHEDULE)


def test_r3_a_job_whose_due_time_is_taken_away_has_enqueued_at(shop: Shop, client: Client) -> None:
    shop.changes(lambda job: setattr(job, "due", None))
    shop.add.enqueue_in(60, 1)
    (job,) = jobs(client)
    assert "at" not in job
    assert job["enqueued_at"] == pytest.approx(time.time(), abs=30)


def _set(**fields: Any) -> Callable[[PendingJob], None]:
    return lambda job: job.payload.update(fields)


def _drop(field: str) -> Callable[[PendingJob], None]:
    return lambda job: job.payload.pop(field)


def _due(due: Any) -> Callable[[PendingJob], None]:
    return lambda job: setattr(job, "due", due)


def _whole(payload: Any) -> Callable[[PendingJob], None]:
    return lambda job: setattr(job, "payload", payload)


BAD_CHANGES: list[Any] = [
    pytest.param(_set(**{"class": ""}), "\"class\" = ''", id="class empty"),
    pytest.param(_set(**{"class": 5}), '"class" = 5', id="class a number"),
    pytest.param(_drop("class"), '"class" = None', id="no class"),
    pytest.param(_set(args={"a": 1}), '"args"', id="args a dict"),
    pytest.param(_set(args="text"), '"args"', id="args a text"),
    pytest.param(_drop("args"), '"args"', id="no args"),
    pytest.param(_set(kwargs=[1]), '"kwargs"', id="kwargs a list"),
    pytest.param(_set(args=[{1, 2}]), "payload.*args.*0.*set is not JSON", id="args not JSON"),
    pytest.param(_set(meta={"at": object()}), "payload.*meta.*at.*object is not JSON", id="meta not JSON"),
    pytest.param(_set(meta={1: 2}), "payload.*meta.*key must be a str", id="meta with a number as key"),
    pytest.param(_set(extra=math.nan), "payload.*extra.*nan is not JSON", id="not a number"),
    pytest.param(_set(extra="\ud800"), "payload.*extra.*surrogate", id="lone surrogate"),
    pytest.param(_set(jid=""), "\"jid\" = ''", id="jid empty"),
    pytest.param(_set(jid="x" * 129), '"jid" = .*128', id="jid too long"),
    pytest.param(_set(jid=7), '"jid" = 7', id="jid a number"),
    pytest.param(_drop("jid"), '"jid" = None', id="no jid"),
    pytest.param(_set(queue="two words"), "\"queue\" = 'two words'", id="queue of two words"),
    pytest.param(_set(queue=""), "\"queue\" = ''", id="queue empty"),
    pytest.param(_set(queue=None), '"queue" = None', id="queue none"),
    pytest.param(_drop("queue"), '"queue" = None', id="no queue"),
    pytest.param(lambda job: setattr(job, "queue", 5), '"queue" = 5', id="queue a number"),
    pytest.param(_set(text="x" * 3000), "more than max_payload = 2000", id="too large"),
    pytest.param(_due("soon"), "due = 'soon'", id="due a text"),
    pytest.param(_due(True), "due = True", id="due true"),
    pytest.param(_due(math.nan), "due = nan", id="due not a number"),
    pytest.param(_due(math.inf), "due = inf", id="due never"),
    pytest.param(_due(10**400), "due = 1000", id="due too large"),
    pytest.param(_whole(None), "payload", id="payload none"),
    pytest.param(_whole([1]), "payload", id="payload a list"),
]


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize(("change", "told"), BAD_CHANGES)
def test_a_change_that_leaves_no_job_is_an_error_that_says_what_is_wrong_and_nothing_is_pushed(
    change: Callable[[PendingJob], None], told: str, many: bool, shop: Shop, client: Client
) -> None:
    shop.changes(change)
    with pytest.raises((TypeError, ValueError), match=told):
        shop.add.enqueue_many([(1,)]) if many else shop.add.enqueue(1)
    assert nothing_there(client)


# ---- async callers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["aenqueue", "aenqueue_in", "aenqueue_at", "aenqueue_many", "apush"])
def test_for_an_async_caller_the_chain_runs_in_a_thread_with_the_callers_context(
    way: str, shop: Shop, client: Client
) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "aenqueue": lambda: shop.add.aenqueue(1),
        "aenqueue_in": lambda: shop.add.aenqueue_in(60, 1),
        "aenqueue_at": lambda: shop.add.aenqueue_at(time.time() + 60, 1),
        "aenqueue_many": lambda: shop.add.aenqueue_many([(1,)]),
        "apush": lambda: shop.app.apush("add", [1]),
    }

    async def call() -> None:
        loop, here = asyncio.get_running_loop(), threading.get_ident()

        @shop.app.client_middleware
        def asks(job: PendingJob, call_next: CallNext) -> None:
            # Only a loop that goes on meanwhile can answer.
            answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "went on"), loop).result(10)
            shop.seen.append((answer, threading.get_ident() != here, shade.get()))
            shade.set("red")
            call_next()

        shade.set("blue")
        await ways[way]()
        shop.seen.append(shade.get())

    asyncio.run(call())
    assert shop.seen == [("went on", True, "blue"), "blue"]
    assert client.llen(QUEUE) + client.zcard(SCHEDULE) == 1


def test_a_plain_caller_runs_the_chain_in_its_own_thread_and_context(shop: Shop) -> None:
    shop.changes(lambda job: shop.seen.append((threading.get_ident(), shade.get())))

    def call() -> None:
        shade.set("blue")
        shop.add.enqueue(1)

    contextvars.copy_context().run(call)
    assert shop.seen == [(threading.get_ident(), "blue")]


def test_without_client_middleware_no_thread_is_used(
    shop: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.app.server_middleware(lambda job, call_next: call_next())

    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"a thread was started: {thread}")

    async def call() -> None:
        await shop.add.aenqueue(1)
        await shop.add.aenqueue_in(60, 2)
        await shop.add.aenqueue_many([(3,)])
        await shop.app.apush("add", [4])
        await shop.app.aenqueue_many([shop.add.call(5)])

    monkeypatch.setattr(threading.Thread, "start", refuse)
    asyncio.run(call())
    assert client.llen(QUEUE) + client.zcard(SCHEDULE) == 5
    shop.stops()
    with pytest.raises(AssertionError, match="a thread was started"):
        asyncio.run(shop.add.aenqueue(6))  # so a thread would have been seen
