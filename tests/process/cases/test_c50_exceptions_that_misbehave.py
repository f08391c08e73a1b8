"""C50: exceptions whose text cannot be made, or that cannot be copied, go round in circles, or are no proper class."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]

KINDS = ("Silent", "Mute", "Pair", "OSError", "ValueError", "ExceptionGroup", "KeyError", "E")


def test_c50_every_exception_is_filed_with_its_class_name_and_harms_nobody(daemon: Start, client: Client) -> None:
    """R30."""
    running = daemon("-c", "4", target="case_jobs:app").ready()
    before = running.child_pids()
    for kind in KINDS:
        push_raw(client, "misbehave", kind, retry=3)
    eventually(lambda: client.zcard("cogworker:retry") == len(KINDS))
    entries = {entry["args"][0]: entry for entry in map(json.loads, _members(client, "cogworker:retry"))}
    assert {kind: entries[kind]["error_class"] for kind in KINDS} == {kind: kind for kind in KINDS}
    assert "could not be made" in entries["Silent"]["error_message"]
    assert "could not be made" in entries["Mute"]["error_message"]
    assert entries["Pair"]["error_message"] == "1 and 2"
    assert entries["ValueError"]["error_message"] == "a"
    assert "surrogate" in entries["KeyError"]["error_message"]
    eventually(lambda: client.get("cogworker:stats:failed") == str(len(KINDS)))
    assert running.child_pids() == before
    assert client.keys("cogworker:orphanings:*") == []
    assert len(running.lines("job.failed")) == len(KINDS)
    assert inprogress(client) == []
    assert running.stop() == 0


def _members(client: Client, key: str) -> list[str]:
    found: Any = client.zrange(key, 0, -1)
    return list(found)
