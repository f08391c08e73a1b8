"""C10: two daemons in containers with one host name and one pid are two; neither takes the other's jobs for its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.process.containers import (
    CONTAINER,
    HOST,
    allowed,
    identity,
    kill_container,
    start_container,
    stop_container,
)
from tests.process.server_trouble import ran_once, settled
from tests.support import Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]

pytestmark = pytest.mark.skipif(not allowed(CONTAINER), reason="this user may not make these namespaces")

JOBS = 100


def _two(daemon: Start, client: Client) -> tuple[Daemon, Daemon]:
    first = start_container(daemon, "-c", "4", "--orphan-threshold", "10").ready()
    second = start_container(daemon, "-c", "4", "--orphan-threshold", "10").ready()
    names = client.smembers("cogworker:processes")
    assert len(names) == 2
    assert names == {identity(first), identity(second)}
    for name in names:
        assert name.startswith(f"{HOST}:1:")
        assert client.exists(f"cogworker:process:{name}")
    return first, second


def test_c10_two_of_one_name_and_pid_do_all_jobs_once(daemon: Start, client: Client, witness: Client) -> None:
    first, second = _two(daemon, client)
    for n in range(JOBS):
        push_raw(client, "book", n, 0.3)
    ran_once(witness, JOBS, 30)
    settled(client)
    assert client.get("cogworker:stats:processed") == str(JOBS)
    for running in (first, second):
        assert stop_container(running) == 0
        assert not running.lines("recovery.done")
        assert not running.lines("job.stray")
        running.clean_log()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_c10_only_what_a_killed_one_held_is_started_again(daemon: Start, client: Client, witness: Client) -> None:
    first, second = _two(daemon, client)
    for n in range(JOBS):
        push_raw(client, "book", n, 0.3)
    eventually(lambda: witness.hlen("t:end") >= JOBS // 2, 30)
    assert set(witness.hvals("t:start")) == {"1"}
    kill_container(first)
    held = client.lrange(f"cogworker:inprogress:{identity(first)}", 0, -1)
    assert 1 <= len(held) <= 4

    eventually(lambda: witness.hlen("t:end") == JOBS, 180)
    # One that had come to its end, and was not settled yet, ends twice.
    assert set(witness.hvals("t:end")) <= {"1", "2"}
    again = {n for n, starts in witness.hgetall("t:start").items() if starts != "1"}
    assert len(again) <= 4
    assert all(witness.hget("t:start", n) == "2" for n in again)
    assert {n for n, ends in witness.hgetall("t:end").items() if ends == "2"} <= again
    assert all(any(f'"args": [{n}, 0.3]' in raw for raw in held) for n in again)
    settled(client)
    assert stop_container(second) == 0
    second.clean_log()
