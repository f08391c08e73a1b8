"""A server that is there and refuses: nothing is lost, run twice or counted as failed; title and log say it in its own
words, and afterwards everything is settled."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.process.server_trouble import (
    check_discipline,
    nothing_failed,
    one_thread,
    ran_once,
    says,
    says_no_more,
    settled,
    sites,
    stays,
)
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]
MakeServer = Callable[..., Server]

REFUSES = "Redis refuses writes"


@dataclass(frozen=True)
class Refusal:
    """How a server is made to refuse, and to stop that.

    Attributes:
        words: what its sentence holds.
        removals: it still lets entries be removed, and a script go on that has begun with that: jobs are settled and
            fetched as long as none fails.
    """

    options: tuple[str, ...]
    begin: Callable[[Server, Client], None]
    end: Callable[[Server, Client], None]
    words: str
    removals: bool = False


def _break_saving(server: Server, client: Client) -> None:
    """Its folder is gone: the next snapshot fails, and from then on it refuses writes."""
    shutil.rmtree(server.folder)
    client.set("something", "to save")
    eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 15)


def _allow_writes(server: Server, client: Client) -> None:
    client.config_set("stop-writes-on-bgsave-error", "no")


def _set(name: str, value: str) -> Callable[[Server, Client], None]:
    return lambda server, client: client.config_set(name, value)


REFUSALS = {
    "MISCONF": Refusal(("--save", "1 1"), _break_saving, _allow_writes, "snapshot"),
    "OOM": Refusal((), _set("maxmemory", "1mb"), _set("maxmemory", "0"), "maxmemory", removals=True),
    "NOREPLICAS": Refusal((), _set("min-replicas-to-write", "1"), _set("min-replicas-to-write", "0"), "replicas"),
}


def _each(*quick: str) -> pytest.MarkDecorator:
    """Each kind of refusal; those that are not named here are slow."""
    kinds = [pytest.param(kind, marks=() if kind in quick else pytest.mark.slow) for kind in REFUSALS]
    return pytest.mark.parametrize("kind", kinds)


each_refusal = _each(*REFUSALS)


@_each("MISCONF")
def test_jobs_that_run_meanwhile_end_and_are_settled_afterwards(
    kind: str, daemon: Start, make_server: MakeServer, witness: Client
) -> None:
    """Two that succeed, one that fails, and one that waits in its queue."""
    refusal = REFUSALS[kind]
    server = make_server(*refusal.options)
    running = daemon("-c", "3", url=server.url, target="life_jobs:app").ready()
    pids = running.child_pids()
    with server.client() as client:
        push_raw(client, "book", 1, 4)
        push_raw(client, "book", 2, 4)
        jid = push_raw(client, "boom", "t:boom", 4, retry=3)
        push_raw(client, "book", 3)
        eventually(lambda: "[3/3 busy]" in running.title())
        refusal.begin(server, client)
        assert witness.hlen("t:end") == 0, "they ended too early for this test"
        eventually(lambda: witness.hlen("t:end") == (3 if refusal.removals else 2), 10)
        says(running, REFUSES)
        stays(3)  # long enough for each site to try more than once
        assert REFUSES in running.title()
        if refusal.removals:
            eventually(lambda: len(inprogress(client)) == 1)
        else:
            assert witness.hlen("t:start") == 2
            assert len(inprogress(client)) == 3
        refusal.end(server, client)

        ran_once(witness, 3, 20)
        settled(client)
        (entry,) = client.zrange("cogworker:retry", 0, -1)
        filed = json.loads(entry)
        assert (filed["jid"], filed["retry_count"]) == (jid, 1)
        assert client.zcard("cogworker:dead") == 0
        assert client.keys("cogworker:orphanings:*") == []
        assert client.get("cogworker:stats:processed") == "3"
        assert client.get("cogworker:stats:failed") == "1"
    assert witness.get("t:boom") == "1"
    assert running.child_pids() == pids
    assert one_thread(running)
    _is_over(running, refusal)


@_each("NOREPLICAS")
def test_a_daemon_at_rest_says_it_once_and_fetches_again_afterwards(
    kind: str, daemon: Start, make_server: MakeServer, witness: Client
) -> None:
    """Refused on the way of a fetch."""
    refusal = REFUSALS[kind]
    server = make_server(*refusal.options)
    running = daemon("-c", "3", url=server.url).ready()
    pids = running.child_pids()
    with server.client() as client:
        push_raw(client, "book", 1)
        ran_once(witness, 1)
        refusal.begin(server, client)
        says(running, REFUSES)
        stays(3)
        assert REFUSES in running.title()
        refusal.end(server, client)
        push_raw(client, "book", 2)
        ran_once(witness, 2, 20)
        settled(client)
        nothing_failed(client)
    assert running.child_pids() == pids
    _is_over(running, refusal)


@_each("OOM")
def test_a_job_that_falls_due_meanwhile_is_moved_soon_afterwards(
    kind: str, daemon: Start, make_server: MakeServer, witness: Client
) -> None:
    refusal = REFUSALS[kind]
    server = make_server(*refusal.options)
    running = daemon("-c", "2", url=server.url).ready()
    with server.client() as client:
        due = {"class": "book", "args": [1], "queue": "default", "jid": "b" * 24, "retry": 3}
        begin = time.time() + 3
        client.zadd("cogworker:schedule", {json.dumps(due): begin})
        refusal.begin(server, client)
        eventually(lambda: time.time() > begin + 2, 10)  # it was due, and was tried
        assert client.zcard("cogworker:schedule") == 1
        refusal.end(server, client)
        ran_once(witness, 1)
        settled(client)
        nothing_failed(client)
    _is_over(running, refusal)


def _is_over(running: Daemon, refusal: Refusal) -> None:
    check_discipline(running)
    # A refusal is never taken for an absence (a busy machine may time a wait out: that is one).
    assert not [line for line in running.lines("redis.away") if refusal.words in line["error"]]
    for line in running.lines("redis.refusing"):
        assert refusal.words in line["error"], line
    says_no_more(running, REFUSES)
    assert running.stop() == 0
    running.clean_log()


@_each("OOM")
def test_a_stop_meanwhile_ends_in_time_and_what_was_not_settled_is_recovered(
    kind: str, daemon: Start, make_server: MakeServer, witness: Client
) -> None:
    """The job that was under way cannot be settled or put back: it stays listed for others."""
    refusal = REFUSALS[kind]
    server = make_server(*refusal.options)
    running = daemon("-c", "2", "--shutdown-timeout", "3", url=server.url).ready()
    with server.client() as client:
        push_raw(client, "book", 1, 60)
        eventually(lambda: witness.hget("t:start", "1") == "1")
        refusal.begin(server, client)
        says(running, REFUSES)
        assert running.stop(15) == 0
        running.clean_log()
        assert len(inprogress(client)) == 1
        refusal.end(server, client)
        heir = daemon("-c", "2", "--shutdown-timeout", "1", url=server.url).ready()
        eventually(lambda: witness.hget("t:start", "1") == "2", 20)
        assert len(inprogress(client)) == 1
        assert client.zcard("cogworker:dead") == 0
    assert heir.stop() == 0
    heir.clean_log()


@each_refusal
def test_a_boot_waits_says_why_and_goes_on_afterwards(
    kind: str, daemon: Start, make_server: MakeServer, witness: Client
) -> None:
    refusal = REFUSALS[kind]
    server = make_server(*refusal.options)
    with server.client() as client:
        push_raw(client, "book", 1)
        refusal.begin(server, client)
        running = daemon("-c", "1", url=server.url)
        says(running, REFUSES)
        eventually(lambda: sites(running, "redis.refusing"))
        assert len(running.lines("daemon.waiting")) == 1
        assert refusal.words in running.lines("daemon.waiting")[0]["error"]
        assert running.children() == []
        refusal.end(server, client)
        running.ready()
        ran_once(witness, 1)
        settled(client)
    _is_over(running, refusal)


@each_refusal
def test_a_boot_that_waits_stops_when_it_is_told(kind: str, daemon: Start, make_server: MakeServer) -> None:
    refusal = REFUSALS[kind]
    server = make_server(*refusal.options)
    with server.client() as client:
        refusal.begin(server, client)
        running = daemon("-c", "1", url=server.url)
        says(running, REFUSES)
        assert running.stop(8) == 0
    running.clean_log()
    assert running.lines("child.started") == []


def _no_more_clients(client: Client) -> None:
    """Only the one that asks for this is served."""
    client.config_set("maxclients", 1)
    client.client_kill_filter(_type="normal", skipme=True)


def test_too_many_clients_is_a_refusal_and_all_come_back_afterwards(
    daemon: Start, make_server: MakeServer, witness: Client
) -> None:
    server = make_server()
    running = daemon("-c", "3", url=server.url).ready()
    pids = running.child_pids()
    with server.client(single_connection_client=True) as client:
        push_raw(client, "book", 1, 3)
        eventually(lambda: witness.hget("t:start", "1") == "1")
        _no_more_clients(client)
        says(running, REFUSES)
        eventually(lambda: witness.hget("t:end", "1") == "1")
        stays(3)
        assert REFUSES in running.title()
        client.config_set("maxclients", 10_000)
        push_raw(client, "book", 2)
        ran_once(witness, 2)
        settled(client)
        nothing_failed(client)
        assert client.get("cogworker:stats:processed") == "2"
    check_discipline(running)
    says_no_more(running, REFUSES)
    assert any("max number of clients" in line["error"] for line in _begun(running))
    assert running.child_pids() == pids
    assert running.stop() == 0
    running.clean_log()


def _begun(running: Daemon) -> list[dict[str, str]]:
    return running.lines("redis.refusing") + running.lines("redis.away")


def test_a_boot_with_too_many_clients_waits_and_says_so(
    daemon: Start, make_server: MakeServer, witness: Client
) -> None:
    server = make_server()
    with server.client(single_connection_client=True) as client:
        push_raw(client, "book", 1)
        _no_more_clients(client)
        running = daemon("-c", "1", url=server.url)
        says(running, REFUSES)
        (waiting,) = running.lines("daemon.waiting")
        assert "max number of clients" in waiting["error"]
        client.config_set("maxclients", 10_000)
        running.ready()
        ran_once(witness, 1)
    check_discipline(running)
    says_no_more(running, REFUSES)
    assert running.stop() == 0
    running.clean_log()
