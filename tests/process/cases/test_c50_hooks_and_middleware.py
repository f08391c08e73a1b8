"""C50: middleware and death hooks get exceptions that misbehave as they are, and nobody is harmed by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]

KINDS = ("Silent", "Mute", "Pair", "OSError", "ValueError", "ExceptionGroup", "KeyError", "E")


def books(witness: Client, key: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in witness.lrange(key, 0, -1)]


def seen(witness: Client, jid: str) -> list[str]:
    """The errors that the middleware around this job saw."""
    return [line["error"] for line in books(witness, f"t:chain:{jid}") if line["at"] == "outer saw"]


@pytest.mark.parametrize("retry", [3, 0], ids=["tried again", "dead"])
def test_c50_middleware_and_death_hooks_get_each_exception_that_misbehaves(
    retry: int, daemon: Start, client: Client, witness: Client
) -> None:
    """The rest of it is in test_c50_exceptions_that_misbehave.py."""
    running = daemon("-c", "4", target="hooked_jobs:app").ready()
    before = running.child_pids()
    jids = {kind: push_raw(client, "misbehave", kind, retry=retry) for kind in KINDS}
    filed = "cogworker:retry" if retry else "cogworker:dead"
    eventually(lambda: client.zcard(filed) == len(KINDS))
    entries = {entry["args"][0]: entry for entry in map(json.loads, client.zrange(filed, 0, -1))}
    assert {kind: entries[kind]["error_class"] for kind in KINDS} == {kind: kind for kind in KINDS}
    assert {kind: seen(witness, jid) for kind, jid in jids.items()} == {kind: [kind] for kind in KINDS}
    if retry:
        asked = [line["error"] for line in books(witness, "t:asked")]
        assert sorted(asked) == sorted(KINDS)
        assert not client.exists("cogworker:dead")
        assert not witness.exists("t:deaths")
    else:
        eventually(lambda: witness.llen("t:deaths") == len(KINDS))
        deaths = {line["jid"]: line for line in books(witness, "t:deaths")}
        assert {kind: deaths[jid]["error"] for kind, jid in jids.items()} == {kind: kind for kind in KINDS}
        assert all(line["same"] and line["dead"] == 1 for line in deaths.values())
        assert {line["pid"] for line in deaths.values()} <= set(before)
        assert not witness.exists("t:asked")
    eventually(lambda: client.get("cogworker:stats:failed") == str(len(KINDS)))
    assert running.child_pids() == before
    assert client.keys("cogworker:orphanings:*") == []
    assert not running.lines("death_hook.failed")
    assert inprogress(client) == []
    assert running.stop() == 0
