"""C66: jobs that only a newer release knows fail like others, are kept, and run after the deploy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def test_c66_a_job_that_nobody_registered_is_kept_and_runs_after_the_deploy(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R33 too: an unknown name fails like any other job."""
    old = daemon("-c", "2").ready()
    before = old.child_pids()
    push_raw(client, "newjob", 1, retry=True)
    push_raw(client, "newjob", 2, retry=False)
    push_raw(client, "os.system", f"touch {old.folder}/executed", retry=True)
    eventually(lambda: (client.zcard("cogworker:retry"), client.zcard("cogworker:dead")) == (2, 1))
    waiting = {job["class"]: (entry, job) for entry in _members(client, "cogworker:retry") if (job := _job(entry))}
    dead = _job(_members(client, "cogworker:dead")[0])
    assert (dead["class"], dead["args"]) == ("newjob", [2])
    for job in (waiting["newjob"][1], waiting["os.system"][1], dead):
        assert job["retry_count"] == 1
        assert job["error_class"] == "UnknownJob"
        assert f"{job['class']} is not registered here" in job["error_message"]
    assert not (old.folder / "executed").exists()
    assert old.child_pids() == before
    assert client.keys("cogworker:orphanings:*") == []
    assert inprogress(client) == []
    assert old.stop() == 0

    daemon("-c", "2", target="case_new_release:app").ready()
    client.zadd("cogworker:retry", {waiting["newjob"][0]: 0})
    eventually(lambda: witness.hgetall("t:end") == {"1": "1"})
    eventually(lambda: client.get("cogworker:stats:processed") == "1")
    assert client.zcard("cogworker:retry") == 1
    assert inprogress(client) == []


def _job(entry: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(entry)
    return found


def _members(client: Client, key: str) -> list[str]:
    found: Any = client.zrange(key, 0, -1)
    return list(found)
