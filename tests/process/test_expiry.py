"""Jobs not started in time are dropped: one line, one entry in the history, and nothing else is left of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cogworkerd import App
from cogworkerd.inspect import History, Run, Store, read_attempts
from cogworkerd.unique import unique_digest
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]
QUEUE, RETRY, DEAD = "cogworker:queue:default", "cogworker:retry", "cogworker:dead"
fetches = pytest.mark.parametrize("fetch", ["reliable", "basic"])


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    """A client that knows the jobs by their names."""
    made = App(server.url)
    yield made
    made.client.close()


def start(daemon: Start, *flags: str, slots: int = 1, **env: str) -> Daemon:
    return daemon("-c", str(slots), *flags, target="crashing_jobs:app", env=env).ready()


def ran(witness: Client, jid: str) -> bool:
    return bool(witness.exists(f"t:marks:{jid}"))


def expired(running: Daemon, *jids: str) -> list[dict[str, Any]]:
    """Wait until these jobs are told to have come too late, each once, and nobody else."""
    eventually(lambda: len(running.lines("job.expired")) >= len(jids), 10)
    lines = running.lines("job.expired")
    assert sorted(line["jid"] for line in lines) == sorted(jids)
    return lines


def dropped(app: App, client: Client, witness: Client, jid: str) -> Run:
    """Wait until a job is written down as one that came too late, and that only."""
    history = History(Store.of(app))
    (run,) = eventually(lambda: history.of_job(jid, "failed"))
    assert (run.ok, run.error_class, run.backtrace) == (False, "Expired", ["Expired: " + run.error_message])
    assert run.error_message.startswith("not started in time: ")
    assert history.of_job(jid) == [Run(**{**vars(run), "backtrace": [], "fields": history.of_job(jid)[0].fields})]
    assert history.of_job(jid, "success") == []
    status: Any = eventually(lambda: (found := app.status(jid)) and found.status == "failed" and found)
    assert (status.error_class, status.error_message) == ("Expired", run.error_message)
    assert read_attempts(Store.of(app), jid) == []
    assert not any(jid in raw for key in (RETRY, DEAD, "cogworker:schedule") for raw in client.zrange(key, 0, -1))
    return run


def counted(client: Client) -> tuple[int, int]:
    """How many runs were counted as processed and as failed."""
    found = [int(client.get(f"cogworker:stats:{name}") or 0) for name in ("processed", "failed")]
    return found[0], found[1]


def in_order(running: Daemon, client: Client, witness: Client, processed: int = 0, failed: int = 0) -> None:
    """The next job is performed, nothing is left behind, and only what ran was counted."""
    jid = push_raw(client, "note")
    eventually(lambda: ran(witness, jid))
    eventually(lambda: counted(client) == (processed + 1, failed))
    assert inprogress(client) == []
    assert client.llen(QUEUE) == 0
    assert running.stop() == 0
    throughput = [client.hgetall(key) for key in client.keys("cogworker:throughput:*")]
    assert sum(int(each.get("failed", 0)) for each in throughput) == failed
    running.clean_log()


@fetches
def test_a_late_job_is_dropped_and_told_in_one_line_and_is_neither_processed_nor_failed(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    jid = app.push("note", [5], expires_at=time.time() - 60, status=True, retry=3)
    assert jid is not None
    running = start(daemon, "--fetch", fetch)
    (line,) = expired(running, jid)
    assert (line["job"], line["queue"], line["level"]) == ("note", "default", "warning")
    assert 60 <= line["late"] < 600
    run = dropped(app, client, witness, jid)
    assert (run.name, run.queue, run.fields["args"]) == ("note", "default", [5])
    assert 0 <= run.finished_at - run.started_at < 5
    in_order(running, client, witness, processed=0)
    assert not ran(witness, jid)
    assert not witness.exists("t:deaths")
    assert running.lines("job.start")[0]["jid"] != jid
    days = History(Store.of(app)).daily(2)
    assert sum(day["failed"] for day in days.values()) == 0
    assert client.keys(f"cogworker:orphanings:{jid}") == []


def test_a_job_that_is_started_in_time_runs_to_its_end_however_long_it_lasts(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    limit = time.time() + 1.5
    jid = app.push("last", [2.5], expires_at=limit)
    eventually(lambda: counted(client) == (1, 0), 10)
    assert time.time() > limit
    assert [mark.split()[0] for mark in witness.lrange(f"t:marks:{jid}", 0, -1)] == ["began", "ended"]
    assert running.lines("job.expired") == []
    in_order(running, client, witness, processed=1)


@pytest.mark.parametrize("way", ["at once", "with a delay", "at a time"])
def test_expires_in_counts_from_when_the_job_is_due(
    way: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    delays: dict[str, dict[str, Any]] = {"at once": {}, "with a delay": {"delay": 1}, "at a time": {}}
    if way == "at a time":
        delays[way] = {"at": time.time() + 1}
    late = app.push("note", expires_in=0.5, **delays[way])
    in_time = app.push("note", expires_in=600, **delays[way])
    assert late is not None
    assert in_time is not None
    pushed = time.time()
    due = pushed + (0 if way == "at once" else 1)
    eventually(lambda: time.time() > due + 0.6)
    running = start(daemon)
    expired(running, late)
    dropped(app, client, witness, late)
    eventually(lambda: ran(witness, in_time))
    in_order(running, client, witness, processed=1)
    assert not ran(witness, late)


def test_a_scheduled_job_that_is_moved_in_time_is_not_late_although_it_has_waited_for_longer(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = app.push("note", expires_in=1.5, delay=2)
    assert jid is not None
    eventually(lambda: ran(witness, jid), 10)
    in_order(running, client, witness, processed=1)
    assert running.lines("job.expired") == []


NONSENSE: tuple[Any, ...] = (
    *(None, True, False, "", "soon", "1700000000", [], [1], {}, {"at": 1}, 0, -1, -1.5),
    *(float("nan"), float("inf"), float("-inf"), 1e12, 1.7e12, 10**400),
)


def test_a_foreign_value_that_is_no_time_means_nothing(daemon: Start, client: Client, witness: Client) -> None:
    jids = [push_raw(client, "note", expires_at=value) for value in NONSENSE]
    jids.append(push_raw(client, "note", expires_in=1, at=1.0, enqueued_at=1.0))
    running = start(daemon)
    eventually(lambda: all(ran(witness, jid) for jid in jids), 10)
    in_order(running, client, witness, processed=len(jids))
    assert running.lines("job.expired") == []


@pytest.mark.parametrize(
    "odd",
    [
        {"redact": ["*"], "args": [1]},
        {"class": "nobody knows"},
        {"retry": "nonsense", "retry_count": "many", "enqueued_at": "x"},
        {"queue": 5, "tags": 7, "meta": "m", "status": True},
        {"class": "f\u00fcr \ud83d\udc19 " + "x" * 5000, "args": ["y" * 100_000]},
    ],
    ids=["redacted", "unknown", "odd numbers", "odd types", "long"],
)
def test_a_late_job_that_is_odd_in_another_way_is_dropped_too(
    odd: dict[str, Any], daemon: Start, app: App, client: Client, witness: Client
) -> None:
    jid = "0dd" * 8
    payload = {"class": "note", "args": [], "queue": "default", "jid": jid, "expires_at": time.time() - 5, **odd}
    client.lpush(QUEUE, json.dumps(payload))
    running = start(daemon)
    expired(running, jid)
    dropped(app, client, witness, jid)
    in_order(running, client, witness)


# ---- locks ----------------------------------------------------------------------------------------------


@fetches
def test_c53_an_expired_job_holds_its_unique_lock_no_more(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    def push(**options: Any) -> str | None:
        return app.push("note", [1], unique="until_executed", **options)

    lock = f"cogworker:unique:{unique_digest({'class': 'note', 'args': [1]}, 'default')}"
    jid = push(expires_in=0.2)
    assert jid is not None
    assert client.get(lock) == jid
    eventually(lambda: time.time() > float(json.loads(client.lindex(QUEUE, 0))["expires_at"]))
    assert push() is None, "it still waits"
    running = start(daemon, "--fetch", fetch)
    expired(running, jid)
    eventually(lambda: not client.exists(lock))
    again = push()
    assert again is not None
    eventually(lambda: ran(witness, again))
    eventually(lambda: not client.exists(lock))
    dropped(app, client, witness, jid)
    in_order(running, client, witness, processed=1)


@fetches
def test_the_running_lock_of_a_periodic_entry_is_released_when_its_job_came_too_late(
    fetch: str, daemon: Start, client: Client, witness: Client
) -> None:
    blocker = push_raw(client, "gated")
    running = start(daemon, "--fetch", fetch, PERIODIC="* * * * * *")
    eventually(lambda: ran(witness, blocker))
    (fired,) = eventually(lambda: running.lines("cron.fired"), 10)
    lock = f"periodic:running:{fired['pjid']}"
    assert client.get(lock) == fired["jid"]
    eventually(lambda: time.time() > fired["slot"] + 1.2)
    assert len(running.lines("cron.fired")) == 1, "the entry waits for its job"
    witness.set("t:gate", 1)
    (line, *_) = eventually(lambda: running.lines("job.expired"))
    assert (line["jid"], line["job"]) == (fired["jid"], "hurry")
    eventually(lambda: witness.llen("t:hurry"), 10)
    assert str(fired["slot"]) not in witness.lrange("t:hurry", 0, -1)
    assert running.stop() == 0
    running.clean_log()


# ---- retries --------------------------------------------------------------------------------------------


@fetches
def test_a_retry_that_comes_too_late_is_dropped(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    limit = time.time() + 3
    jid = app.push("fail", expires_at=limit, retry=3, unique="until_executed")
    assert jid is not None
    (raw,) = eventually(lambda: client.zrange(RETRY, 0, -1))
    (lock,) = client.keys("cogworker:unique:*")
    eventually(lambda: time.time() > limit)
    client.zadd(RETRY, {raw: 1})
    expired(running, jid)
    history = History(Store.of(app))
    eventually(lambda: [run.error_class for run in history.of_job(jid, "failed")] == ["Expired", "ValueError"])
    status: Any = eventually(lambda: (found := app.status(jid)) and found.error_class == "Expired" and found)
    assert status.status == "failed"
    assert [each.outcome for each in read_attempts(Store.of(app), jid)] == ["retrying"]
    assert witness.llen(f"t:marks:{jid}") == 1
    assert not client.exists(lock)
    assert client.zcard(RETRY) == client.zcard(DEAD) == 0
    in_order(running, client, witness, failed=1)


def test_a_job_that_lost_its_process_and_comes_back_too_late_is_dropped_and_blamed_no_more(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    limit = time.time() + 2
    jid = app.push("gated", expires_at=limit)
    assert jid is not None
    (mark,) = eventually(lambda: witness.lrange(f"t:marks:{jid}", 0, -1))
    eventually(lambda: time.time() > limit)
    (child,) = running.children()
    assert child.pid == int(mark.split()[1])
    child.kill()
    expired(running, jid)
    history = History(Store.of(app))
    eventually(lambda: [run.error_class for run in history.of_job(jid)] == ["Expired", "ProcessDied"])
    eventually(lambda: not client.exists(f"cogworker:orphanings:{jid}"))
    assert witness.llen(f"t:marks:{jid}") == 1
    in_order(running, client, witness)


def test_many_late_jobs_are_each_dropped_once(daemon: Start, app: App, client: Client, witness: Client) -> None:
    late = [push_raw(client, "note", n, expires_at=1) for n in range(500)]
    good = [push_raw(client, "note", n, expires_at=time.time() + 600) for n in range(100)]
    running = start(daemon, slots=4)
    expired(running, *late)
    eventually(lambda: all(ran(witness, jid) for jid in good))
    history = History(Store.of(app))
    eventually(lambda: (history.size("failed"), history.size("success")) == (len(late), len(good)))
    in_order(running, client, witness, processed=len(good))
