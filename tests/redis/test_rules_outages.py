"""The rules of scripts that the server loses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis.exceptions

from cogworkerd.store import connection, scripts
from cogworkerd.worker.channel import Channel
from tests.supervisor_parts import KEYS, ME, MINE, Parts, parts
from tests.support import Client, Server

LOOK = scripts.look(KEYS, ME)
RUNS = ("eval", "evalsha", "script|load")


def asked(client: Client) -> dict[str, int]:
    """How often the server was asked to run a script, by its text or by its hash, and to load one."""
    told = client.info("commandstats")
    return {name: int(told[f"cmdstat_{name}"]["calls"]) for name in RUNS if f"cmdstat_{name}" in told}


@pytest.fixture
def fresh(client: Client) -> Client:
    """The server knows no script and has counted nothing."""
    client.script_flush()
    client.config_resetstat()
    return client


@pytest.fixture
def channel(server: Server) -> Iterator[Channel]:
    made = Channel(connection.Server.parse(server.url), "child", lambda _: None)
    yield made
    made.close()


def test_a_child_runs_scripts_by_hash_and_loads_one_only_when_it_is_missing(channel: Channel, fresh: Client) -> None:
    """R65: each is loaded once, after the server has said that it has it not, and again after a flush."""
    assert [channel.call(LOOK)[0] for _ in range(3)] == [1, 2, 3]
    assert asked(fresh) == {"evalsha": 4, "script|load": 1}
    fresh.script_flush()
    assert [channel.call(LOOK)[0] for _ in range(2)] == [4, 5]
    assert asked(fresh) == {"evalsha": 7, "script|load": 2}


def test_the_supervisor_runs_scripts_by_hash_and_loads_one_only_when_it_is_missing(
    server: Server, fresh: Client
) -> None:
    """R65."""

    async def work(made: Parts) -> None:
        assert [(await made.link.call(LOOK))[0] for _ in range(3)] == [1, 2, 3]
        assert asked(fresh) == {"evalsha": 4, "script|load": 1}
        fresh.script_flush()
        assert [(await made.link.call(LOOK))[0] for _ in range(2)] == [4, 5]
        assert asked(fresh) == {"evalsha": 7, "script|load": 2}

    async def inside() -> None:
        async with parts(server.url) as made:
            await work(made)

    asyncio.run(inside())


def test_a_child_does_not_repeat_a_script_that_failed_for_another_reason(channel: Channel, fresh: Client) -> None:
    """R65: it may have written."""
    channel.call(LOOK)
    fresh.set(MINE, "no list")
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        channel.call(LOOK)
    assert fresh.get(KEYS.look(ME)) == "2"
    assert asked(fresh) == {"evalsha": 3, "script|load": 1}
