"""The rules of the record, where what the server holds says something else than the record does."""

from __future__ import annotations

import asyncio
import json

import pytest

from cogworkerd.outcome import SUCCESS, Kind, Outcome
from cogworkerd.worker.reports import Result
from tests.supervisor_parts import KEYS, ME, MINE, Parts, Work, parts
from tests.support import Client, Server

QUEUE = KEYS.queue("default")
A, B, C = (b'{"class":"a","jid":"%s","args":[]}' % jid for jid in (b"ja", b"jb", b"jc"))
RETRY = Outcome(Kind.RETRY, 1000.5, b'{"class":"a","jid":"ja","retry_count":1}', b'{"attempt":1}')
DEAD = Outcome(Kind.DEAD, 2000.5, b'{"class":"a","jid":"ja","retry_count":9}', b'{"attempt":9}')


def run(server: Server, work: Work) -> None:
    async def inside() -> None:
        async with parts(server.url) as made:
            await work(made)

    asyncio.run(inside())


# ---- R20, R21 ------------------------------------------------------------------------------------------


def test_two_copies_that_run_are_two_and_each_is_there_until_it_is_settled(server: Server, client: Client) -> None:
    """R20, R21: neither copy is taken for a stray while both run, and the one that is left over afterwards is."""
    client.lpush(MINE, A, A, A)

    async def work(made: Parts) -> None:
        one, two = made.child(), made.child()
        reconciler = made.reconciler()
        await reconciler.register()
        made.started(one, A)
        made.started(two, A)
        made.performed(two, SUCCESS)  # performed, but not settled: it still holds its entry
        await made.heartbeat().beat()
        assert client.hget(KEYS.process(ME), "busy") == "2"
        assert len(client.hvals(KEYS.workers(ME))) == 2
        for _ in range(3):
            await reconciler.reconcile()
        assert client.llen(MINE) == 3  # a child in PERFORMED may fetch in the same step: it has to answer first
        client.lrem(MINE, 1, A.decode())
        made.finished(two, Result.SETTLED)
        made.idle(two)
        for _ in range(3):
            await reconciler.reconcile()
            made.idle(two)
        assert made.ledger.busy == 1

    run(server, work)
    assert client.llen(MINE) == 1
    assert client.lrange(QUEUE, 0, -1) == [A.decode()]


# ---- R22 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [RETRY, DEAD])
def test_a_failure_that_could_not_be_settled_is_filed_later_as_it_was(
    outcome: Outcome, server: Server, client: Client
) -> None:
    """R22: its set, its score and its payload are remembered, to the byte."""
    client.lpush(MINE, A)

    async def work(made: Parts) -> None:
        child = made.child()
        made.started(child, A)
        made.performed(child, outcome)
        made.finished(child, Result.UNKNOWN)
        assert client.llen(MINE) == 1
        await made.reconciler().reconcile()
        assert made.ledger.unsettled == []

    run(server, work)
    target = outcome.target(KEYS)
    assert client.zrange(target, 0, -1, withscores=True) == [(outcome.payload.decode(), outcome.score)]
    assert not client.exists(MINE, QUEUE)


def test_an_ack_that_could_not_be_sent_is_sent_later(server: Server, client: Client) -> None:
    """R22: an ack is remembered as one: nothing is filed."""
    client.lpush(MINE, A, B)

    async def work(made: Parts) -> None:
        one, two = made.child(), made.child()
        made.started(one, A)
        made.started(two, B)
        made.performed(one, SUCCESS)
        made.finished(one, Result.UNKNOWN)
        await made.reconciler().reconcile()
        assert made.ledger.unsettled == []

    run(server, work)
    assert client.lrange(MINE, 0, -1) == [B.decode()]
    assert client.get(KEYS.processed) == "1"
    assert not client.exists(KEYS.retry, KEYS.dead, QUEUE)


def test_an_outcome_that_cannot_be_filed_keeps_neither_acks_nor_jobs_given_back_waiting(
    server: Server, client: Client
) -> None:
    """R22, R25: it stays remembered, and listed, until it can be."""
    client.lpush(MINE, A, B, C)
    client.set(KEYS.dead, "no set")

    async def work(made: Parts) -> None:
        one, two, three = made.child(), made.child(), made.child()
        reconciler = made.reconciler()
        await reconciler.register()
        made.started(one, A)
        made.performed(one, DEAD)
        made.finished(one, Result.UNKNOWN)
        made.started(two, B)
        made.performed(two, SUCCESS)
        made.finished(two, Result.UNKNOWN)
        made.returned(three, C)
        await reconciler.reconcile()
        await reconciler.reconcile()
        assert client.lrange(MINE, 0, -1) == [A.decode()]
        assert client.lrange(QUEUE, 0, -1) == [C.decode()]
        assert client.get(KEYS.processed) == "1"
        client.delete(KEYS.dead)
        await reconciler.reconcile()

    run(server, work)
    assert client.zrange(KEYS.dead, 0, -1, withscores=True) == [(DEAD.payload.decode(), DEAD.score)]
    assert not client.exists(MINE)


# ---- R23 -----------------------------------------------------------------------------------------------


def test_what_the_server_says_to_run_does_not_run(server: Server, client: Client) -> None:
    """R23: entries of the list and of the workers key make nothing busy, and keep no stray from being requeued."""
    client.lpush(MINE, A)
    client.hset(KEYS.workers(ME), "t1", json.dumps({"queue": "default", "payload": json.loads(A), "run_at": 1}))

    async def work(made: Parts) -> None:
        child = made.child()
        reconciler = made.reconciler()
        await reconciler.register()
        await made.heartbeat().beat()
        assert client.hget(KEYS.process(ME), "busy") == "0"
        assert not client.exists(KEYS.workers(ME))
        await reconciler.reconcile()
        made.idle(child)
        await reconciler.reconcile()

    run(server, work)
    assert client.lrange(QUEUE, 0, -1) == [A.decode()]
    assert not client.exists(MINE)


def test_what_the_server_does_not_know_of_runs_all_the_same(server: Server, client: Client) -> None:
    """R23: a server that lost the list and the workers key makes no slot idle."""

    async def work(made: Parts) -> None:
        child = made.child()
        reconciler = made.reconciler()
        await reconciler.register()
        made.started(child, A)
        client.flushall()
        await reconciler.reconcile()
        await made.heartbeat().beat()
        assert made.ledger.busy == 1

    run(server, work)
    assert client.hget(KEYS.process(ME), "busy") == "1"
    assert [json.loads(entry)["payload"]["jid"] for entry in client.hvals(KEYS.workers(ME))] == ["ja"]
    assert not client.exists(QUEUE)


def test_a_job_that_runs_is_left_on_the_list_whatever_the_workers_key_says(server: Server, client: Client) -> None:
    """R23: it has no entry there, and its child has been silent for many looks."""
    client.lpush(MINE, A)

    async def work(made: Parts) -> None:
        child, other = made.child(), made.child()
        reconciler = made.reconciler()
        await reconciler.register()
        made.started(child, A)
        for _ in range(3):
            client.delete(KEYS.workers(ME))
            await reconciler.reconcile()
            made.idle(other)

    run(server, work)
    assert client.lrange(MINE, 0, -1) == [A.decode()]
    assert not client.exists(QUEUE)
