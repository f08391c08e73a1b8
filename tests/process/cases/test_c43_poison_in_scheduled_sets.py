"""C43: entries of schedule and retry that are no jobs hold up nobody, and their bytes are kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support import Client, Daemon, eventually

Start = Callable[..., Daemon]

POISON = [
    "not json",
    '{"class":',
    "[]",
    "42",
    "null",
    "{}",
    '{"class":7,"queue":"default"}',
    '{"class":"book","queue":["x"]}',
    '{"class":"book","args":"no list","jid":"j1","queue":"default"}',
]


def test_c43_due_entries_that_are_no_jobs_go_to_dead_and_the_job_behind_them_runs(
    daemon: Start, client: Client, witness: Client
) -> None:
    for key in ("schedule", "retry"):
        client.zadd(f"cogworker:{key}", dict.fromkeys(POISON, 1))
        good = {"class": "book", "args": [f"ok in {key}"], "queue": "default", "jid": key}
        client.zadd(f"cogworker:{key}", {json.dumps(good): 2})
    running = daemon("-c", "2").ready()
    eventually(lambda: witness.hgetall("t:end") == {"ok in schedule": "1", "ok in retry": "1"}, 3)
    eventually(lambda: client.zcard("cogworker:schedule") == client.zcard("cogworker:retry") == 0)
    eventually(lambda: client.zcard("cogworker:dead") == 2 * len(POISON))
    entries = [json.loads(entry) for entry in _members(client, "cogworker:dead")]
    assert Counter(entry["raw_payload"] for entry in entries) == Counter(POISON * 2)
    assert {(entry["class"], entry["retry"], len(entry["args"])) for entry in entries} == {("(unparseable)", False, 0)}
    assert len(running.lines("due.buried")) == 2 * len(POISON)
    assert client.get("cogworker:stats:failed") == str(2 * len(POISON))
    assert running.stop() == 0
    running.clean_log()


def _members(client: Client, key: str) -> list[str]:
    found: Any = client.zrange(key, 0, -1)
    return list(found)
