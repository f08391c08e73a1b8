"""C14: a server that is a replica for a while answers READONLY on lines that stay open; then it forgets all scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cogworkerd import App
from tests.process.server_trouble import check_discipline, nothing_failed, ran_once, says, settled, stays
from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]


@pytest.mark.parametrize("seconds", [3.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_c14_jobs_under_way_while_the_server_is_a_replica_are_all_done_once(
    seconds: float, daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    """R24, R63."""
    server = make_server()
    running = daemon("-c", "4", url=server.url).ready()
    pids = running.child_pids()
    with server.client() as client:
        for n in range(300):
            push_raw(client, "book", n, 0.05)
        eventually(lambda: witness.hlen("t:end") > 40)
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        stays(seconds)
        assert "waiting for Redis" in running.title()
        done = witness.hlen("t:end")
        client.execute_command("REPLICAOF", "NO", "ONE")
        eventually(lambda: witness.hlen("t:end") > done, 5, "fetching goes on")
        ran_once(witness, 300, 20)
        settled(client)
        nothing_failed(client)
        assert client.get("cogworker:stats:processed") == "300"
    check_discipline(running)
    eventually(lambda: "waiting" not in running.title(), 5)
    assert running.child_pids() == pids
    assert running.stop() == 0
    running.clean_log()


def test_c14_a_server_that_forgets_the_scripts_is_no_trouble_at_all(
    daemon: Start, server: Server, client: Client, witness: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R65."""
    monkeypatch.setenv("COGWORKERD_REDIS_URL", server.url)
    app = App()

    @app.job(name="book")
    def book(n: int, seconds: float) -> None:
        pass

    running = daemon("-c", "4").ready()
    for n in range(300):
        book.enqueue(n, 0.05)
        if n % 30 == 0:
            eventually(lambda n=n: witness.hlen("t:end") >= n - 20)
            assert client.script_flush()
            stays(0.3)
    ran_once(witness, 300, 20)
    settled(client)
    nothing_failed(client)
    assert running.stop() == 0
    assert running.complaints() == []
    running.clean_log()


def test_a_replica_whose_primary_is_away_and_that_answers_nothing_is_waited_for(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    """MASTERDOWN, on reads too; all is over once it is a primary again."""
    server = make_server("--replica-serve-stale-data", "no")
    running = daemon("-c", "2", url=server.url).ready()
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        says(running, "waiting for Redis", 15)
        stays(2)
        client.execute_command("REPLICAOF", "NO", "ONE")
        push_raw(client, "book", 1)
        ran_once(witness, 1)
        settled(client)
        nothing_failed(client)
    check_discipline(running)
    eventually(lambda: "waiting" not in running.title(), 5)
    assert running.stop() == 0
    running.clean_log()
