"""Locks that the server does not let a settlement release (R17, R51)."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from cogworkerd.unique import unique_digest
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def lock_of(name: str, *args: object) -> str:
    return f"cogworker:unique:{unique_digest({'class': name, 'args': list(args)}, 'default')}"


def push_with_lock(client: Client, name: str, *args: object) -> str:
    jid = secrets.token_hex(12)
    client.set(lock_of(name, *args), jid, ex=1000)  # first: the job may be over a moment after its push
    return push_raw(client, name, *args, jid=jid, unique="until_executed")


@pytest.fixture
def denying(make_server: Callable[..., Server]) -> Server:
    """A server whose user `worker` may not use DEL."""
    server = make_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", "-del")
    return server


@pytest.mark.parametrize("fetch", ["reliable", "basic"])
def test_a_refused_release_is_remembered_and_made_on_a_later_beat(
    fetch: str, daemon: Start, denying: Server, witness: Client
) -> None:
    running = daemon("-c", "1", "--fetch", fetch, url=f"redis://worker:secret@127.0.0.1:{denying.port}/0").ready()
    with denying.client() as client:
        jid = push_with_lock(client, "book", 1)
        stolen = push_with_lock(client, "book", 2)
        (line, _) = eventually(lambda: len(running.lines("lock.deferred")) == 2 and running.lines("lock.deferred"))
        assert (line["lock"], line["jid"]) == (lock_of("book", 1), jid)
        assert inprogress(client) == []
        assert client.get(lock_of("book", 1)) == jid
        client.set(lock_of("book", 2), "another")
        client.execute_command("ACL", "SETUSER", "worker", "+del")
        eventually(lambda: not client.exists(lock_of("book", 1)), 10)
        assert client.get(lock_of("book", 2)) == "another"
        assert stolen != "another"
        assert len(running.lines("lock.deferred")) == 2
    assert running.stop() == 0
    running.clean_log()


def test_a_refused_release_is_made_at_stop(daemon: Start, denying: Server, witness: Client) -> None:
    running = daemon("-c", "1", url=f"redis://worker:secret@127.0.0.1:{denying.port}/0").ready()
    with denying.client() as client:
        push_with_lock(client, "book", 1)
        eventually(lambda: running.lines("lock.deferred"))
        client.execute_command("ACL", "SETUSER", "worker", "+del")
        assert running.stop() == 0
        assert not client.exists(lock_of("book", 1))


def test_a_lock_of_another_type_is_dropped_with_one_line(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "1").ready()
    client.lpush(lock_of("book", 1), "x")
    jid = push_raw(client, "book", 1, unique="until_executed")
    (line,) = eventually(lambda: running.lines("lock.dropped"))
    assert (line["lock"], line["jid"]) == (lock_of("book", 1), jid)
    assert inprogress(client) == []
    assert running.stop() == 0
    assert len(running.lines("lock.dropped")) == 1
