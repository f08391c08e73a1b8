"""C43, C48 and C53 from the command line: poison is listed, shown and got back to the byte; what deletes a unique job
frees its lock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from cogworkerd import App
from cogworkerd.inspect import DeadSet
from cogworkerd.payload import id_of_bytes
from tests.support import Client, Daemon, Server, eventually

Start = Callable[..., Daemon]
Command = Callable[..., subprocess.CompletedProcess[bytes]]

# C43, as they come from schedule and retry; the last is taken for no job, too.
NO_JOBS = [
    *(b"not json", b'{"class":', b"[]", b"42", b"null", b"{}", b'{"class":7,"queue":"default"}'),
    b'{"class":"book","args":"no list","jid":"j1","queue":"default"}',
]
# C48, as they come from a queue.
GOOD = '{"class":"book","args":["x"],"queue":"default","jid":"x"}'
BYTES = [b"\xff\xfe\x00{", b"", GOOD.encode("utf-16"), GOOD.encode().replace(b'"x"]', b'"x\x80x"]'), b"\r\n\x00"]


@pytest.fixture
def command(server: Server, tmp_path: Path) -> Command:
    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "cogworkerd", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "COGWORKERD_REDIS_URL": server.url},
        )

    return run


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    made = App(server.url)
    yield made
    made.client.close()


def push_bytes(server: Server, key: str, *values: bytes) -> None:
    with redis.Redis(port=server.port) as raw:
        if key == "queue":
            raw.sadd("cogworker:queues", "default")
            raw.lpush("cogworker:queue:default", *values)
        else:
            raw.zadd(f"cogworker:{key}", dict.fromkeys(values, 1))


# ---- C43, C48 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "poison"),
    [("schedule", NO_JOBS), pytest.param("retry", NO_JOBS, marks=pytest.mark.slow), ("queue", BYTES)],
    ids=["C43 schedule", "C43 retry", "C48 queue"],
)
def test_c43_c48_poison_in_dead_is_listed_shown_and_given_back_to_the_byte(
    place: str, poison: list[bytes], daemon: Start, server: Server, client: Client, command: Command, app: App
) -> None:
    push_bytes(server, place, *poison)
    running = daemon("-c", "1").ready()
    eventually(lambda: client.zcard("cogworker:dead") == len(poison), 15)
    listed = command("jobs", "list", "dead", "--limit", "100")
    assert listed.returncode == 0, listed.stderr
    for raw in poison:
        jid = id_of_bytes(raw)
        assert jid in listed.stdout.decode()
        shown = command("jobs", "show", jid)
        assert (shown.returncode, b'"in": "dead"' in shown.stdout) == (0, True), shown.stderr
        got = command("jobs", "show", jid, "--raw")
        assert (got.returncode, got.stdout) == (0, raw), got.stderr
    assert sorted(entry.original for entry in DeadSet(app)) == sorted(poison)
    assert [entry for entry in DeadSet(app) if entry.is_job] == []
    refused = command("jobs", "retry", id_of_bytes(poison[0]))
    assert (refused.returncode, b"these bytes are no job" in refused.stderr) == (2, True)
    assert command("jobs", "retry", "--from", "dead", "--all", "--yes").stdout == b"dead: 0 jobs, on its queue\n"
    assert client.zcard("cogworker:dead") == len(poison)
    assert command("jobs", "delete", id_of_bytes(poison[0]), "--yes").returncode == 0
    assert command("jobs", "delete", "--from", "dead", "--all", "--yes").returncode == 0
    assert client.zcard("cogworker:dead") == 0
    assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["scheduled", "retry", "dead", "queue:default"])
def test_c43_c48_poison_that_lies_anywhere_is_listed_shown_given_back_and_deleted(
    place: str, server: Server, command: Command
) -> None:
    key = {"scheduled": "schedule", "queue:default": "queue"}.get(place, place)
    poison = [*NO_JOBS, *BYTES]
    push_bytes(server, key, *poison)
    listed = command("jobs", "list", place, "--limit", "100")
    assert (listed.returncode, listed.stdout.count(b"(unparseable)")) == (0, len(poison)), listed.stderr
    assert command("jobs", "list", place, "--limit", "100", "--json").returncode == 0
    for raw in poison:
        jid = id_of_bytes(raw)
        assert command("jobs", "show", jid, "--raw").stdout == raw
        assert command("jobs", "delete", jid, "--yes").returncode == 0
    assert command("jobs", "list", place).stdout.endswith(b": there is none\n")


def test_c48_large_bytes_are_given_back_to_the_byte(
    daemon: Start, server: Server, client: Client, command: Command
) -> None:
    """More than what is kept as text, less than what is kept at all."""
    raw = b"{" + "é".encode() * 150_000
    push_bytes(server, "queue", raw)
    running = daemon("-c", "1").ready()
    eventually(lambda: client.zcard("cogworker:dead") == 1, 15)
    assert command("jobs", "show", id_of_bytes(raw), "--raw").stdout == raw
    assert running.stop() == 0


def test_c48_bytes_of_more_than_a_mebibyte_are_given_back_or_said_to_be_cut(
    daemon: Start, server: Server, client: Client, command: Command
) -> None:
    raw = b"{" + b"x" * (2**20 + 100)
    push_bytes(server, "queue", raw)
    running = daemon("-c", "1").ready()
    eventually(lambda: client.zcard("cogworker:dead") == 1, 15)
    got = command("jobs", "show", id_of_bytes(raw), "--raw")
    assert running.stop() == 0
    assert got.stdout == raw or b"cut" in got.stderr


def test_c48_an_entry_that_only_claims_to_hold_bytes_is_shown(client: Client, command: Command) -> None:
    client.zadd("cogworker:dead", {'{"class":"(unparseable)","jid":"claims","raw_payload_base64":"x"}': 1})
    got = command("jobs", "show", "claims", "--raw")
    assert b"Traceback" not in got.stderr


def test_c48_a_job_with_a_lone_surrogate_in_its_arguments_is_shown(client: Client, command: Command) -> None:
    client.zadd("cogworker:dead", {r'{"class":"book","jid":"lone","args":["\ud800"]}': 1})
    got = command("jobs", "show", "lone")
    assert (got.returncode, b"Traceback" in got.stderr) == (0, False), got.stderr


# ---- C53 ------------------------------------------------------------------------------------------------


def _queued(app: App) -> str | None:
    return app.push("boom", [1], unique="until_executed")


def _scheduled(app: App) -> str | None:
    return app.push("boom", [1], unique="until_executed", at=4e9)


DELETIONS = {
    "a job on its queue": (_queued, ("jobs", "delete", "JID", "--yes")),
    "a scheduled job": (_scheduled, ("jobs", "delete", "JID", "--yes")),
    "all scheduled jobs": (_scheduled, ("jobs", "delete", "--from", "scheduled", "--all", "--yes")),
    "scheduled jobs of a name": (_scheduled, ("jobs", "delete", "--from", "scheduled", "--name", "boom", "--yes")),
    "a queue": (_queued, ("queues", "clear", "default", "--yes")),
}


@pytest.mark.parametrize(("push", "words"), DELETIONS.values(), ids=DELETIONS)
def test_c53_after_its_deletion_a_unique_job_can_be_enqueued_again(
    push: Callable[[App], str | None], words: tuple[str, ...], app: App, command: Command, client: Client
) -> None:
    jid = push(app)
    assert jid is not None
    assert push(app) is None
    done = command(*(jid if word == "JID" else word for word in words))
    assert done.returncode == 0, done.stderr
    assert client.keys("cogworker:unique:*") == []
    assert push(app) is not None


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "delete", "JID", "--yes"),
        ("jobs", "delete", "--from", "retry", "--all", "--yes"),
        ("jobs", "bury", "JID"),
        ("jobs", "bury", "--from", "retry", "--all", "--yes"),
    ],
)
def test_c53_a_job_that_is_taken_from_retry_holds_its_lock_no_more(
    words: tuple[str, ...], daemon: Start, app: App, command: Command, client: Client
) -> None:
    running = daemon("-c", "1", target="unique_jobs:app").ready()
    jid = app.push("boom", [1], unique="until_executed", retry=3)
    eventually(lambda: client.zcard("cogworker:retry") == 1, 15)
    assert app.push("boom", [1], unique="until_executed", retry=3) is None
    done = command(*(str(jid) if word == "JID" else word for word in words))
    assert done.returncode == 0, done.stderr
    assert app.push("boom", [1], unique="until_executed", retry=3) is not None
    assert running.stop() == 0


def test_c53_a_deletion_by_name_leaves_the_lock_of_the_others(app: App, command: Command) -> None:
    assert app.push("a", [1], unique="until_executed", at=4e9) is not None
    assert app.push("b", [1], unique="until_executed", at=4e9) is not None
    assert command("jobs", "delete", "--from", "scheduled", "--name", "a", "--yes").returncode == 0
    assert app.push("a", [1], unique="until_executed") is not None
    assert app.push("b", [1], unique="until_executed") is None


def test_c53_a_deletion_of_a_stranger_with_the_same_arguments_frees_nothing(
    app: App, command: Command, client: Client
) -> None:
    """The lock is the other job's: it says whose it is."""
    jid = app.push("boom", [1], unique="until_executed")
    client.zadd(
        "cogworker:dead", {'{"class":"boom","args":[1],"queue":"default","jid":"old","unique":"until_executed"}': 1}
    )
    assert command("jobs", "delete", "old", "--yes").returncode == 0
    assert app.push("boom", [1], unique="until_executed") is None
    assert command("jobs", "delete", str(jid), "--yes").returncode == 0
    assert app.push("boom", [1], unique="until_executed") is not None
