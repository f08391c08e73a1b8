"""C30: a job changes signal handlers, the mask and the timer. Neither the jobs behind it nor orders notice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def test_c30_what_a_job_does_to_signals_is_gone_when_it_has_ended(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1", target="stoppable_jobs:app").ready()
    (child,) = running.child_pids()
    push_raw(client, "change_signals")
    push_raw(client, "tell_signals")
    eventually(lambda: witness.lrange("t:told", 0, -1) == ["[1, 0.0]"])
    jid = push_raw(client, "sleeper", timeout=2)
    eventually(lambda: witness.llen("t:pids") == 3)
    (raw,) = eventually(lambda: client.zrange("cogworker:retry", 0, -1), 8)
    entry = json.loads(raw)
    assert (entry["jid"], entry["error_class"], entry["error_message"]) == (
        jid,
        "JobTimeout",
        "still running after 2 s",
    )
    assert witness.lrange("t:pids", 0, -1) == [str(child)] * 3
    assert running.lines("child.killed") == []
    os.kill(child, signal.SIGTERM)
    eventually(lambda: running.child_pids() not in ([], [child]), 3)
    push_raw(client, "book", "a")
    eventually(lambda: witness.hgetall("t:end") == {"a": "1"})
    eventually(lambda: inprogress(client) == [])
    assert running.stop(5) == 0
    assert client.keys("cogworker:orphanings:*") == []
    assert running.lines("child.died") == []
