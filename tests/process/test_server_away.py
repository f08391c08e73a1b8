"""The server is away: at boot, in the middle, at the end."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


@pytest.fixture
def mortal(make_server: Callable[..., Server]) -> Server:
    """A server that the test may stop."""
    return make_server()


def test_boot_without_a_server_waits_says_so_and_stops(daemon: Start) -> None:
    """R12."""
    running = daemon("-c", "2", url="redis://127.0.0.1:1/0")
    eventually(lambda: "waiting for Redis" in running.title(), 10)
    assert running.lines("daemon.waiting")
    assert running.children() == []
    assert running.stop(8) == 0
    running.clean_log()


def test_boot_goes_on_when_the_server_comes(daemon: Start, mortal: Server, witness: Client) -> None:
    mortal.stop()
    running = daemon("-c", "1", url=mortal.url)
    eventually(lambda: running.lines("daemon.waiting"), 10)
    mortal.start()
    running.ready()
    with mortal.client() as client:
        push_raw(client, "book", 1)
        eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0


@pytest.mark.parametrize("moment", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_a_stop_with_the_server_dead_ends_in_time(daemon: Start, mortal: Server, moment: int) -> None:
    """Coroutines are cancelled in whatever they are at; none may live on."""
    running = daemon("-c", "2", url=mortal.url).ready()
    mortal.stop()
    eventually(lambda: len(running.lines("redis.away")) > moment, 15)
    assert running.stop(15) == 0
    running.clean_log()


def test_a_stop_with_the_server_hanging_ends_in_time(daemon: Start, mortal: Server) -> None:
    running = daemon("-c", "2", "--shutdown-timeout", "3", url=mortal.url).ready()
    assert mortal.process is not None
    mortal.process.send_signal(signal.SIGSTOP)
    assert running.stop(14) == 0


def test_a_restart_of_the_server_keeps_the_children_and_the_work(
    daemon: Start, mortal: Server, witness: Client
) -> None:
    """A job that ended while the server was away is settled afterwards and not run again (R24, P16)."""
    mortal.stop()
    mortal.options = ("--appendonly", "yes", "--appendfsync", "always")
    mortal.start()
    running = daemon("-c", "2", url=mortal.url).ready()
    pids = running.child_pids()
    with mortal.client() as client:
        push_raw(client, "book", 1, 2)
        push_raw(client, "boom", retry=3)
        eventually(lambda: witness.hget("t:start", "1") == "1")
        mortal.stop()
        eventually(lambda: witness.hget("t:end", "1") == "1")
        mortal.start()
    with mortal.client() as client:
        eventually(lambda: inprogress(client) == [], 15)
        push_raw(client, "book", 2)
        eventually(lambda: witness.hget("t:end", "2") == "1", 10)
        eventually(lambda: client.get("cogworker:stats:processed") == "2")
        assert client.zcard("cogworker:retry") == 1
    assert witness.hgetall("t:start") == {"1": "1", "2": "1"}
    assert running.child_pids() == pids
    assert not running.lines("redis.error")
    assert running.stop() == 0
    running.clean_log()
