"""C67: a payload with fields and values that this version does not know goes through a failure unharmed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support import Client, Daemon, eventually, inprogress

Start = Callable[..., Daemon]

KNOWN = (
    '{"class":"boom","args":[],"jid":"n1","queue":"default","retry":3,"v":99,'
    '"future":{"a":[1,1152921504606846977],"é":null},"z":1e16}'
)
FIXED = '"retry":3'
COPIES = {
    "n2": (FIXED, '"retry":"5"'),
    "n3": (FIXED, '"retry":1e3'),
    "n4": (FIXED, '"retry":-1'),
    "n5": (FIXED, '"retry":null'),
    "n6": (FIXED, '"retry":{}'),
    "n7": (FIXED, f'"retry":{10**20}'),
    "n8": (FIXED, '"retry":3,"timeout":"soon"'),
    "n9": ('"queue":"default"', '"queue":"elsewhere"'),
    "n10": ('"queue":"default",', ""),
    "n11": (FIXED, '"retry":3,"retry_count":"many"'),
    "n12": (FIXED, '"retry":3,"kwargs":null,"tags":7,"unique":["x"],"periodic_pjid":{},"failed_at":"never"'),
}


def test_c67_a_failure_keeps_what_it_does_not_know(daemon: Start, client: Client) -> None:
    running = daemon("-c", "2", target="case_jobs:app").ready()
    before = running.child_pids()
    copies = [KNOWN.replace('"n1"', f'"{jid}"').replace(*change) for jid, change in COPIES.items()]
    client.lpush("cogworker:queue:default", KNOWN, *copies)
    eventually(lambda: client.zcard("cogworker:retry") + client.zcard("cogworker:dead") == 1 + len(COPIES))
    waiting = _entries(client, "retry")
    dead = _entries(client, "dead")
    assert sorted([*waiting, *dead]) == sorted(["n1", *COPIES])
    for job in [*waiting.values(), *dead.values()]:
        assert type(job["retry_count"]) is int
        assert job["retry_count"] == 1
        assert (job["error_class"], job["error_message"]) == ("ValueError", "boom")
        assert repr(job["future"]) == repr({"a": [1, 1152921504606846977], "é": None})
        assert repr(job["z"]) == repr(1e16)
        assert job["v"] == 99
    # What is no number of retries is none (R32).
    assert sorted(dead) == ["n4", "n5", "n6"]
    assert waiting["n8"]["timeout"] == "soon"
    assert waiting["n9"]["queue"] in ("elsewhere", "default")
    assert waiting["n10"]["queue"] == "default"
    assert running.child_pids() == before
    eventually(lambda: inprogress(client) == [])

    # Due at once, each goes to the queue that it names.
    client.zadd("cogworker:retry", dict.fromkeys(_members(client, "cogworker:retry"), 0))
    eventually(lambda: _failed_twice(client) == len(waiting) - 1)
    again = _entries(client, "retry")
    assert type(again["n1"]["retry_count"]) is int
    assert repr(again["n1"]["future"]) == repr({"a": [1, 1152921504606846977], "é": None})
    assert [json.loads(job)["jid"] for job in client.lrange("cogworker:queue:elsewhere", 0, -1)] == ["n9"]
    assert running.child_pids() == before
    assert running.stop() == 0


def _entries(client: Client, name: str) -> dict[str, dict[str, Any]]:
    return {job["jid"]: job for job in map(json.loads, _members(client, f"cogworker:{name}"))}


def _failed_twice(client: Client) -> int:
    jobs = [*_entries(client, "retry").values(), *_entries(client, "dead").values()]
    return sum(job["retry_count"] == 2 for job in jobs)


def _members(client: Client, key: str) -> list[str]:
    found: Any = client.zrange(key, 0, -1)
    return list(found)
