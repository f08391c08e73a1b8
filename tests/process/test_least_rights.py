"""The rights that docs/security.md gives are enough, and a daemon that has only those never meets a refusal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import redis

from cogworkerd import App
from tests.support import ROOT, Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def for_unique_jobs() -> list[str]:
    """What an application needs besides, as the page has it."""
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    (rules,) = re.findall(r"pushes unique jobs, it also needs `(.*)`", text)
    return str(rules).split()


def documented(user: str) -> list[str]:
    """The rules of one user, as the page has them."""
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    (line,) = re.findall(rf"^user {user} (.*)$", text, re.MULTILINE)
    return str(line).replace(">CHANGE-ME", ">secret").split()


@pytest.fixture
def ruled(make_server: Callable[..., Server]) -> Server:
    """A server that has both documented users."""
    server = make_server()
    with server.client() as client:
        for user in ("cogworkerd", "shop"):
            client.execute_command("ACL", "SETUSER", user, *documented(user))
    return server


def url(server: Server, user: str) -> str:
    return f"redis://{user}:secret@127.0.0.1:{server.port}/0"


def refusals(client: Client) -> list[object]:
    """What the server has refused anybody."""
    return list(client.execute_command("ACL", "LOG"))


@pytest.mark.parametrize("fetch", ["reliable", "basic"])
def test_a_daemon_with_the_documented_rights_does_its_work(
    fetch: str, daemon: Start, ruled: Server, witness: Client
) -> None:
    with ruled.client() as client:
        client.set("cogworker:dead", "no zset")  # for the key guard
        client.rpush("cogworker:unsettled", "nonsense")
        first = daemon("-c", "2", "--fetch", fetch, url=url(ruled, "cogworkerd")).ready()
        push_raw(client, "book", 1)
        push_raw(client, "flaky", 1, retry=3)
        push_raw(client, "fatal", retry=False)
        push_raw(client, "pidof", "t:pid", 1.5)
        client.zadd("cogworker:schedule", {'{"class":"book","jid":"due","args":[2]}': 1})
        pid = int(eventually(lambda: witness.lrange("t:pid", 0, -1))[0])
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: witness.llen("t:pid:done") == 1, 15)
        eventually(lambda: witness.hget("t:end", "2") == "1")
        eventually(lambda: witness.lrange("t:flaky:1", 0, -1) == ["1", "2"], 15)
        eventually(lambda: client.type("cogworker:dead") == "zset", 10)
        push_raw(client, "book", 3, 20)
        eventually(lambda: witness.hget("t:start", "3") == "1")
        for process in [first.process.pid, *first.child_pids()]:
            os.kill(process, signal.SIGKILL)
        second = daemon("-c", "2", "--shutdown-timeout", "1", "--fetch", fetch, url=url(ruled, "cogworkerd")).ready()
        if fetch == "reliable":
            eventually(lambda: witness.hget("t:start", "3") == "2", 15)
        assert second.stop(10) == 0
        assert inprogress(client) == []
        assert refusals(client) == []
        for running in (first, second):
            assert running.lines("redis.refusing") == running.lines("fetch.basic") == []


def test_a_daemon_with_the_documented_rights_ticks_and_keeps_locks(
    daemon: Start, ruled: Server, witness: Client
) -> None:
    running = daemon(
        "--orphan-threshold",
        "5",
        target="rights_jobs:app",
        url=url(ruled, "cogworkerd"),
        env={"COGWORKERD_PERIODIC_PRUNE": "true"},
    ).ready()
    for book in ("t:tick", "t:once", "t:death"):
        eventually(partial(lambda key: witness.llen(key) > 1, book), 10)
    assert running.stop(10) == 0
    with ruled.client() as client:
        assert refusals(client) == []
    assert running.lines("redis.refusing") == running.lines("cron.failed") == []


def test_an_application_with_the_documented_rights_enqueues_and_reads_nothing(ruled: Server) -> None:
    app = App(url(ruled, "shop"))

    @app.job(name="book")
    def book(n: int) -> None: ...

    jids = [book.enqueue(1), book.enqueue_in(60, 2), *book.enqueue_many([(3,), (4,)])]
    with ruled.client() as client:
        assert None not in jids
        assert client.llen("cogworker:queue:default") == 3
        assert client.zcard("cogworker:schedule") == 1
        assert refusals(client) == []
    with redis.Redis.from_url(url(ruled, "shop")) as shop, pytest.raises(redis.exceptions.NoPermissionError):
        shop.execute_command("LRANGE", "cogworker:queue:default", 0, -1)


def test_an_application_needs_the_documented_rights_more_for_unique_jobs(ruled: Server) -> None:
    app = App(url(ruled, "shop"))

    @app.job(name="book", unique="until_executed")
    def book(n: int) -> None: ...

    with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)no permissions"):
        book.enqueue(1)
    with ruled.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", *for_unique_jobs())
        client.execute_command("ACL", "LOG", "RESET")
        jids = [book.enqueue(1), book.enqueue(1), book.enqueue_in(60, 2), *book.enqueue_many([(3,), (3,)])]
        assert [jid is None for jid in jids] == [False, True, False, False, True]
        assert refusals(client) == []
    with redis.Redis.from_url(url(ruled, "shop")) as shop, pytest.raises(redis.exceptions.ResponseError):
        shop.execute_command("EVAL", "return redis.call('LRANGE', KEYS[1], 0, -1)", 1, "cogworker:queue:default")


def test_check_is_content_with_the_documented_rights(ruled: Server) -> None:
    command = [sys.executable, "-m", "cogworkerd", "check", "jobs:app", "--app-dir", str(ROOT / "tests" / "apps")]
    env = {**os.environ, "COGWORKERD_REDIS_URL": url(ruled, "cogworkerd"), "WITNESS_URL": ruled.url}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    assert "does not let this user do" not in done.stdout + done.stderr, done.stdout
    assert done.returncode == 0
