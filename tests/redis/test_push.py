"""The client against a real server: what a push writes, and what a caller learns when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from cogworkerd import App
from cogworkerd.errors import PushFailed, PushUnknown
from cogworkerd.job import Job
from tests.support import Server, eventually

QUEUE = "cogworker:queue:default"


class Shop:
    """An application whose client goes to one server."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = App(url, **settings)

        @self.app.job(name="add")
        def add(n: int, text: str = "", *, loud: bool = False) -> None: ...

        @self.app.job(name="mail", queue="mail", tags=["a"], retry=2)
        def mail(n: int) -> None: ...

        self.add: Job[..., None] = add
        self.mail: Job[..., None] = mail


@pytest.fixture
def shop(server: Server) -> Iterator[Shop]:
    found = Shop(server.url)
    yield found
    found.app.client.close()


def jobs(client: redis.Redis, key: str = QUEUE) -> list[dict[str, Any]]:
    """The jobs of a queue, first in first."""
    return [json.loads(raw) for raw in reversed(client.lrange(key, 0, -1))]


def calls(client: redis.Redis) -> dict[str, int]:
    """How often the server was asked for what, since the last reset."""
    return {
        name.removeprefix("cmdstat_"): int(stats["calls"])
        for name, stats in client.info("commandstats").items()
        if name not in ("cmdstat_info", "cmdstat_config|resetstat")
    }


# ---- what is written ------------------------------------------------------------------------------------


def test_a_push_is_one_command_and_the_listing_follows_it(shop: Shop, client: redis.Redis) -> None:
    """R1, R3."""
    shop.add.enqueue(0)
    client.config_resetstat()
    before = time.time()
    jid = shop.add.enqueue(1, "é", loud=True)
    assert {name: count for name, count in calls(client).items() if name in ("lpush", "sadd")} == {
        "lpush": 1,
        "sadd": 1,
    }
    assert set(calls(client)) <= {"lpush", "sadd"}
    job = jobs(client)[1]
    assert before <= job.pop("created_at") <= job.pop("enqueued_at") <= time.time()
    assert job == {
        "class": "add",
        "args": [1, "é"],
        "kwargs": {"loud": True},
        "queue": "default",
        "jid": jid,
        "retry": True,
    }
    assert client.smembers("cogworker:queues") == {"default"}


def test_options_of_the_job_travel_with_it(shop: Shop, client: redis.Redis) -> None:
    shop.mail.enqueue(1)
    shop.mail.using(queue="other", retry=False, meta={"k": 1}).enqueue(2)
    first, second = jobs(client, "cogworker:queue:mail")[0], jobs(client, "cogworker:queue:other")[0]
    assert (first["retry"], first["tags"], "meta" in first) == (2, ["a"], False)
    assert (second["retry"], second["tags"], second["meta"]) == (False, ["a"], {"k": 1})
    assert client.smembers("cogworker:queues") == {"mail", "other"}


@pytest.mark.parametrize("how", ["seconds", "timedelta", "datetime", "epoch"])
def test_a_job_with_a_due_time_goes_to_schedule_without_enqueued_at(how: str, shop: Shop, client: redis.Redis) -> None:
    """R3."""
    due = time.time() + 60
    if how == "seconds":
        shop.add.enqueue_in(60, 1)
    elif how == "timedelta":
        shop.add.enqueue_in(timedelta(minutes=1), 1)
    elif how == "datetime":
        shop.add.enqueue_at(datetime.fromtimestamp(due, UTC), 1)
    else:
        shop.add.enqueue_at(due, 1)
    found: Any = client.zrange("cogworker:schedule", 0, -1, withscores=True)
    [(raw, score)] = found
    job = json.loads(raw)
    assert abs(score - due) < 5
    assert job["at"] == score
    assert "enqueued_at" not in job
    assert client.keys("*") == ["cogworker:schedule"]


def test_a_due_time_that_is_past_means_now(shop: Shop, client: redis.Redis) -> None:
    shop.add.enqueue_at(1, 1)
    shop.add.enqueue_in(-5, 2)
    assert [("at" in job, "enqueued_at" in job) for job in jobs(client)] == [(False, True)] * 2


def test_a_namespace_is_in_every_key(server: Server, client: redis.Redis) -> None:
    shop = Shop(server.url, namespace="shop")
    shop.add.enqueue(1)
    shop.add.enqueue_in(60, 1)
    assert sorted(client.keys("*")) == [
        *("shop:cogworker:queue:default", "shop:cogworker:queues", "shop:cogworker:schedule")
    ]
    shop.app.client.close()


def test_a_queue_list_of_the_wrong_type_is_a_warning_that_names_the_queue(
    shop: Shop, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """R2."""
    client.set("cogworker:queues", "no set")
    with caplog.at_level(logging.WARNING, "cogworkerd"):
        assert shop.mail.enqueue(1)
    assert client.llen("cogworker:queue:mail") == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "mail" in caplog.text
    assert "WRONGTYPE" in caplog.text


def test_a_queue_list_of_the_wrong_type_is_a_warning_from_a_loop_too(
    shop: Shop, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """R2."""
    client.set("cogworker:queues", "no set")
    asyncio.run(shop.mail.aenqueue(1))
    assert client.llen("cogworker:queue:mail") == 1
    assert "mail" in caplog.text


def test_a_queue_that_cannot_be_written_is_an_error_and_the_connection_goes_on(shop: Shop, client: redis.Redis) -> None:
    client.set("cogworker:queue:mail", "no list")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        shop.mail.enqueue(1)
    assert shop.add.enqueue(2) == jobs(client)[0]["jid"]


def test_a_job_above_max_payload_is_refused_and_nothing_is_sent(server: Server, client: redis.Redis) -> None:
    shop = Shop(server.url, max_payload="1K")
    with pytest.raises(ValueError, match="max_payload = 1024"):
        shop.add.enqueue(1, "x" * 1024)
    with pytest.raises(ValueError, match="max_payload = 1024"):
        shop.add.enqueue_many([(1,), (2, "x" * 1024)])
    assert client.keys("*") == []
    assert shop.add.enqueue(1, "x" * 512)
    shop.app.client.close()


# ---- many -----------------------------------------------------------------------------------------------


def test_ten_thousand_jobs_go_in_a_handful_of_round_trips(shop: Shop, client: redis.Redis) -> None:
    client.config_resetstat()
    jids = shop.add.enqueue_many((n,) for n in range(10_000))
    counted = calls(client)
    assert counted["lpush"] <= 12
    assert sum(counted.values()) <= 30
    found = jobs(client)
    assert [job["jid"] for job in found] == jids
    assert [job["args"][0] for job in found] == list(range(10_000))
    assert len(set(jids)) == 10_000


def test_many_jobs_of_several_kinds_keep_their_order_and_their_queues(shop: Shop, client: redis.Redis) -> None:
    mixed = [shop.add.call(1, loud=True), shop.mail.call(2), shop.add.call(3)]
    jids = shop.app.enqueue_many(mixed)
    assert [job["jid"] for job in jobs(client)] == [jids[0], jids[2]]
    assert jobs(client)[0]["kwargs"] == {"loud": True}
    assert [job["jid"] for job in jobs(client, "cogworker:queue:mail")] == [jids[1]]
    assert client.smembers("cogworker:queues") == {"default", "mail"}


def test_one_wrong_call_of_many_is_refused_before_anything_is_sent(shop: Shop, client: redis.Redis) -> None:
    with pytest.raises(TypeError, match=r"args\[0\]"):
        shop.add.enqueue_many([(1,), ({2},)])
    assert client.keys("*") == []
    assert shop.add.enqueue_many([]) == []


def test_many_jobs_of_which_some_were_refused_tell_which_were_pushed(shop: Shop, client: redis.Redis) -> None:
    client.set("cogworker:queue:mail", "no list")
    with pytest.raises(PushFailed) as failed:
        shop.app.enqueue_many([shop.add.call(1), shop.mail.call(2), shop.add.call(3)])
    assert failed.value.pushed == [job["jid"] for job in jobs(client)]
    assert len(failed.value.pushed) == 2


# ---- loops, threads, forks ------------------------------------------------------------------------------


def test_two_event_loops_in_one_process_leave_no_connection_open(shop: Shop, client: redis.Redis) -> None:
    others = len(client.client_list())

    async def push(first: int) -> list[str | None]:
        one = await shop.add.aenqueue(first)
        two = await shop.app.apush("other", [first])
        three = await shop.add.aenqueue_in(60, first)
        many = await shop.add.aenqueue_many([(first + 1,), (first + 2,)])
        return [one, two, three, *many]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jids = asyncio.run(push(1), debug=True) + asyncio.run(push(10), debug=True)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert None not in jids
    assert len(set(jids)) == 10
    assert client.llen(QUEUE) == 8
    assert client.zcard("cogworker:schedule") == 2
    eventually(lambda: len(client.client_list()) <= others)


def test_many_tasks_of_one_loop_push_at_once(shop: Shop, client: redis.Redis) -> None:
    async def push() -> list[str | None]:
        return await asyncio.gather(*(shop.add.aenqueue(n) for n in range(50)))

    jids = asyncio.run(push())
    assert {job["jid"] for job in jobs(client)} == set(jids)


def test_a_cancelled_push_leaves_the_loop_able_to_push(shop: Shop, client: redis.Redis) -> None:
    async def push() -> str | None:
        await shop.add.aenqueue(0)
        for turns in range(6):
            task = asyncio.ensure_future(shop.add.aenqueue(1))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return await shop.add.aenqueue(2)

    last = asyncio.run(push())
    found = jobs(client)
    assert found[-1]["jid"] == last
    assert len({job["jid"] for job in found}) == len(found)


def test_threads_share_one_client(shop: Shop, client: redis.Redis) -> None:
    found: list[str | None] = []

    def push(start: int) -> None:
        found.extend(shop.add.enqueue(n) for n in range(start, start + 25))

    threads = [threading.Thread(target=push, args=(100 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200
    assert {job["jid"] for job in jobs(client)} == set(found)


def test_parent_and_child_of_a_fork_both_push(shop: Shop, client: redis.Redis) -> None:
    shop.add.enqueue(0)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            shop.add.enqueue_many([(n,) for n in range(1, 51)])
            asyncio.run(shop.add.aenqueue(51))
            code = 0
        finally:
            os._exit(code)
    for n in range(100, 150):
        shop.add.enqueue(n)
    assert os.waitpid(pid, 0)[1] == 0
    assert {job["args"][0] for job in jobs(client)} == {*range(52), *range(100, 150)}


def test_a_fork_within_a_running_loop_leaves_the_loop_of_the_parent_alone(shop: Shop, client: redis.Redis) -> None:
    async def push() -> None:
        await shop.add.aenqueue(0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                shop.add.enqueue(1)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        await shop.add.aenqueue(2)

    asyncio.run(push())
    assert [job["args"][0] for job in jobs(client)] == [0, 1, 2]


# ---- failures -------------------------------------------------------------------------------------------


class Proxy:
    """Passes bytes to a server and back, and swallows every reply once it is told to.

    Attributes:
        replies_wanted: how many lines of replies may still pass; None: all.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.replies_wanted: int | None = None
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def swallow_after(self, replies: int) -> None:
        """Let so many more lines of replies through, then end the connection instead."""
        self.replies_wanted = replies

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                for pump in (self._pump_commands, self._pump_replies):
                    thread = threading.Thread(target=pump, args=(near, far), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pump_commands(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65_536):
                far.sendall(data)
        _end(far)

    def _pump_replies(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError), far.makefile("rb") as replies:
            for line in replies:
                if self.replies_wanted is not None:
                    if self.replies_wanted == 0:
                        break
                    self.replies_wanted -= 1
                near.sendall(line)
        _end(near)

    def close(self) -> None:
        for open_socket in self._sockets:
            _end(open_socket)
        for thread in self._threads:
            thread.join(5)
        for open_socket in self._sockets:
            open_socket.close()


def _end(open_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):
        open_socket.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    found = Proxy(server.port)
    yield found
    found.close()


@pytest.fixture
def far_shop(proxy: Proxy) -> Iterator[Shop]:
    """An application that reaches the server through the proxy; its connection is up."""
    found = Shop(f"redis://127.0.0.1:{proxy.port}/0")
    found.add.enqueue(0)
    yield found
    found.app.client.close()


def test_a_push_whose_answer_never_came_says_so_with_the_jid_and_is_not_repeated(
    far_shop: Shop, proxy: Proxy, client: redis.Redis
) -> None:
    """R4."""
    proxy.swallow_after(0)
    with pytest.raises(PushUnknown) as unknown:
        far_shop.add.enqueue(1)
    assert isinstance(unknown.value, redis.ConnectionError)
    eventually(lambda: client.llen(QUEUE) == 2)
    assert unknown.value.jids == [jobs(client)[1]["jid"]]
    assert unknown.value.jids[0] in str(unknown.value)
    assert unknown.value.pushed == []
    proxy.replies_wanted = None
    far_shop.add.enqueue(2)
    assert [job["args"][0] for job in jobs(client)] == [0, 1, 2]


def test_a_push_from_a_loop_whose_answer_never_came_says_so_too(
    far_shop: Shop, proxy: Proxy, client: redis.Redis
) -> None:
    async def push() -> None:
        await far_shop.add.aenqueue(1)
        proxy.swallow_after(0)
        with pytest.raises(PushUnknown) as unknown:
            await far_shop.add.aenqueue(2)
        proxy.replies_wanted = None
        await far_shop.add.aenqueue(3)
        assert unknown.value.jids == [job["jid"] for job in jobs(client) if job["args"] == [2]]

    asyncio.run(push())
    assert [job["args"][0] for job in jobs(client)] == [0, 1, 2, 3]


def test_a_lost_answer_to_the_listing_alone_is_no_error(
    far_shop: Shop, proxy: Proxy, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """R2: the push was answered; only the listing behind it was not."""
    proxy.swallow_after(1)
    jid = far_shop.mail.enqueue(1)
    assert jid == jobs(client, "cogworker:queue:mail")[0]["jid"]
    assert "mail" in caplog.text


def test_many_jobs_of_which_a_chunk_was_not_answered_tell_pushed_and_unknown(
    far_shop: Shop, proxy: Proxy, client: redis.Redis
) -> None:
    proxy.swallow_after(4)  # two answers to each chunk: the push and the listing
    with pytest.raises(PushUnknown) as unknown:
        far_shop.add.enqueue_many([(n,) for n in range(5000)])
    error = unknown.value
    assert len(error.pushed) == 2000
    assert len(error.jids) == 1000
    eventually(lambda: client.llen(QUEUE) == 3001)
    assert [job["jid"] for job in jobs(client)][1:] == error.pushed + error.jids


def test_many_jobs_from_a_loop_tell_pushed_and_unknown_too(far_shop: Shop, proxy: Proxy, client: redis.Redis) -> None:
    async def push() -> PushUnknown:
        await far_shop.add.aenqueue(1)
        proxy.swallow_after(2)
        with pytest.raises(PushUnknown) as unknown:
            await far_shop.add.aenqueue_many([(n,) for n in range(3000)])
        return unknown.value

    error = asyncio.run(push())
    assert (len(error.pushed), len(error.jids)) == (1000, 1000)
    eventually(lambda: client.llen(QUEUE) == 2002)
    assert [job["jid"] for job in jobs(client)][2:] == error.pushed + error.jids


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_refused_connection_is_a_connection_error_and_nothing_was_pushed(client: redis.Redis) -> None:
    shop = Shop(f"redis://127.0.0.1:{_free_port()}/0")
    for push in (
        lambda: shop.add.enqueue(1),
        lambda: shop.add.enqueue_in(5, 1),
        lambda: shop.add.enqueue_many([(1,), (2,)]),
        lambda: asyncio.run(shop.add.aenqueue(1)),
        lambda: asyncio.run(shop.add.aenqueue_many([(1,), (2,)])),
    ):
        with pytest.raises(redis.ConnectionError) as refused:
            push()
        assert not isinstance(refused.value, PushUnknown)
    assert client.keys("*") == []


def test_a_client_whose_connection_was_killed_pushes_again_and_no_job_twice(
    client: redis.Redis, far_shop: Shop
) -> None:
    client.client_kill_filter(_type="normal", skipme=True)
    pushed: list[str | None] = []
    with contextlib.suppress(redis.ConnectionError):
        pushed.append(far_shop.add.enqueue(1))
    pushed.append(far_shop.add.enqueue(2))
    assert {job["jid"] for job in jobs(client)} >= set(pushed)
    assert [job["args"][0] for job in jobs(client)].count(2) == 1


def test_a_connection_that_the_server_closed_while_idle_is_replaced_before_anything_is_sent(
    shop: Shop, client: redis.Redis
) -> None:
    shop.add.enqueue(1)
    client.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: len(client.client_list()) == 1)
    assert shop.add.enqueue(2) == jobs(client)[1]["jid"]
    assert [job["args"][0] for job in jobs(client)] == [1, 2]
