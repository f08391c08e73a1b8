"""C48: bytes on a queue that are no job: the child lives, the job behind them runs, the bytes are kept."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any

import redis

from tests.support import Client, Daemon, Server, eventually, inprogress

Start = Callable[..., Daemon]

GOOD = '{"class":"book","args":["%s"],"queue":"default","jid":"%s"}'
BROKEN = [
    b"\xff\xfe\x00{",
    b"",
    (GOOD % ("wide", "w")).encode("utf-16"),
    (GOOD % ("stray", "s")).encode().replace(b"stray", b"st\x80ray"),
]


def _push_broken_and_one_good(server: Server) -> None:
    with redis.Redis(port=server.port) as raw:
        raw.sadd("cogworker:queues", "default")
        raw.lpush("cogworker:queue:default", *BROKEN, GOOD % ("ok", "ok"))


def _dead(client: Client) -> list[dict[str, Any]]:
    eventually(lambda: client.zcard("cogworker:dead") == len(BROKEN))
    return [json.loads(entry) for entry in _members(client, "cogworker:dead")]


def test_c48_bytes_that_are_no_job_go_to_dead_and_the_same_child_goes_on(
    daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1").ready()
    before = running.child_pids()
    _push_broken_and_one_good(server)
    eventually(lambda: witness.hget("t:end", "ok") == "1", 5)
    entries = _dead(client)
    assert running.child_pids() == before
    assert {entry["class"] for entry in entries} == {"(unparseable)"}
    expected = sorted(raw.decode("utf-8", "replace") for raw in BROKEN)
    assert sorted(entry["raw_payload"] for entry in entries) == expected
    assert len(running.lines("job.unparseable")) == len(BROKEN)
    assert client.get("cogworker:stats:failed") == str(len(BROKEN))
    eventually(lambda: inprogress(client) == [])
    assert running.stop() == 0
    running.clean_log()


def test_c48_the_original_bytes_can_be_got_back_exactly_from_the_dead_entry(
    daemon: Start, server: Server, client: Client
) -> None:
    running = daemon("-c", "1").ready()
    _push_broken_and_one_good(server)
    held = [_readings(entry) for entry in _dead(client)]
    assert [raw for raw in BROKEN if not any(raw in readings for readings in held)] == []
    assert running.stop() == 0


def _readings(entry: dict[str, Any]) -> set[bytes]:
    """The bytes that a field of an entry may stand for: its text, or what its text is the base64 of."""
    found = set()
    for name, value in entry.items():
        if isinstance(value, str) and name.startswith("raw_payload"):
            found.add(value.encode())
            try:
                found.add(base64.b64decode(value, validate=True))
            except (binascii.Error, ValueError):
                pass
    return found


def _members(client: Client, key: str) -> list[str]:
    found: Any = client.zrange(key, 0, -1)
    return list(found)
