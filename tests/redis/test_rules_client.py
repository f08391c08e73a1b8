"""The rules of the client that need a server which is in the way: refused, cut off, of the wrong type."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest
import redis.exceptions

from cogworkerd import App
from cogworkerd.errors import PushFailed, PushUnknown
from cogworkerd.job import Job
from tests.cutting_proxy import CuttingProxy
from tests.supervisor_parts import limited_user
from tests.support import Client, Server

QUEUE = "cogworker:queue:mail"
Mail = Job[..., None]


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    made = CuttingProxy(server.port)
    yield made
    made.close()


@pytest.fixture
def mail_at() -> Iterator[Callable[[str], Mail]]:
    """Makes a job whose pushes go to a URL."""
    apps: list[App] = []

    def make(url: str) -> Mail:
        app = App(url)
        apps.append(app)

        @app.job(name="mail", queue="mail")
        def mail(n: int) -> None: ...

        return mail

    yield make
    for app in apps:
        app.client.close()


def numbers(client: Client) -> list[int]:
    """The argument of each queued job, first in first."""
    return [json.loads(raw)["args"][0] for raw in reversed(client.lrange(QUEUE, 0, -1))]


def _by_itself(mail: Mail, n: int) -> None:
    mail.enqueue(n)


def _from_a_loop(mail: Mail, n: int) -> None:
    asyncio.run(mail.aenqueue(n))


WAYS = pytest.mark.parametrize("push", [_by_itself, _from_a_loop])


@WAYS
def test_the_push_comes_first_and_outside_any_transaction(
    push: Callable[[Mail, int], None], mail_at: Callable[[str], Mail], proxy: CuttingProxy, client: Client
) -> None:
    """R1: one command, before the listing and bound to nothing."""
    push(mail_at(proxy.url), 1)
    assert numbers(client) == [1]
    assert proxy.sent.count(b"LPUSH") == 1
    assert proxy.sent.index(b"LPUSH") < proxy.sent.index(b"SADD")
    assert b"MULTI" not in proxy.sent
    assert b"EVAL" not in proxy.sent


@WAYS
def test_a_listing_that_the_server_refuses_neither_fails_nor_repeats_the_push(
    push: Callable[[Mail, int], None],
    mail_at: Callable[[str], Mail],
    server: Server,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R1, R2: a user who may not SADD pushes all the same, once, and the log names the queue."""
    with limited_user(server, client, "-sadd") as url, caplog.at_level(logging.WARNING, "cogworkerd"):
        push(mail_at(url), 1)
    assert numbers(client) == [1]
    assert not client.exists("cogworker:queues")
    (record,) = [record for record in caplog.records if record.name == "cogworkerd.client"]
    assert record.levelname == "WARNING"
    assert "mail" in record.getMessage()


@WAYS
def test_many_jobs_go_although_their_queues_cannot_be_listed(
    push: Callable[[Mail, int], None], mail_at: Callable[[str], Mail], server: Server, client: Client
) -> None:
    """R2: for a bulk push as well."""
    with limited_user(server, client, "-sadd") as url:
        mail = mail_at(url)
        if push is _from_a_loop:
            asyncio.run(mail.aenqueue_many([(n,) for n in range(1500)]))
        else:
            mail.enqueue_many([(n,) for n in range(1500)])
    assert numbers(client) == list(range(1500))


def test_a_server_that_goes_away_behind_the_push_is_a_warning_from_a_loop_too(
    mail_at: Callable[[str], Mail], server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """R2: the push was answered and the line ended before the listing was."""

    async def push() -> None:
        half = await asyncio.start_server(_answers_one_push(server.port), "127.0.0.1", 0)
        port = half.sockets[0].getsockname()[1]
        async with half:
            await mail_at(f"redis://127.0.0.1:{port}/0").aenqueue(1)

    with caplog.at_level(logging.WARNING, "cogworkerd"):
        asyncio.run(push())
    assert numbers(client) == [1]
    assert "mail" in caplog.text


def _answers_one_push(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server's front that passes everything on, and ends each line with the first answer that is a number."""

    async def serve(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far_in, far_out = await asyncio.open_connection("127.0.0.1", port)

        async def pass_on() -> None:
            while data := await near_in.read(2**16):
                far_out.write(data)

        pump = asyncio.ensure_future(pass_on())
        while line := await far_in.readline():
            near_out.write(line)
            if line.startswith(b":"):
                break
        await near_out.drain()
        pump.cancel()
        for out in (near_out, far_out):
            out.close()
            await out.wait_closed()

    return serve


# ---- R4: pushing again after an error ------------------------------------------------------------------


def _wrong_type(client: Client) -> Callable[[], None]:
    client.set(QUEUE, "no list")
    return lambda: client.delete(QUEUE)


def _full_memory(client: Client) -> Callable[[], None]:
    client.config_set("maxmemory", "1")
    return lambda: client.config_set("maxmemory", "0")


def _read_only(client: Client) -> Callable[[], None]:
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    return lambda: client.execute_command("REPLICAOF", "NO", "ONE")


@WAYS
@pytest.mark.parametrize("trouble", [_wrong_type, _full_memory, _read_only])
def test_after_an_answer_that_refuses_the_push_may_be_made_again(
    trouble: Callable[[Client], Callable[[], None]],
    push: Callable[[Mail, int], None],
    mail_at: Callable[[str], Mail],
    make_server: Callable[..., Server],
) -> None:
    """R4: nothing was pushed, so the second try leaves one job."""
    server = make_server()
    mail = mail_at(server.url)
    with server.client() as client:
        repair = trouble(client)
        with pytest.raises(redis.exceptions.RedisError) as refused:
            push(mail, 1)
        assert not isinstance(refused.value, PushUnknown)
        repair()
        push(mail, 1)
        assert numbers(client) == [1]


@WAYS
def test_a_push_that_was_cut_off_on_its_way_tells_which_jids_to_look_for(
    push: Callable[[Mail, int], None], mail_at: Callable[[str], Mail], proxy: CuttingProxy, client: Client
) -> None:
    """R4: whether it arrived or not, a caller who looks for the jids first leaves one job."""
    for n, cut in enumerate((proxy.cut_before, proxy.cut_after)):
        mail = mail_at(proxy.url)
        cut(b"LPUSH")
        with pytest.raises(PushUnknown) as unknown:
            push(mail, n)
        assert unknown.value.pushed == []
        there = [json.loads(raw)["jid"] for raw in client.lrange(QUEUE, 0, -1)]
        if not set(unknown.value.jids) & set(there):
            push(mail, n)
    assert numbers(client) == [0, 1]


def test_a_bulk_push_that_ends_early_tells_what_need_not_be_pushed_again(
    mail_at: Callable[[str], Mail], server: Server, client: Client
) -> None:
    """R4: jobs of one call go to two queues, one of which cannot be written."""
    app = App(server.url)
    mail = mail_at(server.url)
    client.set("cogworker:queue:odd", "no list")
    calls = [mail.call(1), mail.using(queue="odd").call(2), mail.call(3)]
    with pytest.raises(PushFailed) as failed:
        app.enqueue_many(calls)
    assert [json.loads(raw)["jid"] for raw in reversed(client.lrange(QUEUE, 0, -1))] == failed.value.pushed
    assert numbers(client) == [1, 3]
    app.client.close()
