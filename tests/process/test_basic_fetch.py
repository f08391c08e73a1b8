"""Basic fetch: chosen, or fallen back to. Nothing on the server holds a job while it runs; the supervisor does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest

from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]


def test_basic_fetch_by_setting_performs_retries_and_buries(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "2", "--fetch", "basic").ready()
    push_raw(client, "book", 1)
    push_raw(client, "flaky", 1, retry=3)
    push_raw(client, "fatal", retry=False)
    client.lpush("cogworker:queue:default", "nonsense")
    eventually(lambda: witness.hget("t:end", "1") == "1")
    eventually(lambda: witness.lrange("t:flaky:1", 0, -1) == ["1", "2"], 15)
    eventually(lambda: client.zcard("cogworker:dead") == 2)
    eventually(lambda: client.get("cogworker:stats:processed") == "2")
    assert client.get("cogworker:stats:failed") == "3"
    assert client.keys("cogworker:inprogress*") == []
    assert running.lines("fetch.basic") == [], "it was asked for"
    assert running.stop() == 0
    running.clean_log()


def test_basic_fetch_gives_the_job_of_a_dead_child_back_with_the_blame(
    daemon: Start, client: Client, witness: Client
) -> None:
    daemon("-c", "1", "--fetch", "basic").ready()
    jid = push_raw(client, "pidof", "t:pid", 2)
    pid = int(eventually(lambda: witness.lrange("t:pid", 0, -1))[0])
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: witness.llen("t:pid") == 2, 10)
    assert client.get(f"cogworker:orphanings:{jid}") == "1"
    eventually(lambda: witness.llen("t:pid:done") == 1, 10)
    eventually(lambda: not client.exists(f"cogworker:orphanings:{jid}"))


def test_basic_fetch_skips_paused_queues_and_returns_to_them(daemon: Start, client: Client, witness: Client) -> None:
    client.sadd("cogworker:paused_queues", "slow")
    daemon("-c", "2", "--fetch", "basic", "-q", "slow", "-q", "default").ready()
    push_raw(client, "book", 1, queue="slow")
    for n in range(2, 12):
        push_raw(client, "book", n)
    eventually(lambda: witness.hlen("t:end") == 10)
    assert client.llen("cogworker:queue:slow") == 1
    client.srem("cogworker:paused_queues", "slow")
    eventually(lambda: witness.hget("t:end", "1") == "1", 10)


def test_basic_fetch_hands_what_runs_back_at_the_end_of_the_drain(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "2", "--fetch", "basic", "--shutdown-timeout", "1").ready()
    push_raw(client, "book", 1, 30)
    push_raw(client, "book", 2, 0)
    eventually(lambda: witness.hlen("t:start") == 2)
    assert running.stop(10) == 0
    assert client.llen("cogworker:queue:default") == 1
    assert witness.hgetall("t:end") == {"2": "1"}


def test_an_orphaned_child_ends_its_job_and_settles_it_alone(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "1", "--fetch", "basic").ready()
    push_raw(client, "book", 1, 2)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    children = running.children()
    running.signal(signal.SIGKILL)
    eventually(lambda: client.get("cogworker:stats:processed") == "1", 10)
    psutil.wait_procs(children, 10)
    assert witness.hget("t:end", "1") == "1"


def allow(client: Client, *rules: str) -> None:
    client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", "~*", "&*", "+@all", *rules)


def url_of(server: Server) -> str:
    return f"redis://worker:secret@127.0.0.1:{server.port}/0"


def test_rights_that_lack_lmove_lead_to_basic_fetch(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    """R49: by ACL the server's sentence is another one."""
    server = make_server()
    with server.client() as client:
        allow(client, "-lmove", "-blmove", "-lpos")
        running = daemon("-c", "2", url=url_of(server)).ready()
        push_raw(client, "book", 1)
        eventually(lambda: witness.hget("t:end", "1") == "1")
    (line,) = running.lines("fetch.basic")
    assert "lmove" in line["reason"].lower()
    assert running.stop() == 0


@pytest.mark.parametrize("lost", ["-lmove", "-blmove"])
def test_a_command_that_is_missed_on_the_first_fetch_leads_to_basic_fetch(
    lost: str, daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    """R49: also when that is only noticed on the first fetch."""
    server = make_server()
    with server.client() as client:
        allow(client)
        running = daemon("-c", "2", url=url_of(server)).ready()
        client.execute_command("ACL", "SETUSER", "worker", lost)
        eventually(lambda: len(running.lines("fetch.basic")) == 1, 20)
        push_raw(client, "book", 1)
        eventually(lambda: witness.hget("t:end", "1") == "1", 20)
    assert len(running.lines("fetch.basic")) == 1
    assert running.stop() == 0
    running.clean_log()


def test_a_server_that_is_away_is_no_reason_for_basic_fetch(daemon: Start, make_server: Callable[..., Server]) -> None:
    """R49: it is decided when it is known, not guessed."""
    server = make_server()
    server.stop()
    running = daemon("-c", "1", url=server.url)
    eventually(lambda: running.lines("daemon.waiting"), 10)
    server.start()
    running.ready()
    assert running.lines("fetch.basic") == []
    assert running.stop() == 0
