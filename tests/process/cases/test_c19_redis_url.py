"""C19: URLs of the server: those that mean something work; the others are refused in words, and never tell a password.

The numbers are the case's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest
import redis

from tests.support import Daemon, Server, eventually

Start = Callable[..., Daemon]

PASSWORD = "p@ss/w#rd"
ENCODED = "p%40ss%2Fw%23rd"


@pytest.fixture
def locked(make_server: Callable[..., Server]) -> Server:
    """A server with a password."""
    return make_server("--requirepass", PASSWORD)


def _tells_nothing(text: str) -> None:
    """No part of the password is in this text."""
    for secret in (PASSWORD, ENCODED, "ss/w", "ss%2Fw", "w#rd", "w%23rd"):
        assert secret not in text


def _titles(running: Daemon) -> str:
    found = [running.title()]
    for child in running.children():
        found.append(" ".join(child.cmdline()))
    return "\n".join(found)


def _status(url: str) -> str:
    """What `cogworkerd status --json` prints."""
    env = {**os.environ, "COGWORKERD_REDIS_URL": url}
    command = [sys.executable, "-m", "cogworkerd", "status", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("number", "database"), [(1, 3), (5, 2)])
def test_c19_a_right_url_leads_to_its_database_and_tells_no_password(
    number: int, database: int, daemon: Start, locked: Server
) -> None:
    urls = {
        1: f"redis://:{ENCODED}@127.0.0.1:{locked.port}/3",
        5: f"unix://:{ENCODED}@{locked.socket}?db=2",
    }
    running = daemon("-c", "1", url=urls[number]).ready()
    with locked.client(password=PASSWORD, db=database) as there, locked.client(password=PASSWORD) as zero:
        assert there.scard("cogworker:processes") == 1
        assert zero.scard("cogworker:processes") == 0
        identity = there.srandmember("cogworker:processes")
        presence = str(there.hgetall(f"cogworker:process:{identity}"))
    status = _status(urls[number])
    assert str(identity) in status
    titles = _titles(running)
    assert "cogworkerd:supervisor" in titles
    assert running.stop() == 0
    for text in (presence, status, titles, running.text()):
        _tells_nothing(text)


@pytest.mark.parametrize(
    ("number", "url", "words"),
    [
        (2, f"redis://:{PASSWORD}@127.0.0.1:{{port}}/3", ("redis_url", "percent-encode the password")),
        (3, "redis://127.0.0.1:{port}/notadb", ("redis_url", "notadb")),
        (4, "redis://127.0.0.1:{port}/0?foo=bar", ("redis_url", "foo")),
        (6, "http://127.0.0.1", ("redis_url", "http")),
        (7, "", ("redis_url", "empty")),
    ],
)
def test_c19_a_url_that_means_nothing_is_refused_at_once_with_the_reason(
    number: int, url: str, words: tuple[str, ...], daemon: Start, server: Server
) -> None:
    running = daemon("-c", "1", env={"COGWORKERD_REDIS_URL": url.format(port=server.port)})
    assert running.exited(within=5) == 78
    for word in words:
        assert word in running.text()
    _tells_nothing(running.text())
    assert "Traceback" not in running.text()


def test_c19_8_a_sentinel_that_is_not_there_is_waited_for_and_a_stop_is_obeyed(daemon: Start, server: Server) -> None:
    running = daemon("-c", "1", url="redis+sentinel://127.0.0.1:1/mymaster/0")
    eventually(lambda: running.lines("daemon.waiting"), 10)
    eventually(lambda: "waiting for Redis" in running.title())
    assert running.stop() == 0
    running.clean_log()


def test_c19_9_a_wrong_password_is_named_as_the_reason(daemon: Start, locked: Server) -> None:
    running = daemon("-c", "1", url=f"redis://:wr0ng%2Fsecret@127.0.0.1:{locked.port}/0")
    assert running.exited(within=10) == 78
    assert "password" in running.text()
    assert "wr0ng" not in running.text()


def test_c19_a_missing_password_is_named_as_the_reason(daemon: Start, locked: Server) -> None:
    running = daemon("-c", "1", url=f"redis://127.0.0.1:{locked.port}/0")
    assert running.exited(within=10) == 78
    assert "password" in running.text()


def test_c19_10_tls_to_a_plain_port_is_named_as_the_reason(daemon: Start, locked: Server) -> None:
    running = daemon("-c", "1", url=f"rediss://:{ENCODED}@127.0.0.1:{locked.port}/0")
    eventually(lambda: any(word in running.text() for word in ("TLS", "SSL")), 10)
    assert running.stop() in (0, 78)
    _tells_nothing(running.text())


@pytest.mark.slow
def test_c19_a_password_survives_no_outage_line(daemon: Start, locked: Server) -> None:
    running = daemon("-c", "1", url=f"redis://:{ENCODED}@127.0.0.1:{locked.port}/0").ready()
    locked.stop()
    eventually(lambda: running.lines("redis.away"), 10)
    titles = _titles(running)
    locked.start()
    with redis.Redis(port=locked.port, password=PASSWORD) as client:
        eventually(lambda: client.exists("cogworker:last_beat"), 15)
    assert running.stop() == 0
    _tells_nothing(running.text())
    _tells_nothing(titles)


@pytest.mark.slow
def test_c19_the_children_inherit_no_url_on_their_command_line(daemon: Start, locked: Server) -> None:
    running = daemon("-c", "1", "--redis-url", f"redis://:{ENCODED}@127.0.0.1:{locked.port}/0").ready()
    for process in (psutil.Process(running.pid), *running.children()):
        _tells_nothing(" ".join(process.cmdline()))
    assert any("password" in line["text"] for line in running.lines("settings.warning"))
    assert running.stop() == 0
    _tells_nothing(running.text())
