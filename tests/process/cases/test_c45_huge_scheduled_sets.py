"""C45: very many jobs due at once, moved by two daemons: none lost, none copied, nobody waits for the other set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]

RETRY, SCHEDULE, PARKED = "cogworker:retry", "cogworker:schedule", "cogworker:queue:parked"


def _fill(client: Client, count: int) -> None:
    for key in (RETRY, SCHEDULE):
        for start in range(0, count, 1000):
            entries = {
                json.dumps({"class": "book", "args": [n], "queue": "parked", "jid": f"{key[-3:]}{n}"}): 1 + n / count
                for n in range(start, min(start + 1000, count))
            }
            client.zadd(key, entries)


def _sizes(client: Client) -> tuple[int, int, int]:
    """Of retry, schedule and the queue, at one moment."""
    with client.pipeline(transaction=True) as pipe:
        pipe.zcard(RETRY)
        pipe.zcard(SCHEDULE)
        pipe.llen(PARKED)
        retry, schedule, parked = pipe.execute()
    return retry, schedule, parked


def _oldest_beat(client: Client) -> float:
    """Age in seconds, by the server's clock."""
    now = float(client.time()[0])
    return max(now - float(stamp) for stamp in client.hvals("cogworker:last_beat"))


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_c45_two_daemons_move_two_huge_sets_and_lose_or_copy_nothing(
    count: int, daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    server = make_server("--slowlog-log-slower-than", "100000")
    with server.client() as client:
        _fill(client, count)
        late = json.dumps({"class": "book", "args": [-1], "queue": "parked", "jid": "late"})
        client.zadd(SCHEDULE, {late: time.time() + 2})
        client.slowlog_reset()
        running = [daemon("-c", "1", url=server.url) for _ in range(2)]
        seen: list[tuple[int, int, int]] = []

        def moved() -> bool:
            seen.append(_sizes(client))
            assert sum(seen[-1]) == 2 * count + 1
            if len(seen) % 20 == 1 and client.exists("cogworker:last_beat"):
                assert _oldest_beat(client) <= 10
            return seen[-1][:2] == (0, 0)

        for started in running:
            started.ready()
        push_raw(client, "book", "served")
        eventually(moved, 60)
        assert witness.hget("t:end", "served") == "1"
        # Neither set waited until the other was empty.
        assert any(0 < retry < count and 0 < schedule < count + 1 for retry, schedule, _ in seen)
        assert not any(retry == 0 and schedule > count for retry, schedule, _ in seen)
        assert len({json.loads(job)["jid"] for job in client.lrange(PARKED, 0, -1)}) == 2 * count + 1
        assert client.slowlog_get() == []
        for started in running:
            assert started.stop() == 0


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_c45_a_daemon_killed_in_the_middle_of_the_move_takes_nothing_with_it(
    count: int, daemon: Start, client: Client
) -> None:
    running = [daemon("-c", "1").ready() for _ in range(2)]
    _fill(client, count)
    total = sum(_sizes(client))
    assert total == 2 * count
    eventually(lambda: _sizes(client)[2] > 0)
    running[0].process.kill()
    assert _sizes(client)[2] > 0
    eventually(lambda: _sizes(client) == (0, 0, total), 60)
    assert len(set(client.lrange(PARKED, 0, -1))) == total
    assert len({json.loads(job)["jid"] for job in client.lrange(PARKED, 0, -1)}) == total
    assert running[1].stop() == 0
