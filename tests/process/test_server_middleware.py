"""Server middleware and failure decisions in a real daemon: what a run becomes, and what its child goes on with."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]
preload = pytest.mark.parametrize("preload", ["--preload", "--no-preload"])


def start(daemon: Start, *flags: str) -> Daemon:
    """One child, so that what a run leaves behind would be seen in the next one."""
    return daemon("-c", "1", *flags, target="hooked_jobs:app").ready()


def books(witness: Client, key: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in witness.lrange(key, 0, -1)]


def chain(witness: Client, jid: str) -> list[tuple[str, str]]:
    """What was said around and in a job: who, and the shade or the error it saw."""
    return [(line["at"], line.get("error") or line.get("shade", "")) for line in books(witness, f"t:chain:{jid}")]


def counted(client: Client, processed: int, failed: int) -> bool:
    """Whether so many runs have ended."""
    return (client.get("cogworker:stats:processed") or "0", client.get("cogworker:stats:failed") or "0") == (
        str(processed),
        str(failed),
    )


def attempts(client: Client, jid: str) -> list[str]:
    """The ends in the log of attempts of a job, in their order in time."""
    records = [json.loads(line) for line in client.lrange(f"cogworker:job_attempts:{jid}", 0, -1)]
    return [record["outcome"] for record in sorted(records, key=lambda record: record["failed_at"])]


def only_entry(client: Client, key: str) -> tuple[dict[str, Any], float]:
    ((entry, score),) = eventually(lambda: client.zrange(key, 0, -1, withscores=True))
    return json.loads(entry), score


@preload
def test_middleware_stands_around_plain_and_async_jobs_and_nothing_leaks_into_the_next_one(
    preload: str, daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon, preload)
    jids = [push_raw(client, name, "red") for name in ("look", "alook", "look", "alook")]
    eventually(lambda: counted(client, 4, 0))
    for jid, is_async in zip(jids, (False, True, False, True), strict=True):
        assert chain(witness, jid) == [
            *(("outer", "none"), ("job", "blue")),
            *([("job ends", "red")] if is_async else []),
            ("outer out", "red"),
        ]
    assert {line["pid"] for jid in jids for line in books(witness, f"t:chain:{jid}")} == set(running.child_pids())
    assert running.stop() == 0
    running.clean_log()


def test_r33_the_failure_of_an_unknown_job_goes_through_the_middleware(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "nobody", retry=3)
    entry, _ = only_entry(client, "cogworker:retry")
    assert (entry["jid"], entry["error_class"], entry["retry_count"]) == (jid, "UnknownJob", 1)
    assert chain(witness, jid) == [("outer", "none"), ("outer saw", "UnknownJob")]
    calm = push_raw(client, "nobody", retry=3, meta={"do": "swallow"})
    eventually(lambda: counted(client, 1, 1))
    assert chain(witness, calm)[-1][0] == "outer out"
    assert client.zcard("cogworker:retry") == 1
    assert running.stop() == 0


def test_middleware_makes_a_run_a_success_by_swallowing_its_error_or_by_not_calling_next(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    swallowed = push_raw(client, "fails", retry=0, meta={"do": "swallow"})
    skipped = push_raw(client, "look", meta={"do": "skip"})
    eventually(lambda: counted(client, 2, 0))
    assert chain(witness, swallowed) == chain(witness, skipped) == [("outer", "none"), ("outer out", "blue")]
    assert not client.exists("cogworker:retry", "cogworker:dead")
    assert attempts(client, swallowed) == []
    assert inprogress(client) == []
    assert len(running.lines("job.done")) == 2
    assert not running.complaints()
    assert running.stop() == 0


@pytest.mark.parametrize(("do", "error"), [("twice", "RuntimeError"), ("exit", "SystemExit")])
def test_an_error_of_the_middleware_is_a_failure_of_the_job_and_the_child_goes_on(
    do: str, error: str, daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    before = running.child_pids()
    jid = push_raw(client, "look", retry=3, meta={"do": do})
    entry, _ = only_entry(client, "cogworker:retry")
    assert (entry["jid"], entry["error_class"]) == (jid, error)
    assert chain(witness, jid) == [("outer", "none"), ("job", "blue"), ("outer saw", error)]
    after = push_raw(client, "alook")
    eventually(lambda: counted(client, 1, 1))
    assert ("job ends", "blue") in chain(witness, after)
    assert running.child_pids() == before
    assert running.stop() == 0


def test_r21_a_job_is_performing_until_its_middleware_has_returned(
    daemon: Start, client: Client, witness: Client
) -> None:
    """A child that dies in a middleware behind the job loses the run, and is blamed for it."""
    running = start(daemon)
    jid = push_raw(client, "look", meta={"do": "linger"})
    eventually(lambda: ("lingering", "") in chain(witness, jid))
    eventually(lambda: "[1/1 busy]" in running.title())
    assert len(inprogress(client)) == 1
    os.kill(books(witness, f"t:chain:{jid}")[0]["pid"], signal.SIGKILL)
    eventually(lambda: counted(client, 1, 0))
    once = [("outer", "none"), ("job", "blue")]
    assert chain(witness, jid) == [*once, ("lingering", ""), *once, ("outer out", "blue")]
    (orphaned,) = running.lines("job.orphaned")
    assert (orphaned["jid"], orphaned["blame"]) == (jid, True)
    assert running.stop() == 0


# ---- decisions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "retry", "end", "target"),
    [
        ([], 3, "retrying", "cogworker:retry"),
        (["retry", 1800], 3, "retrying", "cogworker:retry"),
        (["retry", 1800], 0, "dead", "cogworker:dead"),
        (["bury"], 3, "killed", "cogworker:dead"),
        (["bury"], 0, "killed", "cogworker:dead"),
        (["discard"], 3, "discarded", ""),
        (["discard"], 0, "discarded", ""),
    ],
    ids=str,
)
def test_what_a_job_raises_decides_and_the_log_of_attempts_says_how_it_ended(
    args: list[Any], retry: int, end: str, target: str, daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "fails", *args, retry=retry)
    eventually(lambda: counted(client, 0, 1))
    assert attempts(client, jid) == [end]
    filed = {key: client.zcard(key) for key in ("cogworker:retry", "cogworker:dead")}
    assert filed == {key: int(key == target) for key in filed}
    if target:
        entry, score = only_entry(client, target)
        assert entry["jid"] == jid
        wait = 0 if end != "retrying" else 1800 if args else 3600
        assert score == pytest.approx(time.time() + wait, abs=60)
    asked = [(line["attempt"], line["error"]) for line in books(witness, "t:asked")]
    assert asked == ([] if args else [(1, "ValueError")])
    event = {"retrying": "job.failed", "discarded": "job.discarded"}.get(end, "job.dead")
    assert len(running.lines(event)) == 1
    assert running.stop() == 0


def test_the_attempts_of_a_job_are_logged_one_after_the_other(daemon: Start, client: Client, witness: Client) -> None:
    running = start(daemon)
    jid = push_raw(client, "fails", "retry", 0, retry=2)
    entry, _ = only_entry(client, "cogworker:dead")
    assert (entry["retry_count"], entry["error_class"]) == (3, "Retry")
    assert attempts(client, jid) == ["retrying", "retrying", "dead"]
    assert running.stop() == 0


def test_the_verdict_of_the_hook_stays_when_middleware_replaces_the_error(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "fails", retry=3, meta={"do": "replace"})
    entry, score = only_entry(client, "cogworker:retry")
    assert (entry["jid"], entry["error_class"], entry["error_message"]) == (jid, "KeyError", "'instead'")
    assert score == pytest.approx(time.time() + 3600, abs=60)
    assert [(line["attempt"], line["error"]) for line in books(witness, "t:asked")] == [(1, "ValueError")]
    assert chain(witness, jid)[-1] == ("outer saw", "KeyError")
    assert running.stop() == 0
