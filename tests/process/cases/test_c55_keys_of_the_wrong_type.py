"""C55: keys of ours that another program has left behind with the wrong type are moved aside, and work goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.support import ROOT, Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]

# What is put where, and what the copy must still hold.
WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "cogworker:queue:default": (("SET", "x"), "string"),
    "cogworker:schedule": (("LPUSH", "x"), "list"),
    "cogworker:retry": (("SADD", "x"), "set"),
    "cogworker:dead": (("SET", "x"), "string"),
    "cogworker:processes": (("SET", "x"), "string"),
    "cogworker:queues": (("HSET", "a", "b"), "hash"),
}


def damage(client: Client, keys: dict[str, tuple[tuple[Any, ...], str]]) -> None:
    for key, ((command, *values), _) in keys.items():
        client.delete(key)
        client.execute_command(command, key, *values)


def copies(client: Client, key: str) -> list[str]:
    return sorted(client.scan_iter(f"cogworker:quarantine:{key}:*"))


def assert_moved(client: Client, keys: dict[str, tuple[tuple[Any, ...], str]], count: int) -> None:
    for key, (_, kind) in keys.items():
        eventually(lambda key=key: len(copies(client, key)) == count, 15, f"{count} copies of {key}")
        for name in copies(client, key):
            assert client.type(name) == kind
            assert 0 < client.ttl(name) <= 2_592_000


def status(server: Server) -> dict[str, Any]:
    command = [sys.executable, "-m", "cogworkerd", "status", "--json", "--redis-url", server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return dict(json.loads(done.stdout))


def test_c55_keys_of_the_wrong_type_before_the_start_and_while_running(
    daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    """R8, R60, R62: each is moved once, with one warning, and the job is done."""
    damage(client, WRONG)
    running = daemon("-c", "2")
    pid = running.pid
    eventually(lambda: "cogworkerd:supervisor" in running.title(), 10)
    assert set(status(server)["sets"]) == {"scheduled", "retry", "dead"}
    running.ready()
    assert_moved(client, WRONG, 1)
    push_raw(client, "book", 1, 0)
    eventually(lambda: witness.hget("t:end", "1") == "1", 10)
    assert sorted(line["key"] for line in running.lines("key.quarantined")) == sorted(WRONG)

    (identity,) = eventually(lambda: client.smembers("cogworker:processes"))
    more = {
        **WRONG,
        f"cogworker:inprogress:{identity}": (("SET", "x"), "string"),
        f"cogworker:process:{identity}": (("SET", "x"), "string"),
    }
    before = len(running.lines("key.quarantined"))
    damage(client, more)
    assert status(server)["stats"]["processed"] == 1
    for key, (_, kind) in more.items():
        eventually(lambda key=key, kind=kind: client.type(key) != kind, 15, f"{key} is moved")
    push_raw(client, "book", 2, 0)
    eventually(lambda: witness.hget("t:end", "2") == "1", 10)
    lines = running.lines("key.quarantined")[before:]
    assert sorted(line["key"] for line in lines) == sorted(more)
    assert all(line["level"] == "warning" for line in lines)
    assert running.pid == pid
    assert running.process.poll() is None
    eventually(lambda: client.exists(f"cogworker:process:{identity}"), 10)
    assert running.stop() == 0
    assert "daemon.crashed" not in running.text()


def test_a_job_that_fails_while_its_set_is_damaged_is_filed_afterwards(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R24, R60: the outcome is remembered until the set is in order."""
    running = daemon("-c", "1").ready()
    client.set("cogworker:dead", "x")
    push_raw(client, "fatal", retry=False)
    eventually(lambda: client.type("cogworker:dead") == "zset" and client.zcard("cogworker:dead") == 1, 20)
    assert len(copies(client, "cogworker:dead")) == 1
    assert client.get("cogworker:stats:failed") == "1"
    assert running.stop() == 0


def test_at_most_five_copies_of_one_key_are_kept(daemon: Start, client: Client) -> None:
    """R61: the newest; and copies of a key whose name begins alike are left alone."""
    other = "cogworker:quarantine:cogworker:queue:mail:1700000000000:0123abcd:1700000000000:0123abcd"
    client.set(other, "another key's")
    for n in range(7):
        client.set(f"cogworker:quarantine:cogworker:queue:mail:170000000000{n}:0123abcd", n)
    client.sadd("cogworker:queues", "mail")
    client.set("cogworker:queue:mail", "x")
    daemon("-c", "1", "-q", "mail").ready()
    eventually(lambda: len(copies(client, "cogworker:queue:mail")) == 6)
    kept = [name for name in copies(client, "cogworker:queue:mail") if name != other]
    assert client.get(other) == "another key's"
    assert [client.get(name) for name in kept] == ["3", "4", "5", "6", "x"]
