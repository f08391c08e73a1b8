"""What real daemons write down of the runs of their jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import redis

from cogworkerd import App
from cogworkerd.history import History, Run
from cogworkerd.job import Job
from cogworkerd.jobsets import Store
from cogworkerd.locks import Locks
from cogworkerd.stats import Stats
from cogworkerd.status import JobStatus
from cogworkerd.store.keys import Keys
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]
KEYS = Keys()
DEAD = KEYS.dead


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with redis.Redis(port=server.port) as client:
        yield Store(client, KEYS, Locks(KEYS))


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    found = App(server.url)
    yield found
    found.client.close()


def start(daemon: Start, *flags: str, slots: int = 1, **options: Any) -> Daemon:
    return daemon("-c", str(slots), *flags, target="recorded_jobs:app", **options).ready()


def runs(store: Store, jid: str, count: int = 1, within: float = 10) -> list[Run]:
    """Wait until so many runs of a job are written down; all of them, the first one first."""
    history = History(store)
    eventually(lambda: len(history.of_job(jid)) >= count, within, f"{count} runs of {jid}")
    return history.of_job(jid)[::-1]


def today(store: Store) -> dict[str, int]:
    (counts,) = History(store).daily(1).values()
    return counts


def status(app: App, jid: str, state: str, within: float = 10) -> JobStatus:
    """Wait until a job stands there."""

    def look() -> JobStatus | None:
        found = app.status(jid)
        return found if found is not None and found.status == state else None

    found = eventually(look, within, f"{jid} is {state}")
    assert found is not None
    return found


def at_the_gate(witness: Client, count: int = 1) -> None:
    eventually(lambda: witness.llen("t:pids") >= count, 10, "a job at the gate")


def everything(client: Client, *, but: tuple[str, ...] = ()) -> str:
    """All that the server holds, as one text."""
    found = []
    for key in client.keys("*"):
        if key.startswith(but):
            continue
        read = {"string": client.get, "hash": client.hgetall, "set": client.smembers}
        kind = client.type(key)
        if kind in ("list", "zset"):
            value = client.lrange(key, 0, -1) if kind == "list" else client.zrange(key, 0, -1)
        else:
            value = read.get(kind, lambda key: None)(key)
        found.append(f"{key}: {value}")
    return "\n".join(found)


# ---- every run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fetch", ["reliable", pytest.param("basic", marks=pytest.mark.slow)])
def test_r66_every_run_is_recorded_success_or_failure_and_requeued_ones_are_neither(
    fetch: str, daemon: Start, store: Store, client: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    good = push_raw(client, "fine", 5, retry=3)
    retried = push_raw(client, "fails", retry=3)
    ends = [push_raw(client, "fails", how, retry=3) for how in ("bury", "discard")]
    unknown = push_raw(client, "nobody", retry=False)
    requeued = push_raw(client, "requeues", retry=3)
    (run,) = runs(store, good)
    assert (run.ok, run.name, run.queue, run.fields["args"]) == (True, "fine", "default", [5])
    assert run.started_at <= run.finished_at <= time.time()
    failures = [(retried, "ValueError"), *zip(ends, ["Bury", "Discard"], strict=True), (unknown, "UnknownJob")]
    for jid, error in failures:
        (run,) = runs(store, jid)
        assert (run.ok, run.error_class, run.backtrace) == (False, error, [])
        (full,) = History(store).of_job(jid, "failed")
        assert full.backtrace[-1].startswith(f"{error}: ")
    (run,) = runs(store, requeued)
    assert run.ok, "the run that asked for another one is no failure"
    eventually(lambda: today(store) == {"success": 2, "failed": 4})
    eventually(lambda: (Stats(store).processed, Stats(store).failed) == (2, 4))
    costs = {cost.name: (cost.runs, cost.failed) for cost in Stats(store).costs()}
    assert costs == {"fine": (1, 0), "fails": (3, 3), "(not registered)": (1, 1), "requeues": (2, 0)}
    assert History(store).size("success") + History(store).size("failed") == History(store).size() == 6
    assert running.stop() == 0


@pytest.mark.parametrize("fetch", ["reliable", pytest.param("basic", marks=pytest.mark.slow)])
def test_r66_a_run_that_killed_its_process_is_recorded_as_a_failure_and_the_next_one_by_itself(
    fetch: str, daemon: Start, store: Store, client: Client, app: App
) -> None:
    start(daemon, "--fetch", fetch)
    jid = push_raw(client, "crashes", retry=3, enqueued_at=time.time() - 50, status=True)
    lost, good = runs(store, jid, 2)
    assert (lost.ok, lost.error_class, good.ok) == (False, "ProcessDied", True)
    assert "signal 9 (SIGKILL)" in lost.error_message
    assert lost.fields["rss_peak_kb"] > 5000
    assert 50 <= lost.fields["wait"] < 50 + 30
    assert lost.started_at <= lost.finished_at <= good.finished_at
    assert today(store) == {"success": 1, "failed": 1}
    found = status(app, jid, "complete")
    assert (found.error_class, found.error_message) == ("", "")
    (cost,) = [cost for cost in Stats(store).costs() if cost.name == "crashes"]
    assert (cost.runs, cost.failed) == (2, 1)


def test_r66_a_job_that_kills_every_process_has_an_entry_a_run_and_its_status_says_failed(
    daemon: Start, store: Store, client: Client, app: App
) -> None:
    start(daemon)
    jid = push_raw(client, "crashes", True, retry=3)
    assert [run.error_class for run in runs(store, jid, 4, 20)] == ["ProcessDied"] * 4
    found = status(app, jid, "failed", 20)
    assert found.error_class == "ProcessDied"
    assert client.zcard(DEAD) == 1


def test_r66_runs_at_the_moment_of_a_stop_are_recorded(daemon: Start, store: Store, client: Client) -> None:
    running = start(daemon, slots=2)
    jids = [push_raw(client, "fine", n) for n in range(300)]
    eventually(lambda: client.get(KEYS.processed), 10)
    assert running.stop() == 0
    done = int(client.get(KEYS.processed))
    assert (History(store).size("success"), today(store)["success"]) == (done, done)
    assert client.llen(KEYS.queue("default")) == len(jids) - done


def test_r66_an_orphaned_child_whose_supervisor_was_killed_writes_its_run_down(
    daemon: Start, store: Store, client: Client, witness: Client, app: App
) -> None:
    running = start(daemon, slots=2)
    (child, _) = running.children()
    good = push_raw(client, "steps", retry=False)
    bad = push_raw(client, "secretive", "bury", "a token", "a rest", retry=False)
    at_the_gate(witness, 2)
    running.process.kill()
    running.process.wait()
    witness.set("t:gate", 1)
    (run,) = runs(store, good)
    assert run.ok
    (run,) = runs(store, bad)
    assert (run.ok, run.error_class) == (False, "Bury")
    found = status(app, good, "complete")
    assert (found.pct, found.fields["rows"]) == (75.0, "1000")
    assert status(app, bad, "failed").error_class == "Bury"
    assert today(store) == {"success": 1, "failed": 1}
    eventually(lambda: inprogress(client) == [])
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 10)


def test_with_history_off_runs_are_counted_and_with_arguments_off_they_are_left_out(
    daemon: Start, store: Store, client: Client
) -> None:
    running = start(daemon, env={"COGWORKERD_HISTORY": "false"})
    push_raw(client, "fine", 1)
    push_raw(client, "fails", retry=False)
    eventually(lambda: today(store) == {"success": 1, "failed": 1})
    assert client.keys("cogworker:history:[asf]*") == []
    assert running.stop() == 0
    start(daemon, env={"COGWORKERD_HISTORY_ARGS": "false"})
    (run,) = runs(store, push_raw(client, "fine", 12345))
    assert (run.ok, run.fields["args"]) == (True, [])
    assert "12345" not in str(run.fields)


# ---- only the job's own error ---------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["string", "list"])
def test_r66_history_keys_of_a_wrong_type_fail_no_job_and_no_daemon(
    wrong: str, daemon: Start, client: Client, witness: Client, store: Store
) -> None:
    running = start(daemon)
    witness.set("t:gate", 1)
    keys = [*(KEYS.history(kind) for kind in ("all", "success", "failed")), KEYS.history_of_day(time.time())]
    for key in [*keys, KEYS.cost_of_day(time.time()), KEYS.status("j1")]:
        client.delete(key)
        client.set(key, "mine") if wrong == "string" else client.rpush(key, "mine")
    push_raw(client, "steps", jid="j1", status=True)
    push_raw(client, "fails", jid="j2", retry=False)
    (entry,) = eventually(lambda: client.zrange(DEAD, 0, -1))
    assert json.loads(entry)["error_message"] == "no luck"
    eventually(lambda: Stats(store).processed == 1)
    assert not [line for line in running.lines() if line["event"] in ("daemon.crashed", "record.failed")]
    assert running.child_pids() == sorted(child.pid for child in running.known)
    assert running.stop() == 0
    running.clean_log()


def test_r66_a_server_that_refuses_the_records_fails_no_job_and_gets_the_entries_later(
    daemon: Start, make_server: Callable[..., Server]
) -> None:
    server = make_server()
    with server.client() as client, redis.Redis(port=server.port) as raw_client:
        store = Store(raw_client, KEYS, Locks(KEYS))

        def allow(*keys: str) -> None:
            client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "resetkeys", *keys, "&*", "+@all")

        allow("~*")
        running = start(daemon, url=f"redis://worker:secret@127.0.0.1:{server.port}/0")
        allow("~cogworker:[^h]*", "~periodic:*")
        good, bad = push_raw(client, "fine"), push_raw(client, "fails", retry=False)
        eventually(lambda: (Stats(store).processed, Stats(store).failed) == (1, 1))
        eventually(lambda: [line for line in running.lines("redis.refusing") if line["site"] == "record"], 15)
        assert History(store).size() == 0
        allow("~*")
        assert [run.ok for run in runs(store, good, within=30) + runs(store, bad, within=30)] == [True, False]
        assert running.lines("record.failed") == []
        assert running.stop() == 0
        assert inprogress(client) == []


# ---- receipts -------------------------------------------------------------------------------------------


def receipt(store: Store, jid: str) -> dict[str, Any]:
    (run,) = runs(store, jid, within=30)
    assert run.ok, run
    return run.fields


def test_a_receipt_shows_the_cpu_and_the_memory_of_its_run_only_within_a_tenth(
    daemon: Start, store: Store, client: Client, witness: Client
) -> None:
    running = start(daemon)
    big = receipt(store, push_raw(client, "burns", 1.0, 200))
    small = receipt(store, push_raw(client, "burns", 0.1, 20))
    nothing = receipt(store, push_raw(client, "fine"))
    assert len(set(witness.lrange("t:pids", 0, -1))) == 1, "all in one child"
    for found, seconds, mebibytes in ((big, 1.0, 200), (small, 0.1, 20)):
        cpu = found["cpu_user"] + found["cpu_system"]
        filling = 0.5 * mebibytes / 200  # the pages of so much memory cost the kernel's time, too
        assert 0.9 * seconds <= found["cpu_user"] + found["cpu_system"] <= 1.1 * seconds + filling, cpu
        assert found["wall"] >= 0.95 * seconds
        assert 0.9 * mebibytes * 1024 <= found["rss_growth_kb"] <= 1.1 * mebibytes * 1024
    assert big["rss_peak_kb"] > small["rss_peak_kb"] > 20 * 1024
    assert nothing["rss_growth_kb"] < 10 * 1024
    assert nothing["cpu_user"] + nothing["cpu_system"] < 0.1
    costs = {cost.name: cost for cost in Stats(store).costs()}
    assert costs["burns"].runs == 2
    assert costs["burns"].cpu == pytest.approx(
        sum(found[name] for found in (big, small) for name in ("cpu_user", "cpu_system")), abs=0.001
    )
    assert costs["burns"].rss_peak_kb == big["rss_peak_kb"]
    (line, *_) = [line for line in running.lines("job.done") if line["job"] == "burns"]
    assert {name: line[name] for name in ("cpu_user", "rss_growth_kb")} == {
        name: big[name] for name in ("cpu_user", "rss_growth_kb")
    }


def test_the_cpu_of_a_program_that_the_job_runs_counts(daemon: Start, store: Store, client: Client) -> None:
    start(daemon)
    found = receipt(store, push_raw(client, "spawns", 0.5))
    assert 0.45 <= found["cpu_user"] + found["cpu_system"] <= 1.0
    after = receipt(store, push_raw(client, "fine"))
    assert after["cpu_user"] + after["cpu_system"] < 0.1, "it is the other run's"


@pytest.mark.parametrize(
    ("enqueued_at", "least"),
    [(lambda: time.time() - 30, 30.0), (lambda: time.time() + 500, 0.0), (lambda: None, None), (lambda: "soon", None)],
    ids=["waited", "future", "silent", "nonsense"],
)
def test_the_wait_of_a_run_is_from_its_being_enqueued_to_its_start(
    enqueued_at: Callable[[], Any], least: float | None, daemon: Start, store: Store, client: Client
) -> None:
    start(daemon)
    found = receipt(store, push_raw(client, "fine", enqueued_at=enqueued_at()))
    if least is None:
        assert "wait" not in found
    else:
        assert least <= found["wait"] < least + 30
    (cost,) = Stats(store).costs()
    assert (cost.waits, cost.wait >= (least or 0.0)) == (least is not None, True)


# ---- statuses -------------------------------------------------------------------------------------------


def test_what_a_job_says_of_itself_is_seen_while_it_runs_and_after(
    daemon: Start, client: Client, witness: Client, app: App
) -> None:
    start(daemon)
    jid = push_raw(client, "steps", status=True)
    at_the_gate(witness)
    found = status(app, jid, "working")
    assert (found.name, found.queue, found.pct, found.message) == ("steps", "default", 25.0, "a quarter")
    assert found.fields == {"rows": "1000", "name": "caf\u00e9", "found": '["a",{"b":null}]'}
    assert client.ttl(KEYS.status(jid)) > 1700
    witness.set("t:gate", 1)
    after = status(app, jid, "complete")
    assert (after.pct, after.message, after.fields) == (75.0, "a quarter", found.fields)
    assert after.updated_at >= found.updated_at


def test_a_job_that_neither_asks_nor_says_anything_has_no_status(
    daemon: Start, client: Client, witness: Client, app: App, store: Store
) -> None:
    start(daemon)
    jid = push_raw(client, "says_nothing")
    at_the_gate(witness)
    witness.set("t:gate", 1)
    runs(store, jid)
    other = push_raw(client, "fails", retry=False)
    status(app, other, "failed")  # whatever was to be written before is written
    assert app.status(jid) is None


@pytest.mark.parametrize(
    ("how", "budget", "state", "error"),
    [
        *(("", 3, "retrying", "ValueError"), ("", 0, "failed", "ValueError"), ("bury", 3, "failed", "Bury")),
        ("discard", 3, "failed", "Discard"),
    ],
)
def test_a_job_that_failed_has_a_status_that_says_so(
    how: str, budget: int, state: str, error: str, daemon: Start, client: Client, app: App
) -> None:
    start(daemon)
    found = status(app, push_raw(client, "fails", how, retry=budget), state)
    assert (found.error_class, found.name, found.queue) == (error, "fails", "default")
    assert found.error_message


def test_a_job_that_failed_and_is_tried_again_shows_its_error_until_that_went_well(
    daemon: Start, client: Client, witness: Client, app: App
) -> None:
    start(daemon)
    jid = push_raw(client, "flaky", retry=3)
    at_the_gate(witness)
    during = status(app, jid, "working")
    assert (during.error_class, during.error_message, during.fields) == ("ValueError", "once", {"runs": "2"})
    witness.set("t:gate", 1)
    after = status(app, jid, "complete")
    assert (after.error_class, after.error_message, after.fields) == ("", "", {"runs": "2"})
    assert not {"error_class", "error_message"} & set(client.hkeys(KEYS.status(jid)))


def test_a_requeued_job_is_queued_again_and_complete_in_the_end(daemon: Start, client: Client, app: App) -> None:
    start(daemon)
    found = status(app, push_raw(client, "requeues", status=True), "complete")
    assert found.error_class == ""


# ---- secrets --------------------------------------------------------------------------------------------

TOKEN, REST, KEY = "hunter2-token", "hunter3-rest", "hunter4-key"
SHOWN_NOWHERE = ("cogworker:history", "status:", "cogworker:workers", "cogworker:process")


@pytest.mark.parametrize("how", ["fine", "retry", "bury", "cause", "crash", "requeue", "long"])
def test_redacted_values_appear_in_no_log_history_status_nor_list_of_what_runs(
    how: str, daemon: Start, client: Client, witness: Client, store: Store, app: App
) -> None:
    job: Job[..., None] = app.job(name="secretive", redact=["token", "key", "rest"], status=True)(_secretive)
    running = start(daemon)
    jid = job.using(retry=False).enqueue(how, TOKEN, REST, key=KEY)
    assert jid is not None
    at_the_gate(witness)
    (published,) = eventually(lambda: [client.hgetall(key) for key in client.keys("cogworker:workers:*")], 15)
    ((entry),) = map(json.loads, published.values())
    assert entry["payload"]["args"] == [how, "[redacted]", "[redacted]"]
    assert entry["payload"]["kwargs"] == {"key": "[redacted]"}
    witness.set("t:gate", 1)
    ended = {"fine": "complete", "requeue": "complete"}.get(how, "failed")
    found = status(app, jid, ended, 20)
    (run, *_) = runs(store, jid)
    assert run.fields["args"] == [how, "[redacted]", "[redacted]"]
    if how in ("retry", "bury"):
        assert found.error_message == "[redacted] and [redacted] and [redacted] are no good"
    assert running.stop() == 0
    places = {"log": running.text(), "server": everything(client, but=("cogworker:queue", "cogworker:dead"))}
    places["server"] = "\n".join(line for line in places["server"].splitlines() if line.startswith(SHOWN_NOWHERE))
    for place, text in places.items():
        for secret in ("hunter", REST[:7], KEY[:7]):
            assert secret not in text, f"{place}: {text[max(0, text.index(secret) - 300) : text.index(secret) + 100]}"


def _secretive(how: str, token: str, *rest: str, key: str = "") -> None: ...


def test_redacted_values_do_not_appear_in_the_attempts_log(
    daemon: Start, client: Client, witness: Client, store: Store, app: App
) -> None:
    job: Job[..., None] = app.job(name="secretive", redact=["token", "key", "rest"])(_secretive)
    start(daemon)
    witness.set("t:gate", 1)
    jid = job.using(retry=False).enqueue("retry", TOKEN, REST, key=KEY)
    assert jid is not None
    (attempt,) = eventually(lambda: Stats(store).attempts(jid))
    assert attempt.error_class == "ValueError"
    assert "hunter" not in attempt.error_message


def test_redacted_values_do_not_appear_in_the_status_of_a_job_that_the_supervisor_files(
    daemon: Start, client: Client, app: App
) -> None:
    job = {
        "class": "secretive",
        "jid": "j1",
        "args": ["", TOKEN],
        "queue": "default",
        "redact": [1],
        "retry_count": 2,
        "error_class": "ValueError",
        "error_message": f"bad {TOKEN}",
    }
    client.rpush(KEYS.unsettled, json.dumps({"set": DEAD, "score": 4e9, "payload": json.dumps(job)}))
    start(daemon)
    found = status(app, "j1", "failed", 15)
    assert found.error_class == "ValueError"
    assert found.error_message == "bad [redacted]"


# ---- what others push -----------------------------------------------------------------------------------


def test_nonsense_in_redact_harms_neither_the_child_nor_the_supervisor(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    children = running.child_pids()
    push_raw(client, "says_nothing", redact=["*\u00b2"])
    at_the_gate(witness)
    eventually(lambda: client.keys("cogworker:workers:*") or running.lines("daemon.crashed"), 15)
    assert running.lines("daemon.crashed") == []
    witness.set("t:gate", 1)
    push_raw(client, "fails", redact=["*\u00b2"], retry=False)
    eventually(lambda: client.zcard(DEAD) == 1)
    assert running.child_pids() == children
    assert running.stop() == 0


def test_a_job_that_stores_something_odd_does_not_harm_the_supervisor(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon)
    push_raw(client, "odd_name")
    at_the_gate(witness)
    other = push_raw(client, "fails", retry=False)
    witness.set("t:gate", 1)
    eventually(lambda: client.exists(KEYS.status(other)) or running.lines("daemon.crashed"), 15)
    assert running.lines("daemon.crashed") == []
    assert running.stop() == 0


@pytest.mark.parametrize("fields", [{"status": True}, {"retry_count": 1}], ids=["status", "retried"])
def test_a_job_with_an_endless_name_fails_like_any_other(fields: dict[str, Any], daemon: Start, client: Client) -> None:
    running = start(daemon)
    children = running.child_pids()
    push_raw(client, "x" * 70_000, retry=False, **fields)
    (entry,) = eventually(lambda: client.zrange(DEAD, 0, -1), 15)
    assert json.loads(entry)["error_class"] == "UnknownJob"
    assert running.child_pids() == children
