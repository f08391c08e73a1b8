"""C33: a job raises what is no Exception. It has failed like any other, and nothing else has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def test_c33_a_job_that_raises_no_exception_has_failed_and_the_daemon_goes_on(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "2", target="case_jobs:app").ready()
    before = running.child_pids()
    for kind in ("exit 0", "exit no", "interrupt", "stop"):
        push_raw(client, "base", kind, retry=3)
    push_raw(client, "cancelled", retry=3)
    push_raw(client, "book", "a")
    eventually(lambda: witness.hget("t:end", "a") == "1", 3)
    eventually(lambda: client.zcard("cogworker:retry") == 5)
    entries = [json.loads(entry) for entry in _members(client, "cogworker:retry")]
    assert sorted(entry["error_class"] for entry in entries) == [
        *("CancelledError", "KeyboardInterrupt", "Stop", "SystemExit", "SystemExit")
    ]
    assert [entry["error_message"] for entry in entries if entry["args"] == ["exit no"]] == ["no"]
    eventually(lambda: (client.get("cogworker:stats:failed"), client.get("cogworker:stats:processed")) == ("5", "1"))
    assert client.keys("cogworker:orphanings:*") == []
    assert running.child_pids() == before
    assert inprogress(client) == []
    assert running.stop() == 0


def test_c33_async_jobs_work_after_one_that_broke_its_event_loop(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1").ready()
    push_raw(client, "later", 1)
    push_raw(client, "later", 2, "no number", retry=False)
    push_raw(client, "later", 3)
    eventually(lambda: witness.hgetall("t:end") == {"1": "1", "3": "1"})
    eventually(lambda: client.zcard("cogworker:dead") == 1)
    assert running.stop() == 0


def _members(client: Client, key: str) -> list[str]:
    found: Any = client.zrange(key, 0, -1)
    return list(found)
