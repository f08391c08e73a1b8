"""A child that is suspended between its fetch and its report: nobody else may have its job (P13 to P15)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def suspended(client: Client, witness: Client) -> int:
    """Push a job and wait until a child is suspended that has it; the child's pid."""
    witness.set("t:suspend", 1)
    push_raw(client, "book", 1)
    pid = int(eventually(lambda: witness.lrange("t:suspended", 0, -1))[0])
    assert len(inprogress(client)) == 1
    return pid


def looks(client: Client) -> int:
    """The number of the newest look at the daemon's list."""
    (key,) = client.keys("cogworker:x:look:*")
    return int(client.get(key))


@pytest.mark.parametrize("slots", ["1", "3"])
def test_r45_the_job_of_a_suspended_child_is_kept_for_it_however_often_the_list_is_looked_at(
    slots: str, daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", slots, target="suspended_jobs:app").ready()
    pid = suspended(client, witness)
    if slots != "1":
        push_raw(client, "book", 2)  # the others go on
        eventually(lambda: witness.hget("t:end", "2") == "1")
    seen = looks(client)
    eventually(lambda: looks(client) >= seen + 2, 25)
    assert len(inprogress(client)) == 1
    assert client.llen("cogworker:queue:default") == 0
    assert not witness.hexists("t:start", "1")
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    eventually(lambda: inprogress(client) == [])
    assert witness.hget("t:start", "1") == "1"
    assert running.lines("job.stray") == []
    assert running.stop() == 0


def test_r45_the_job_of_a_suspended_child_that_is_killed_is_requeued_once_and_not_counted(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "3", target="suspended_jobs:app").ready()
    pid = suspended(client, witness)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: witness.hget("t:end", "1") == "1", 15)
    eventually(lambda: inprogress(client) == [])
    assert witness.hget("t:start", "1") == "1"
    assert client.keys("cogworker:orphanings:*") == []
    assert len(running.lines("job.stray")) == 1
    assert running.stop() == 0
