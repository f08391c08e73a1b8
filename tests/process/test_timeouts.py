"""Timeouts: whatever a job does, it is ended in time, its slot is back, and what is written down says what happened."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from cogworkerd import App
from cogworkerd.inspect import History, Run, Store, read_attempts
from cogworkerd.interrupts import Interrupt
from cogworkerd.worker.slot_page import SlotPage, run_number
from tests.support import PATIENCE, Client, Daemon, Server, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]
SLOTS = 2
RETRY, DEAD = "cogworker:retry", "cogworker:dead"
LIMIT = 0.5 * PATIENCE  # a job gets to the point within it
TOLD = f"still running after {LIMIT:g} s"
fetches = pytest.mark.parametrize("fetch", ["reliable", pytest.param("basic", marks=pytest.mark.slow)])


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    """A client that knows the jobs by their names."""
    made = App(server.url)
    yield made
    made.client.close()


def start(daemon: Start, *flags: str, grace: float = 1, slots: int = SLOTS, **settings: object) -> Daemon:
    env = {"COGWORKERD_TIMEOUT_GRACE": str(grace), **{name: str(value) for name, value in settings.items()}}
    return daemon("-c", str(slots), *flags, target="stoppable_jobs:app", env=env).ready()


def marks(witness: Client, jid: str) -> list[str]:
    found: list[str] = witness.lrange(f"t:marks:{jid}", 0, -1)
    return found


def the_entry(client: Client, key: str, jid: str) -> dict[str, Any]:
    """Wait for the job in a set; it is there once."""

    def found() -> list[dict[str, Any]]:
        return [entry for entry in map(json.loads, client.zrange(key, 0, -1)) if entry["jid"] == jid]

    (entry,) = eventually(found, 10, f"{jid} in {key}")
    return entry


def runs_of(app: App, jid: str) -> list[Run]:
    """Wait for its history; the newest run first."""
    history = History(Store.of(app))
    found = eventually(lambda: history.of_job(jid))
    return history.of_job(jid, "failed") or found  # only the former have their tracebacks


def timed_out(app: App, client: Client, jid: str, key: str = RETRY, told: str = TOLD) -> Run:
    """Wait until the job is written down as one that has run for too long, once, everywhere; its run."""
    entry = the_entry(client, key, jid)
    assert (entry["error_class"], entry["error_message"], entry["retry_count"]) == ("JobTimeout", told, 1)
    attempts = eventually(lambda: read_attempts(Store.of(app), jid))
    outcome = {RETRY: "retrying", DEAD: "dead"}[key]
    assert [(each.attempt, each.outcome, each.error_class) for each in attempts] == [(1, outcome, "JobTimeout")]
    (run,) = runs_of(app, jid)
    assert (run.ok, run.error_class, run.error_message) == (False, "JobTimeout", told)
    wanted = ({RETRY: "retrying", DEAD: "failed"}[key], "JobTimeout", told)

    def said() -> Any:
        status = app.status(jid)
        return status is not None and (status.status, status.error_class, status.error_message) == wanted

    eventually(said, message=f"{wanted}")
    assert not client.exists(f"cogworker:orphanings:{jid}")
    return run


def in_order(running: Daemon, client: Client, slots: int = SLOTS, **statistics: int) -> None:
    """Every slot takes jobs, nothing is left in progress, nobody is left behind, and the daemon stops."""
    for _ in range(slots):
        push_raw(client, "meet", "t:meeting", slots, retry=False)
    counted = {"processed": 0, "failed": 0, **statistics}
    counted["processed"] += slots

    def counts() -> dict[str, int]:
        return {name: int(client.get(f"cogworker:stats:{name}") or 0) for name in counted}

    eventually(lambda: counts() == counted, 15, f"{counted}, not {counts()}")
    assert inprogress(client) == []
    assert client.llen("cogworker:queue:default") == 0
    assert len(running.children()) == slots
    assert client.keys("cogworker:orphanings:*") == []
    assert [running.lines(event) for event in ("child.died", "daemon.crashed")] == [[], []]
    assert [line for line in running.lines("job.orphaned") if line["blame"]] == []
    eventually(lambda: zombies(running.pid) == [])
    assert running.stop() == 0


def slow(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


# ---- offenders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "where"),
    [
        ("offend", "sleeps", "_sleep"),
        pytest.param("offend", "loops", "_loop", marks=pytest.mark.slow),
        pytest.param("offend", "makes a power", "_power", marks=pytest.mark.slow),
        pytest.param("offend", "is deadlocked", "_deadlock", marks=pytest.mark.slow),
        pytest.param("offend", "joins a thread", "_join", marks=pytest.mark.slow),
        pytest.param("offend", "waits for a program", "_program", marks=pytest.mark.slow),
        pytest.param("offend", "swallows exceptions", "_swallow_exceptions", marks=pytest.mark.slow),
        pytest.param("offend", "cleans up", "_clean_up", marks=pytest.mark.slow),
        ("offend", "cleans up badly", "_clean_up_badly"),
        ("offend_async", "sleeps", "_async_sleep"),
        pytest.param("offend_async", "cleans up", "_async_clean_up", marks=pytest.mark.slow),
        pytest.param("offend_async", "cleans up badly", "_async_clean_up_badly", marks=pytest.mark.slow),
        pytest.param("offend_async", "has a group", "_async_group", marks=pytest.mark.slow),
    ],
)
def test_a_job_that_can_be_interrupted_ends_by_the_error_and_its_child_goes_on(
    name: str, kind: str, where: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, grace=30)
    before = running.child_pids()
    jid = push_raw(client, name, kind, timeout=LIMIT)
    run = timed_out(app, client, jid)
    assert any(f"in {where}" in line for line in run.backtrace), run.backtrace
    cleaned = ["cleaned up"] if kind in ("cleans up", "cleans up badly", "has a group") else []
    assert marks(witness, jid) == ["began", *cleaned]
    if kind == "cleans up badly":
        assert any("KeyError: 'the cleanup'" in line for line in run.backtrace)
    for pid in witness.lrange(f"t:processes:{jid}", 0, -1):
        eventually(lambda pid=pid: not psutil.pid_exists(int(pid)))
    (told,) = running.lines("job.interrupted")
    assert (told["jid"], told["job"], told["order"], told["reason"]) == (jid, name, "timeout", TOLD)
    assert running.lines("child.killed") == []
    assert running.child_pids() == before
    in_order(running, client, failed=1)


@pytest.mark.parametrize(
    ("name", "kind", "where"),
    [
        ("offend", "holds the interpreter", "_hold_the_interpreter"),
        pytest.param("offend", "stays in C", "_stay_in_c", marks=pytest.mark.slow),
        pytest.param("offend", "ignores", "_ignore", marks=pytest.mark.slow),
        pytest.param("offend", "own handler", "_own_handler", marks=pytest.mark.slow),
        pytest.param("offend", "ignored signal", "_ignored_signal", marks=pytest.mark.slow),
        pytest.param(
            *("offend", "default handler", ""),
            marks=pytest.mark.slow,
        ),
        pytest.param("offend", "blocked signals", "", marks=pytest.mark.slow),
        pytest.param(
            *("offend", "no stack", ""),
            marks=pytest.mark.slow,
        ),
        ("offend", "stops itself", ""),
        ("offend", "has a family", "_family"),
        pytest.param("offend", "cleans up for long", "_clean_up_for_long", marks=pytest.mark.slow),
        ("offend_async", "ignores once", "select"),
        pytest.param("offend_async", "blocks its loop", "_async_block", marks=pytest.mark.slow),
        pytest.param("offend_async", "waits for a thread", "", marks=pytest.mark.slow),
    ],
)
def test_a_job_that_does_not_end_is_killed_with_its_processes_and_has_failed(
    name: str, kind: str, where: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    before = running.child_pids()
    jid = push_raw(client, name, kind, timeout=LIMIT)
    run = timed_out(app, client, jid)
    if where:
        assert any(where in line for line in run.backtrace), run.backtrace
    (killed,) = running.lines("child.killed")
    assert killed["why"] == f"JobTimeout: {TOLD}"
    eventually(lambda: len(running.child_pids()) == SLOTS)
    assert len(set(before) & set(running.child_pids())) == SLOTS - 1
    family = [int(pid) for pid in witness.lrange(f"t:processes:{jid}", 0, -1)]
    assert len(family) == (2 if kind == "has a family" else 0)
    for pid in family:
        eventually(lambda pid=pid: not psutil.pid_exists(pid))
    found = marks(witness, jid)
    assert found.count("began") == 1
    assert "ended" not in found
    in_order(running, client, failed=1)
    running.clean_log()


@pytest.mark.parametrize("name", ["offend", "offend_async"])
def test_a_job_that_takes_its_timeout_and_returns_has_ended_well(
    name: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    before = running.child_pids()
    jid = push_raw(client, name, "swallows", timeout=LIMIT)
    eventually(lambda: client.get("cogworker:stats:processed") == "1")
    assert marks(witness, jid) == ["began", "JobTimeout" if name == "offend" else "CancelledError", "ended"]
    (run,) = runs_of(app, jid)
    assert run.ok
    assert client.zcard(RETRY) == client.zcard(DEAD) == 0
    assert read_attempts(Store.of(app), jid) == []
    assert running.child_pids() == before
    in_order(running, client, processed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "key", "outcome"),
    [("decides Retry", RETRY, "retrying"), ("decides Bury", DEAD, "killed"), ("decides Discard", "", "discarded")],
)
def test_a_job_may_decide_what_becomes_of_it_when_its_time_is_over(
    kind: str, key: str, outcome: str, daemon: Start, app: App, client: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "offend", kind, timeout=LIMIT)
    attempts = eventually(lambda: read_attempts(Store.of(app), jid))
    assert [(each.outcome, each.error_class) for each in attempts] == [(outcome, "JobTimeout")]
    if key:
        the_entry(client, key, jid)
    assert client.zcard(RETRY) + client.zcard(DEAD) == bool(key)
    in_order(running, client, failed=1)


def test_what_a_killed_job_stored_and_its_progress_stay_in_its_status(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "offend", "holds the interpreter", timeout=LIMIT, status=True, retry=False)
    working: Any = eventually(lambda: app.status(jid))
    assert working.status in ("working", "failed")
    timed_out(app, client, jid, DEAD)
    in_order(running, client, failed=1)


# ---- what a timeout is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["last", "last_asynchronously"])
def test_a_job_that_is_over_before_its_time_is_left_alone(
    name: str, daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jids = [push_raw(client, name, 0.6, timeout=limit) for limit in (30, 1e8)]
    eventually(lambda: client.get("cogworker:stats:processed") == "2")
    assert [marks(witness, jid) for jid in jids] == [["began", "ended"]] * 2
    assert running.lines("job.interrupted") == []
    in_order(running, client, processed=2)


@pytest.mark.parametrize(("default", "own"), [(LIMIT, 30), (30, LIMIT)])
def test_a_jobs_own_timeout_counts_and_the_setting_is_for_those_that_have_none(
    default: float, own: float, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, COGWORKERD_TIMEOUT=default)
    own_timeout: dict[str, Any] = {"timeout": own}
    none: dict[str, Any] = {}
    ended, lasts = (none, own_timeout) if default < own else (own_timeout, none)
    early = push_raw(client, "last", 20, **ended)
    late = push_raw(client, "last", 1.2, **lasts)
    eventually(lambda: marks(witness, late) == ["began", "ended"])
    timed_out(app, client, early)
    in_order(running, client, processed=1, failed=1)


NONSENSE: tuple[Any, ...] = (
    *("soon", "0.1", "", True, False, None, 0, -1, -0.5, float("nan"), float("inf"), float("-inf")),
    *(1e9, 10**400, [0.1], {"seconds": 0.1}),
)


@pytest.mark.slow
@pytest.mark.parametrize("default", [None, 0.5])
def test_a_timeout_that_makes_no_sense_is_as_good_as_none(
    default: float | None, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, slots=8, **({} if default is None else {"COGWORKERD_TIMEOUT": default}))
    jids = [push_raw(client, "last", 1.5, timeout=value, retry=False) for value in NONSENSE]
    jids.append(push_raw(client, "last", 1.5, {"timeout": 0.1}, retry=False) if default else jids[0])
    kind = "processed" if default is None else "failed"
    wanted = {*jids}
    eventually(lambda: client.get(f"cogworker:stats:{kind}") == str(len(wanted)), 20)
    if default is None:
        assert [marks(witness, jid) for jid in jids] == [["began", "ended"]] * len(jids)
    in_order(running, client, slots=8, **{kind: len(wanted)})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sleeps", "ignores"])
@pytest.mark.parametrize("places", [["*\u00b2"], ["*" + "9" * 5000]], ids=["no decimal digit", "too many digits"])
def test_a_job_with_a_redact_that_makes_no_sense_times_out_like_others(
    places: list[str], kind: str, daemon: Start, app: App, client: Client
) -> None:
    running = start(daemon)
    timed_out(app, client, push_raw(client, "offend", kind, timeout=LIMIT, redact=places))
    in_order(running, client, failed=1)


# ---- around the kill ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sleeps", *slow("ignores")])
def test_the_retry_in_hook_is_asked_with_the_timeout_by_a_job_that_is_interrupted_and_not_for_a_killed_one(
    kind: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "asking", kind, timeout=LIMIT, retry=3)
    timed_out(app, client, jid)
    ((_, score),) = client.zrange(RETRY, 0, -1, withscores=True)
    finished = runs_of(app, jid)[0].finished_at
    if kind == "sleeps":
        assert marks(witness, jid) == ["began", "asked with JobTimeout after run 1"]
        assert abs(score - finished - 3600) < 10
    else:
        assert marks(witness, jid) == ["began", "JobTimeout"]
        assert 14 <= score - finished <= 45 + 10, "the usual back-off"
    in_order(running, client, failed=1)


@pytest.mark.parametrize("kind", ["ignores", *slow("sleeps")])
def test_the_death_hooks_of_a_job_that_timed_out_for_the_last_time_are_called_once(
    kind: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push_raw(client, "mourned", kind, timeout=LIMIT, retry=False)
    timed_out(app, client, jid, DEAD)
    swallowed = ["JobTimeout"] if kind == "ignores" else []
    eventually(lambda: marks(witness, jid) == ["began", *swallowed, "mourned JobTimeout"], 10)
    in_order(running, client, failed=1)
    assert marks(witness, jid).count("mourned JobTimeout") == 1


@fetches
@pytest.mark.parametrize("kind", ["ignores", *slow("sleeps")])
def test_a_job_that_timed_out_holds_its_unique_lock_until_no_retry_is_left(
    kind: str, fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    def push() -> str | None:
        return app.push("offend", [kind], unique="until_executed", timeout=LIMIT, retry=1)

    running = start(daemon, "--fetch", fetch)
    jid = push()
    assert jid is not None
    timed_out(app, client, jid)
    (lock,) = client.keys("cogworker:unique:*")
    assert client.get(lock) == jid
    assert client.ttl(lock) > 86_400
    assert push() is None
    (raw,) = client.zrange(RETRY, 0, -1)
    client.zadd(RETRY, {raw: 1})
    assert the_entry(client, DEAD, jid)["retry_count"] == 2
    eventually(lambda: not client.exists(lock))
    assert [each.outcome for each in read_attempts(Store.of(app), jid)] == ["retrying", "dead"]
    in_order(running, client, failed=2)


@fetches
@pytest.mark.parametrize("kind", ["sleeps", "holds the interpreter"])
@pytest.mark.parametrize(("retry", "key"), [(1, RETRY), (False, DEAD)])
@pytest.mark.slow
def test_with_each_way_to_fetch_a_timeout_is_a_failure_with_or_without_retries(
    retry: bool | int, key: str, kind: str, fetch: str, daemon: Start, app: App, client: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    timed_out(app, client, push_raw(client, "offend", kind, timeout=LIMIT, retry=retry), key)
    in_order(running, client, failed=1)


@pytest.mark.slow
def test_a_timeout_is_kept_while_the_server_is_away_and_written_down_when_it_is_back(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    server = make_server()
    assert server.process is not None
    app = App(server.url)
    with server.client() as client:
        running = daemon(
            *("-c", str(SLOTS)),
            url=server.url,
            target="stoppable_jobs:app",
            env={"COGWORKERD_TIMEOUT_GRACE": "1"},
        ).ready()
        jid = push_raw(client, "offend", "ignores", timeout=2)
        eventually(lambda: marks(witness, jid) == ["began"])
        server.process.send_signal(signal.SIGSTOP)
        eventually(lambda: running.lines("child.killed"), 10)
        server.process.send_signal(signal.SIGCONT)
        timed_out(app, client, jid, told="still running after 2 s")
        in_order(running, client, failed=1)
    app.client.close()


@pytest.mark.slow
def test_a_timeout_counts_in_a_drain_too(daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = start(daemon, "--shutdown-timeout", "20")
    jids = [push_raw(client, "offend", kind, timeout=1.5) for kind in ("sleeps", "ignores")]
    eventually(lambda: all(marks(witness, jid) == ["began"] for jid in jids))
    assert running.stop(15) == 0
    for jid in jids:
        timed_out(app, client, jid, told="still running after 1.5 s")
    assert client.llen("cogworker:queue:default") == 0
    assert inprogress(client) == []


# ---- the job behind it ----------------------------------------------------------------------------------


def ended_once(app: App, client: Client, witness: Client, jids: list[str], within: float) -> dict[str, set[str]]:
    """Wait until all of them have ended, and see that each has done so once; the ids by how."""
    history = History(Store.of(app))

    def ended() -> bool:
        return history.size() >= len(jids)

    eventually(ended, within, "all runs are written down")
    eventually(lambda: inprogress(client) == [])
    runs = history.page(size=10 * len(jids))
    assert Counter(run.jid for run in runs) == dict.fromkeys(jids, 1)
    dead = Counter(json.loads(entry)["jid"] for entry in client.zrange(DEAD, 0, -1))
    assert dead == {run.jid: 1 for run in runs if not run.ok}
    assert client.zcard(RETRY) == client.llen("cogworker:queue:default") == 0
    assert {run.error_class for run in runs if not run.ok} <= {"JobTimeout"}
    assert [jid for jid in jids if marks(witness, jid).count("began") != 1] == []
    good = {run.jid for run in runs if run.ok}
    assert [jid for jid in good if marks(witness, jid)[-1] != "ended"] == []
    assert client.get("cogworker:stats:processed") == str(len(good))
    return {"good": good, "timed out": set(jids) - good}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["last", "last_asynchronously"])
def test_a_late_order_hits_no_other_job_and_each_ends_once(
    name: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, slots=4)
    chance = random.Random(7)
    jids, free = [], []
    for _ in range(200):
        jids.append(push_raw(client, name, chance.uniform(0.4, 0.6), timeout=0.5, retry=False))
        free.append(push_raw(client, name, chance.uniform(0, 0.02), retry=False))
    found = ended_once(app, client, witness, [*jids, *free], 90)
    assert found["timed out"] & set(free) == set()
    assert found["timed out"], "the limit is among the run times"
    assert running.lines("child.killed") == []
    in_order(running, client, slots=4, processed=len(found["good"]), failed=len(found["timed out"]))


@pytest.mark.slow
def test_a_late_kill_hits_no_other_job_and_each_ends_once(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, slots=4, grace=0.2)
    chance = random.Random(7)
    jids, free = [], []
    for _ in range(120):
        jids.append(push_raw(client, "last_stubbornly", chance.uniform(0.45, 0.9), timeout=0.3, retry=False))
        free.append(push_raw(client, "last", chance.uniform(0, 0.02), retry=False))
    found = ended_once(app, client, witness, [*jids, *free], 90)
    assert found["timed out"] & set(free) == set()
    assert found["timed out"], "some are killed"
    in_order(running, client, slots=4, processed=len(found["good"]), failed=len(found["timed out"]))


class Interleaved:
    """The numbers of a page; between the first two reads somebody else has a turn."""

    def __init__(self, fields: Any, turn: Callable[[], None]) -> None:
        self._fields = fields
        self._turn: Callable[[], None] | None = turn

    def __getitem__(self, index: int) -> int:
        found = int(self._fields[index])
        turn, self._turn = self._turn, None
        if turn is not None:
            turn()
        return found


def test_an_order_for_an_earlier_run_is_not_taken_for_one_that_is_just_being_left() -> None:
    written, read = SlotPage(), SlotPage()
    written.order(Interrupt.TIMEOUT, run_number(1, 1))
    run = run_number(1, 2)
    fields: Any = vars(written)["_fields"]
    vars(read)["_fields"] = Interleaved(fields, lambda: written.order(Interrupt.CANCEL_REQUEUE, run))
    assert read.order_for(run) in (0, Interrupt.CANCEL_REQUEUE)


def test_a_job_that_ends_while_its_kill_is_on_its_way_leaves_the_verdict_to_no_other_job(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, slots=1, grace=0.2, SLOW_KILL=1)
    jid = push_raw(client, "last_until_killed", timeout=LIMIT, retry=False)
    eventually(lambda: marks(witness, jid)[:1] == ["began"])
    other = push_raw(client, "last", 3, retry=False)
    eventually(lambda: "ended" in marks(witness, other) or client.zcard(DEAD), 15)
    eventually(lambda: len(marks(witness, jid)) >= 3)
    assert marks(witness, jid) == ["began", "ignored", "ended"]
    assert client.zcard(DEAD) == 0
    in_order(running, client, slots=1, processed=2)
