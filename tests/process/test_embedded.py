"""The private server: one command, one folder, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis

from cogworkerd import embedded
from tests.support import APPS, Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]


def servers_in(folder: Path) -> list[psutil.Process]:
    """Private servers, and their guards, that work in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(str(folder) in word for word in words) and "valkey" in " ".join(words):
            found.append(process)
    return found


def cogworkerd(*words: str, witness: Client | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")}
    if witness is not None:
        port = witness.connection_pool.connection_kwargs["port"]
        environment["WITNESS_URL"] = f"redis://127.0.0.1:{port}/0"
    return subprocess.run(
        [sys.executable, "-m", "cogworkerd", *words], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a private server, made by the daemon itself."""
    return tmp_path / "data"


@pytest.fixture
def private(daemon: Start, folder: Path) -> Callable[..., Daemon]:
    """Start a daemon with a private server in the folder."""
    return lambda *flags, **options: daemon("--embedded", str(folder), *flags, **options)


def test_a_job_enqueued_from_another_terminal_is_performed(private: Start, folder: Path, witness: Client) -> None:
    running = private("-c", "1").ready()
    url = running.lines("daemon.start")[0]["url"]
    assert url.startswith("COGWORKERD_REDIS_URL=unix://")
    done = cogworkerd(
        "enqueue", "jobs:app", "book", "[7]", "--app-dir", str(APPS), "--embedded", str(folder), witness=witness
    )
    jid = done.stdout.strip()
    assert len(jid) == 24, done.stderr
    eventually(lambda: witness.hget("t:end", "7") == "1")
    eventually(lambda: [line for line in running.lines("job.done") if line["jid"] == jid])
    assert "slot" not in cogworkerd("status", "--embedded", str(folder)).stderr
    assert running.stop() == 0
    eventually(lambda: not servers_in(folder))


@pytest.mark.slow
def test_what_was_queued_survives_a_restart(private: Start, folder: Path, witness: Client) -> None:
    first = private("-c", "1").ready()
    first.signal(signal.SIGTSTP)
    eventually(lambda: first.lines("daemon.quiet"))
    with redis.Redis.from_url(embedded.url_of(str(folder)), decode_responses=True) as client:
        push_raw(client, "book", 1)
    assert first.stop() == 0
    private("-c", "1").ready()
    eventually(lambda: witness.hget("t:end", "1") == "1")


def test_a_second_daemon_on_the_folder_gets_one_sentence(private: Start, folder: Path) -> None:
    private("-c", "1").ready()
    second = private("-c", "1")
    assert second.exited(10) == 1
    assert len(second.text().splitlines()) == 1
    assert "in use by another daemon" in second.text()


def test_a_folder_that_others_can_read_is_refused(private: Start, folder: Path) -> None:
    folder.mkdir(mode=0o755)
    refused = private("-c", "1")
    assert refused.exited(10) == 1
    assert "mode 700" in refused.text()


@pytest.mark.slow
def test_a_long_path_is_served_from_a_short_folder(daemon: Start, tmp_path: Path, witness: Client) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    running = daemon("--embedded", str(deep), "-c", "1").ready()
    with redis.Redis.from_url(embedded.url_of(str(deep)), decode_responses=True) as client:
        push_raw(client, "book", 3)
    eventually(lambda: witness.hget("t:end", "3") == "1")
    assert running.stop() == 0


def test_the_server_outlives_a_killed_supervisor_until_its_children_have_settled(
    private: Start, folder: Path, witness: Client
) -> None:
    running = private("-c", "1").ready()
    with redis.Redis.from_url(embedded.url_of(str(folder)), decode_responses=True) as client:
        push_raw(client, "book", 1, 2)
        eventually(lambda: witness.hget("t:start", "1") == "1")
        running.children()
        running.process.kill()
        running.process.wait()
        assert client.ping()
    eventually(lambda: not servers_in(folder), 10)
    assert witness.hget("t:end", "1") == "1"
    private("-c", "1").ready()
    with redis.Redis.from_url(embedded.url_of(str(folder)), decode_responses=True) as client:
        assert client.get("cogworker:stats:processed") == "1"
        assert client.llen("cogworker:queue:default") == 0
    assert witness.hget("t:start", "1") == "1"


def test_the_interrupt_of_a_terminal_reaches_the_server_last(private: Start, folder: Path, witness: Client) -> None:
    """INT goes to the daemon's whole group; the server is in a session of its own and is stopped after the drain."""
    running = private("-c", "1").ready()
    with redis.Redis.from_url(embedded.url_of(str(folder)), decode_responses=True) as client:
        push_raw(client, "book", 1, 1)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    os.killpg(running.pid, signal.SIGINT)
    assert running.exited() == 0
    assert witness.hget("t:end", "1") == "1"
    eventually(lambda: not servers_in(folder))


def test_no_server_in_the_folder_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = cogworkerd("status", "--embedded", str(tmp_path))
    assert done.returncode == 1
    assert "no server runs in" in done.stderr
