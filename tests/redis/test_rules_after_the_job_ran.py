"""The rules of what follows a run, with the real channel, fetcher and settler of a child."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from cogworkerd.outcome import SUCCESS, Kind, Outcome, Settlement
from cogworkerd.store import connection, scripts
from cogworkerd.store.keys import suspects_of
from cogworkerd.worker.channel import Channel
from cogworkerd.worker.fetch import Fetcher
from cogworkerd.worker.page import Page
from cogworkerd.worker.reports import Result
from cogworkerd.worker.settle import Settler
from tests.cutting_proxy import CuttingProxy
from tests.supervisor_parts import KEYS, ME, MINE, parts
from tests.support import Client, Server

QUEUE = KEYS.queue("default")
JOB, NEXT = b'{"class":"a","jid":"j1"}', b'{"class":"a","jid":"j2"}'
RETRY = Outcome(Kind.RETRY, 12.5, b'{"later":1}', b'{"attempt":1}')
BOTH, ALONE = scripts.SETTLE_AND_FETCH.sha.encode(), scripts.SETTLE.sha.encode()


class Child:
    """What of a child settles: it holds one job, and another waits in the queue."""

    def __init__(self, proxy: CuttingProxy, client: Client) -> None:
        self.proxy = proxy
        self.errors: list[BaseException] = []
        self.pauses: list[float] = []
        self._channel = Channel(connection.Server.parse(proxy.url), "child", lambda _: None)
        fetcher = Fetcher(self._channel, KEYS, ME, Page(), (("default", 1),), True, 1, 1.0)
        self._settler = Settler(fetcher, self.errors.append, lambda: None, self.pauses.append)
        client.sadd(KEYS.inprogress_identities, ME)
        client.lpush(MINE, JOB)
        client.lpush(QUEUE, NEXT)
        for script in (scripts.SETTLE, scripts.SETTLE_AND_FETCH):
            client.script_load(script.text)

    def settle(self, outcome: Outcome = SUCCESS, fetch: bool = True) -> tuple[Result, bytes | None]:
        """Settle; what became of it, and the job that the fetch brought."""
        result, found = self._settler.settle(Settlement(JOB, "j1", (), outcome), fetch)
        return result, found.held.raw if found is not None and found.held is not None else None

    @property
    def tries(self) -> tuple[int, int]:
        """How often settling was sent with a fetch, and how often alone."""
        return self.proxy.sent.count(BOTH), self.proxy.sent.count(ALONE)

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    made = CuttingProxy(server.port)
    yield made
    made.close()


@pytest.fixture
def child(proxy: CuttingProxy, client: Client) -> Iterator[Child]:
    made = Child(proxy, client)
    yield made
    made.close()


# ---- R28 -----------------------------------------------------------------------------------------------


def test_the_first_try_settles_and_fetches_in_one_step(child: Child, client: Client) -> None:
    """R28: what the other tests of this rule take away."""
    assert child.settle() == (Result.SETTLED, NEXT)
    assert child.tries == (1, 0)
    assert client.lrange(MINE, 0, -1) == [NEXT.decode()]


@pytest.mark.parametrize("outcome", [SUCCESS, RETRY])
@pytest.mark.parametrize("fetch", [True, False])
def test_three_tries_and_the_later_ones_settle_alone(
    fetch: bool, outcome: Outcome, child: Child, client: Client
) -> None:
    """R28: none of the three reaches the server; the supervisor has to do it, and no job was fetched."""
    child.proxy.cut_before(b"EVALSHA", times=3)
    assert child.settle(outcome, fetch) == (Result.UNKNOWN, None)
    assert child.tries == ((1, 2) if fetch else (0, 3))
    assert child.pauses == [0.1, 0.2]
    assert len(child.errors) == 3
    assert client.lrange(MINE, 0, -1) == [JOB.decode()]
    assert client.lrange(QUEUE, 0, -1) == [NEXT.decode()]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_later_try_that_arrives_settles_and_fetches_nothing(lost: int, child: Child, client: Client) -> None:
    """R28: the job that waits is left to the next look."""
    child.proxy.cut_before(b"EVALSHA", times=lost)
    assert child.settle() == (Result.SETTLED, None)
    assert child.tries == (1, lost)
    assert not client.exists(MINE)
    assert client.lrange(QUEUE, 0, -1) == [NEXT.decode()]
    assert client.get(KEYS.processed) == "1"


def test_a_try_that_had_worked_without_an_answer_is_not_made_twice(child: Child, client: Client) -> None:
    """R28, R24: the repeated try finds the job gone, which means settled; it is counted once and filed once."""
    child.proxy.cut_after(b"EVALSHA")
    assert child.settle(RETRY) == (Result.SETTLED, None)
    assert child.tries == (1, 1)
    assert client.zcard(KEYS.retry) == 1
    assert client.get(KEYS.failed) == "1"
    assert client.lrange(MINE, 0, -1) == [NEXT.decode()]  # fetched, and a stray that the supervisor puts back


def test_three_refusals_leave_it_to_the_supervisor_too(child: Child, client: Client) -> None:
    """R28: a set of the wrong type."""
    client.set(KEYS.retry, "no set")
    assert child.settle(RETRY) == (Result.UNKNOWN, None)
    assert child.tries == (1, 2)
    assert client.lrange(MINE, 0, -1) == [JOB.decode()]
    assert client.lrange(QUEUE, 0, -1) == [NEXT.decode()]


# ---- R26 -----------------------------------------------------------------------------------------------


def test_an_ack_needs_no_key_but_the_list(child: Child, client: Client) -> None:
    """R26: every key of the best-effort part has another type."""
    for key in (KEYS.processed, KEYS.failed, KEYS.orphanings("j1"), KEYS.retry, KEYS.dead):
        client.hset(key, "another", "type")
    client.rpush(KEYS.workers(ME), "no hash")
    client.set(KEYS.attempts("j1"), "no list")
    assert child.settle() == (Result.SETTLED, NEXT)
    assert client.lrange(MINE, 0, -1) == [NEXT.decode()]


# ---- R25 -----------------------------------------------------------------------------------------------


def test_a_job_given_back_is_the_next_one_to_be_popped(server: Server, client: Client) -> None:
    """R25: without blame, in front of those that wait."""
    client.lpush(MINE, JOB)
    client.lpush(QUEUE, NEXT)

    async def work() -> None:
        async with parts(server.url) as made:
            child = made.child()
            reconciler = made.reconciler()
            await reconciler.register()
            made.returned(child, JOB)
            await reconciler.reconcile()
            assert made.said.of("job.returned", jid="j1")

    asyncio.run(work())
    assert client.rpop(QUEUE) == JOB.decode()
    assert not client.exists(MINE, KEYS.orphanings("j1"))


def test_a_job_that_cannot_be_given_back_stays_listed_until_it_can(server: Server, client: Client) -> None:
    """R25: its queue has another type; once it has none, the job goes back."""
    client.lpush(MINE, JOB)
    client.set(QUEUE, "no list")

    async def work() -> None:
        async with parts(server.url) as made:
            child = made.child()
            reconciler = made.reconciler()
            await reconciler.register()
            made.returned(child, JOB)
            for _ in range(3):
                await reconciler.reconcile()
                made.idle(child)
                assert client.lrange(MINE, 0, -1) == [JOB.decode()]
            client.delete(QUEUE)
            for _ in range(3):
                await reconciler.reconcile()
                made.idle(child)
            assert made.ledger.orphans == []

    asyncio.run(work())
    assert client.lrange(QUEUE, 0, -1) == [JOB.decode()]
    assert not client.exists(MINE)


def test_a_job_that_was_never_given_back_is_recovered_by_others(server: Server, client: Client) -> None:
    """R25: it is still listed when its daemon is gone; whoever recovers that list puts it among the suspects."""
    gone = "elsewhere:2:bbbbbbbbbbbb"
    raw = json.dumps({"class": "a", "jid": "j1", "queue": "mail"})
    client.lpush(KEYS.inprogress(gone), raw)
    client.sadd(KEYS.inprogress_identities, gone)
    client.hset(KEYS.last_beat, gone, client.time()[0] - 1000)

    async def work() -> None:
        async with parts(server.url) as made:
            recovery = made.recovery()
            for now in (1000.0, 1011.0):
                await recovery.turn(now)

    asyncio.run(work())
    assert client.lrange(KEYS.queue(suspects_of("mail")), 0, -1) == [raw]
    assert not client.exists(KEYS.inprogress(gone))
