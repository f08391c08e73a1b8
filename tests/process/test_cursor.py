"""The cursor: a long loop goes on where it was, whoever died."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from cogworkerd.errors import JobTimeout
from cogworkerd.store.connection import Server as Where
from cogworkerd.store.keys import Keys
from cogworkerd.worker.channel import Channel
from cogworkerd.worker.cursor import MOST_BYTES, Cursor
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]
KEYS = Keys()


def start(daemon: Start, *flags: str) -> Daemon:
    return daemon("-c", "1", *flags, target="resumed_jobs:app").ready()


@pytest.fixture
def cursor(server: Server) -> Cursor:
    return Cursor(Channel(Where.parse(server.url, None), "test", lambda _: None), KEYS, "j1")


@pytest.mark.parametrize("value", [0, "", None, [1, 2], {"a": [1.5]}, "\u00e9", False])
def test_what_is_set_is_what_the_next_one_gets(value: Any, cursor: Cursor, server: Server, client: Client) -> None:
    assert cursor.get() is None
    cursor.set(value)
    next_one = Cursor(Channel(Where.parse(server.url, None), "next", lambda _: None), KEYS, "j1")
    assert next_one.get() == value
    assert 0 < client.ttl(KEYS.cursor("j1")) <= 604_800
    next_one.forget()
    assert client.keys("*cursor*") == []


def test_nothing_is_asked_before_the_job_asks(cursor: Cursor, client: Client) -> None:
    assert not cursor.used
    cursor.get()
    assert cursor.used


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ({1, 2}, TypeError, "cursor: set is not JSON"),
        ([b"x"], TypeError, r"cursor\[0\]: bytes is not JSON"),
        ("x" * MOST_BYTES, ValueError, "more than 65536"),
    ],
)
def test_what_cannot_be_kept_is_an_error_and_the_old_one_stays(
    value: Any, error: type[Exception], says: str, cursor: Cursor
) -> None:
    cursor.set(5)
    with pytest.raises(error, match=says):
        cursor.set(value)
    assert cursor.get() == 5


@pytest.mark.parametrize("stored", ["", "nonsense", "[", "\xff"])
def test_what_somebody_else_has_put_there_is_nothing(stored: str, cursor: Cursor, client: Client) -> None:
    client.set(KEYS.cursor("j1"), stored)
    assert cursor.get() is None


def test_a_key_of_a_wrong_type_and_an_interruption_leave_the_line_usable(cursor: Cursor, client: Client) -> None:
    client.rpush(KEYS.cursor("j1"), "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        cursor.get()
    client.delete(KEYS.cursor("j1"))

    def interrupt(number: int, frame: object) -> None:
        raise JobTimeout

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        client.execute_command("CLIENT", "PAUSE", 300, "ALL")
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(JobTimeout):
            cursor.set("lost or not")
    finally:
        signal.signal(signal.SIGALRM, before)
    cursor.set("next")
    assert cursor.get() == "next"


@pytest.mark.parametrize("end", ["raise", "die"])
def test_the_next_run_goes_on_there_and_after_a_success_nothing_is_left(
    end: str, daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "remembers", {"at": 7}, end, retry=5)
    eventually(lambda: witness.llen("t:seen") >= 2, 15)
    assert witness.lrange("t:seen", 0, 1) == ["None", "{'at': 7}"]
    if end == "raise":
        eventually(lambda: client.get("cogworker:stats:processed") == "1")
        eventually(lambda: not client.exists(KEYS.cursor(jid)))
    running.stop()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["child", "supervisor", "all"])
def test_a_file_of_a_million_lines_is_read_whatever_is_killed_and_no_line_more_often_than_a_chunk(
    victim: str, daemon: Start, client: Client, witness: Client, tmp_path: Path
) -> None:
    """Ten kills at random moments. Each may cost the chunk that was under way, and no other."""
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1_000_000)))
    chunk, kills = 10_000, 10
    running = start(daemon, "--max-orphanings", "100", "--shutdown-timeout", "1")
    push_raw(client, "read_lines", str(path), chunk, 0.1, retry=100)
    dice = random.Random(5)
    for _ in range(kills):
        before = witness.hlen("t:chunks")
        eventually(lambda before=before: witness.hlen("t:chunks") > before + dice.randrange(4), 60)
        pids = {"child": running.child_pids(), "supervisor": [running.pid], "all": [running.pid, *running.child_pids()]}
        for pid in pids[victim]:
            os.kill(pid, signal.SIGKILL)
        if victim != "child":
            running.exited(20)
            running = start(daemon, "--max-orphanings", "100", "--shutdown-timeout", "1")
    eventually(lambda: client.get("cogworker:stats:processed") == "1", 120)
    counts = {int(number): int(count) for number, count in witness.hgetall("t:chunks").items()}
    assert set(counts) == set(range(1_000_000 // chunk)), "every line at least once"
    assert sum(counts.values()) <= len(counts) + kills
    assert max(counts.values()) <= 3, "a chunk is read again only if it was under way"
    assert running.stop() == 0
    assert inprogress(client) == []
