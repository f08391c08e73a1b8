"""C58: the output ends, is full, closed, a dead terminal or a file that is cut: the jobs are done all the same."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]

JOBS = 50


def _push(client: Client) -> None:
    for n in range(JOBS):
        push_raw(client, "book", n, 0.05, n % 5 == 0)


def _all_done_once(client: Client, witness: Client) -> None:
    eventually(lambda: witness.hlen("t:end") == JOBS, 30)
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}
    eventually(lambda: client.get("cogworker:stats:processed") == str(JOBS))
    assert client.get("cogworker:stats:failed") is None
    assert inprogress(client) == []


def _rests(pid: int) -> None:
    """A process that tries for ever to log that it cannot log is never this idle."""
    assert psutil.Process(pid).cpu_percent(interval=1.0) < 10


def test_c58_1_the_reader_of_a_pipe_ends(daemon: Start, client: Client, witness: Client) -> None:
    with subprocess.Popen(["head", "-n", "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        running = daemon("-c", "4", target="case_jobs:app", stdout=reader.stdin)
        reader.stdin.close()
        _push(client)
        _all_done_once(client, witness)
        assert len(reader.stdout.read().splitlines()) == 3
        assert reader.wait() == 0
    _rests(running.pid)
    assert running.stop() == 0


@pytest.mark.slow
def test_c58_2_the_device_is_full(daemon: Start, client: Client, witness: Client) -> None:
    with open("/dev/full", "wb") as full:
        running = daemon("-c", "4", target="case_jobs:app", stdout=full)
    _push(client)
    _all_done_once(client, witness)
    _rests(running.pid)
    assert running.stop() == 0


def test_c58_3_output_that_is_closed_at_the_start_goes_into_no_socket(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "4", target="case_jobs:app", wrap=("sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh"))
    _push(client)
    _all_done_once(client, witness)
    for pid in (running.pid, *running.child_pids()):
        assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)} == {"/dev/null"}
    _rests(running.pid)
    assert running.stop() == 0
    assert running.text() == ""


@pytest.mark.slow
def test_c58_4_the_terminal_is_gone(daemon: Start, client: Client, witness: Client) -> None:
    ours, theirs = os.openpty()
    running = daemon("-c", "4", target="case_jobs:app", stdout=theirs)
    os.close(theirs)
    os.close(ours)
    _push(client)
    _all_done_once(client, witness)
    _rests(running.pid)
    assert running.stop() == 0


def test_c58_5_the_file_is_cut_and_hup_is_sent_as_a_rotation_does(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "4", target="case_jobs:app").ready()
    before = running.child_pids()
    _push(client)
    eventually(lambda: witness.hlen("t:end") >= 10)
    os.truncate(running.log, 0)
    running.signal(signal.SIGHUP)
    _all_done_once(client, witness)
    eventually(lambda: running.lines("roll.done"), 30)
    eventually(lambda: len(running.child_pids()) == 4 and not set(before) & set(running.child_pids()))
    push_raw(client, "book", "last", 0, True)
    eventually(lambda: witness.hget("t:end", "last") == "1")
    eventually(lambda: "job last prints" in running.text())
    assert b"\0" not in Path(running.log).read_bytes()
    _rests(running.pid)
    assert running.stop() == 0
    assert running.lines("daemon.ready") == []
    assert running.lines("daemon.stopped")
