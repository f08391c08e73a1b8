"""C03: a daemon that is up already takes over what another one leaves that is killed hard; nothing is restarted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_c03_a_daemon_that_is_up_already_performs_the_job_of_one_that_is_killed(
    seconds: int, daemon: Start, client: Client, witness: Client
) -> None:
    killed = daemon("-c", "1").ready()
    (identity,) = client.smembers("cogworker:processes")
    push_raw(client, "book", "a", seconds)
    eventually(lambda: witness.hget("t:start", "a") == "1")
    heir = daemon("-c", "1").ready()
    assert client.scard("cogworker:processes") == 2
    for pid in (killed.pid, *killed.child_pids()):
        os.kill(pid, signal.SIGKILL)
    assert killed.exited() == -signal.SIGKILL
    assert witness.hget("t:end", "a") is None

    eventually(lambda: witness.hget("t:start", "a") == "2", 75)
    eventually(lambda: not client.sismember("cogworker:processes", identity))
    assert not client.exists(f"cogworker:inprogress:{identity}")
    eventually(lambda: witness.hget("t:end", "a") == "1", seconds + 5)
    eventually(lambda: inprogress(client) == [])
    assert witness.hgetall("t:start") == {"a": "2"}
    assert [line["dead"] for line in heir.lines("recovery.done")] == [identity]
    assert heir.stop() == 0
    heir.clean_log()
