"""The rules of the heartbeat, beat by beat on a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator

import pytest
import redis
import redis.exceptions

from cogworkerd.store import scripts
from tests.cutting_proxy import CuttingProxy
from tests.supervisor_parts import KEYS, ME, Parts, Work, limited_user, parts
from tests.support import Client, Server

PRESENCE = KEYS.process(ME)
WORKERS = KEYS.workers(ME)
NOW = 1_700_000_000.0
JOB = b'{"class":"a","jid":"j1","args":[]}'

WRITTEN: dict[str, Callable[[Client], object]] = {
    KEYS.inprogress_identities: lambda client: client.sismember(KEYS.inprogress_identities, ME),
    KEYS.last_beat: lambda client: client.hexists(KEYS.last_beat, ME),
    KEYS.live_queues: lambda client: client.zscore(KEYS.live_queues, "mail"),
    KEYS.queues: lambda client: client.sismember(KEYS.queues, "mail"),
    KEYS.processes: lambda client: client.sismember(KEYS.processes, ME),
    WORKERS: lambda client: client.hvals(WORKERS),
}
"""Every key of a beat but the presence, and how to see that it was written."""


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    made = CuttingProxy(server.port)
    yield made
    made.close()


def run(url: str, work: Work) -> None:
    """Do some work with the parts of a supervisor that reads one queue, "mail", and runs one job."""

    async def inside() -> None:
        async with parts(url, "mail") as made:
            made.started(made.child(), JOB)
            await work(made)

    asyncio.run(inside())


def test_the_presence_says_what_there_is_and_lives_for_a_minute(server: Server, client: Client) -> None:
    """R7: info, busy, quiet; 60 s."""

    async def work(made: Parts) -> None:
        await made.heartbeat().beat()

    run(server.url, work)
    presence = client.hgetall(PRESENCE)
    assert set(presence) == {"info", "busy", "quiet"}
    assert (presence["busy"], presence["quiet"]) == ("1", "false")
    info = json.loads(presence["info"])
    assert (info["pid"], info["queues"], info["slots"][0]["jid"]) == (1, ["mail"], "j1")
    assert 55 < client.ttl(PRESENCE) <= 60


def test_without_the_presence_there_is_no_beat_and_nothing_else_is_written(server: Server, client: Client) -> None:
    """R7: it goes first, and a beat that could not write it has failed."""
    client.set(PRESENCE, "no hash")
    raised: list[str] = []

    async def work(made: Parts) -> None:
        try:
            await made.heartbeat().beat()
        except redis.exceptions.ResponseError as error:
            raised.append(str(error))
        assert made.page.last_beat == 0

    run(server.url, work)
    assert "WRONGTYPE" in raised[0]
    assert {key for key in WRITTEN if client.exists(key)} == set()


@pytest.mark.parametrize("wrong", list(WRITTEN))
def test_one_key_of_the_wrong_type_fails_neither_the_beat_nor_the_other_writes(
    wrong: str, server: Server, client: Client
) -> None:
    """R8, R9: it is logged, beat by beat, and the rest is written."""
    client.set(wrong, "another type")

    async def work(made: Parts) -> None:
        heartbeat = made.heartbeat()
        for _ in range(2):
            await heartbeat.beat()
        assert made.page.last_beat > 0
        if wrong != WORKERS:  # it is written anew as a whole
            told = [line for line in made.said.of("redis.error") if wrong in line["site"]]
            assert len(told) >= 2

    run(server.url, work)
    assert client.hget(PRESENCE, "busy") == "1"
    assert {key for key, written in WRITTEN.items() if key != wrong and not written(client)} == set()


@pytest.mark.parametrize("command", ["sadd", "hincrby", "zadd", "zremrangebyscore"])
def test_a_secondary_write_that_is_refused_is_logged_and_the_beat_has_worked(
    command: str, server: Server, client: Client
) -> None:
    """R9: the server is there, so the beat has not failed."""

    async def work(made: Parts) -> None:
        await made.heartbeat().beat()
        told = [line for line in made.said.of("redis.refusing") if line["site"].startswith("beat ")]
        told += [line for line in made.said.of("redis.error") if line["site"].startswith("beat ")]
        assert bool(told) is (command != "hincrby")  # which no beat needs

    with limited_user(server, client, f"-{command}") as url:
        run(url, work)
    assert client.hget(PRESENCE, "busy") == "1"
    assert client.hexists(KEYS.last_beat, ME)


@pytest.mark.parametrize("moment", ["EVALSHA", "SCRIPT", WORKERS])
@pytest.mark.parametrize("arrives", [False, True])
def test_a_server_that_goes_away_in_the_middle_makes_the_beat_a_failed_one(
    moment: str, arrives: bool, proxy: CuttingProxy, client: Client
) -> None:
    """R9: whatever was written already."""
    failed: list[bool] = []

    async def work(made: Parts) -> None:
        heartbeat = made.heartbeat()
        client.script_flush()
        (proxy.cut_after if arrives else proxy.cut_before)(moment.encode())
        try:
            await heartbeat.beat()
        except (redis.exceptions.ConnectionError, OSError):
            failed.append(True)
        assert proxy.cuts_left == 0
        await heartbeat.beat()  # and the next one works

    run(proxy.url, work)
    assert client.hget(PRESENCE, "busy") == "1"
    assert failed


def test_each_beat_lists_queues_that_are_empty_and_stamps_them_anew(server: Server, client: Client) -> None:
    """R10: a queue that nobody has pushed to yet is listed, and again after somebody has dropped it."""

    async def work(made: Parts) -> None:
        heartbeat = made.heartbeat()
        made.queues = ["mail", "mail", "rare"]
        await heartbeat.beat()
        assert client.smembers(KEYS.queues) == {"mail", "rare"}
        client.zadd(KEYS.live_queues, {"mail": 1, "rare": 1, "read by others": client.time()[0] - 100})
        client.delete(KEYS.queues)
        await heartbeat.beat()

    run(server.url, work)
    assert client.smembers(KEYS.queues) == {"mail", "rare"}
    stamps = dict(client.zrange(KEYS.live_queues, 0, -1, withscores=True))
    assert set(stamps) == {"mail", "rare", "read by others"}
    assert abs(stamps["mail"] - client.time()[0]) < 60
    assert abs(stamps["rare"] - client.time()[0]) < 60


def test_where_the_servers_clock_may_not_be_asked_the_stamps_are_our_own(server: Server, client: Client) -> None:
    """R10, R11: of a beat and of a registration."""
    with limited_user(server, client, "-time") as url, redis.Redis.from_url(url) as limited:
        for call in (scripts.register(KEYS, ME, NOW), scripts.beat(KEYS, ME, NOW + 5, ["mail"])):
            limited.register_script(call.script.text)(keys=list(call.keys), args=list(call.args))
            assert client.hget(KEYS.last_beat, ME) == str(int(NOW) + (5 if call.script is scripts.BEAT else 0))
    assert client.zscore(KEYS.live_queues, "mail") == NOW + 5
    assert client.sismember(KEYS.inprogress_identities, ME)


def test_a_supervisor_whose_server_hides_its_clock_beats_by_its_own(server: Server, client: Client) -> None:
    """R11: as a whole."""
    before = int(time.time())

    async def work(made: Parts) -> None:
        await made.reconciler().register()
        await made.heartbeat().beat()
        assert not made.said.of("redis.error")

    with limited_user(server, client, "-time") as url:
        run(url, work)
    assert before <= int(client.hget(KEYS.last_beat, ME)) <= time.time()


# ---- R29 -----------------------------------------------------------------------------------------------


def test_what_runs_is_published_over_whatever_has_its_key(server: Server, client: Client) -> None:
    """R29: a workers key of the wrong type is replaced."""
    client.rpush(WORKERS, "no hash")

    async def work(made: Parts) -> None:
        await made.heartbeat().publish()
        assert made.said.told == []

    run(server.url, work)
    (entry,) = client.hvals(WORKERS)
    assert json.loads(entry) == {"queue": "default", "payload": json.loads(JOB), "run_at": 1}


@pytest.mark.parametrize("full", [False, True])
def test_what_runs_cannot_be_published_and_the_supervisor_goes_on(full: bool, server: Server, client: Client) -> None:
    """R29: a server that does not let us write that key is logged, in a beat as between beats."""

    async def work(made: Parts) -> None:
        heartbeat = made.heartbeat()
        if full:
            await heartbeat.beat()
            assert made.said.of("redis.refusing", site="publish")
        else:
            with pytest.raises(redis.exceptions.ResponseError):  # the supervisor's turn logs it
                await heartbeat.publish()
        assert made.ledger.busy == 1

    with limited_user(server, client, "resetkeys", "~cogworker:[^w]*") as url:
        run(url, work)
    assert not client.exists(WORKERS)
