"""C01: killed hard in the middle of its drain, a daemon loses nothing: the orphaned child ends the job and settles it,
or is ended, and the job is performed again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from tests.support import PATIENCE, Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]

LISTED = """
local count = redis.call('LLEN', 'cogworker:queue:default') + redis.call('LLEN', 'cogworker:queue:x:suspects:default')
for _, key in ipairs(redis.call('KEYS', 'cogworker:inprogress:*')) do count = count + redis.call('LLEN', key) end
return count
"""


def kill_in_the_drain(running: Daemon, after: float) -> psutil.Process:
    """TERM, and KILL once it drains and some time has passed.

    Returns:
        The child that has the job.
    """
    (child,) = running.children()
    running.signal(signal.SIGTERM)
    eventually(lambda: running.lines("daemon.stopping"))
    time.sleep(after)
    os.kill(running.pid, signal.SIGKILL)
    running.exited()
    assert child.is_running()
    return child


def until_over(client: Client, witness: Client, child: psutil.Process, within: float) -> bool:
    """Wait until the job has ended and is settled. Meanwhile it is always listed, and nobody starts it a second time
    while the first child lives.

    Returns:
        Whether it was started a second time.
    """
    child_gone: float | None = None
    deadline = time.monotonic() + within * PATIENCE
    while True:
        alive = _alive(child)
        starts = int(witness.hget("t:start", "1"))
        listed = client.eval(LISTED, 0)
        ended = witness.hget("t:end", "1")
        if not alive and child_gone is None:
            child_gone = time.monotonic()
        assert starts == 1 or not _alive(child), "a second start while the first child lives"
        assert listed == 1 or (listed == 0 and ended), f"{listed} entries, ended: {ended}"
        if ended and listed == 0:
            return starts == 2
        if child_gone is not None and starts == 1 and not ended:
            assert time.monotonic() - child_gone < 15 * PATIENCE, "not performed again within 15 s"
        assert time.monotonic() < deadline, "not over in time"
        time.sleep(0.02)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("seconds", "after"), [(3, 0.5), pytest.param(20, 2, marks=pytest.mark.slow)])
def test_c01_an_orphaned_child_that_has_the_time_ends_its_job_and_settles_it(
    seconds: float, after: float, daemon: Start, client: Client, witness: Client
) -> None:
    first = daemon("-c", "1").ready()
    push_raw(client, "book", 1, seconds)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    child = kill_in_the_drain(first, after)
    second = daemon("-c", "1").ready()
    assert not until_over(client, witness, child, 60)
    eventually(lambda: not _alive(child), 35)
    assert witness.hgetall("t:start") == witness.hgetall("t:end") == {"1": "1"}
    assert client.get("cogworker:stats:processed") == "1"
    assert not second.lines("recovery.done")
    assert second.stop() == 0
    first.clean_log()
    second.clean_log()


@pytest.mark.parametrize(
    ("seconds", "after", "timeout"), [(4, 0, "2"), pytest.param(20, 2, "8", marks=pytest.mark.slow)]
)
def test_c01_an_orphaned_child_out_of_time_is_ended_and_then_its_job_is_performed_again(
    seconds: float, after: float, timeout: str, daemon: Start, client: Client, witness: Client
) -> None:
    first = daemon("-c", "1", "--shutdown-timeout", timeout).ready()
    push_raw(client, "book", 1, seconds)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    child = kill_in_the_drain(first, after)
    second = daemon("-c", "1").ready()
    assert until_over(client, witness, child, 60)
    eventually(lambda: not _alive(child), 35)
    assert witness.hgetall("t:start") == {"1": "2"}
    assert witness.hgetall("t:end") == {"1": "1"}
    assert second.stop() == 0
    second.clean_log()
