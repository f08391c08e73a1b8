"""C51: errors of megabytes leave entries, log lines and processes of a bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable

import psutil
import pytest
import redis

from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


@pytest.mark.parametrize(("longest", "many"), [(5_000_000, 40), pytest.param(50_000_000, 200, marks=pytest.mark.slow)])
def test_c51_what_is_stored_of_a_huge_error_is_small(
    longest: int, many: int, daemon: Start, server: Server, client: Client
) -> None:
    running = daemon("-c", "4", "--log-level", "warning", target="case_jobs:app")
    eventually(lambda: len(running.children()) == 4 and client.hlen("cogworker:last_beat") == 1, 15)
    supervisor = psutil.Process(running.pid)
    rss, memory = supervisor.memory_info().rss, client.info("memory")["used_memory"]
    push_raw(client, "large", longest, retry=3)
    push_raw(client, "deep", retry=3)
    push_raw(client, "chain", 2000, retry=3)
    for _ in range(many):
        push_raw(client, "large", 1_000_000, retry=3)
    eventually(lambda: client.zcard("cogworker:retry") == many + 3, 60)
    eventually(lambda: inprogress(client) == [])
    grown = client.info("memory")["used_memory"] - memory
    assert grown < 20_000_000
    assert supervisor.memory_info().rss - rss < 50_000_000
    with redis.Redis(port=server.port) as raw:
        entries = raw.zrange("cogworker:retry", 0, -1)
    assert max(len(entry) for entry in entries) < 65_536
    jobs = [json.loads(entry) for entry in entries]
    messages = {job["class"]: job["error_message"] for job in jobs}
    assert messages["large"].startswith("x" * 5000)
    assert messages["large"].endswith("(cut)")
    assert {job["error_class"] for job in jobs if job["class"] == "deep"} == {"RecursionError"}
    assert messages["chain"] == "link 1999"
    assert max(len(line) for line in running.log.read_bytes().splitlines()) < 65_536
    assert len(running.lines("job.failed")) == many + 3
    assert running.stop() == 0
