"""C17: servers that lack commands, evict, refuse to tell about themselves, or are a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import Client, Daemon, Server, _free_port, eventually, push_raw

Start = Callable[..., Daemon]
JOBS = 50

LIKE_AN_OLD_ONE = ("--rename-command", "LMOVE", "", "--rename-command", "BLMOVE", "", "--rename-command", "LPOS", "")
SILENT = ("--rename-command", "CONFIG", "", "--rename-command", "INFO", "")


@pytest.fixture
def special(make_server: Callable[..., Server]) -> Callable[..., Server]:
    """A server that may not be reached by commands that the test's own client needs: it needs only PING."""
    return make_server


def do_fifty(client: Client, witness: Client) -> None:
    for n in range(JOBS):
        push_raw(client, "book", n)
    eventually(lambda: witness.hlen("t:end") == JOBS, 20)
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}


def presence(client: Client) -> dict[str, Any]:
    (identity,) = client.smembers("cogworker:processes")
    return dict(json.loads(client.hget(f"cogworker:process:{identity}", "info")))


def test_c17_a_server_without_lmove_is_used_with_basic_fetch(
    daemon: Start, special: Callable[..., Server], witness: Client
) -> None:
    """R49: one warning, and the heartbeat says so."""
    server = special(*LIKE_AN_OLD_ONE)
    running = daemon("-c", "2", url=server.url).ready()
    with server.client() as client:
        do_fifty(client, witness)
        assert presence(client)["fetch"] == "basic"
        eventually(lambda: client.get("cogworker:stats:processed") == str(JOBS))
        assert client.keys("cogworker:inprogress*") == []
    assert len(running.lines("fetch.basic")) == 1
    assert running.stop() == 0
    running.clean_log()
    assert running.complaints() == running.lines("fetch.basic")


def test_c17_an_eviction_policy_is_warned_of_once(
    daemon: Start, special: Callable[..., Server], witness: Client
) -> None:
    server = special("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    running = daemon("-c", "2", url=server.url).ready()
    with server.client() as client:
        do_fifty(client, witness)
    (warning,) = running.complaints()
    assert "allkeys-lru" in str(warning)
    assert running.stop() == 0


def test_c17_a_server_that_does_not_tell_about_itself_is_used(
    daemon: Start, special: Callable[..., Server], witness: Client
) -> None:
    server = special(*SILENT)
    running = daemon("-c", "2", url=server.url).ready()
    with server.client() as client:
        do_fifty(client, witness)
    assert running.complaints() == []
    assert running.stop() == 0
    running.clean_log()


def test_c17_a_cluster_is_refused_in_one_line(daemon: Start, special: Callable[..., Server]) -> None:
    # The default port of its bus, 10,000 further up, is none for most free ports.
    server = special("--cluster-enabled", "yes", "--cluster-port", str(_free_port()))
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    running = daemon("-c", "2", url=server.url)
    assert running.exited(15) == 78
    (line,) = running.complaints()
    assert "cluster" in line["error"]
