"""Requests about running jobs: cancel one, show its stack. And orders to a fleet."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from cogworkerd import App
from cogworkerd.inspect import Fleet, History, NotAnswered, Running, Stack, Store, read_attempts
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]
RETRY, DEAD = "cogworker:retry", "cogworker:dead"
NOBODY = "no-job-has-this-id"
ends = pytest.mark.parametrize("then", ["bury", "fail", "discard", "requeue"])


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    """A client that knows no jobs; it shares a server with the daemons."""
    made = App(server.url)
    yield made
    made.client.close()


def identity_of(running: Daemon) -> str:
    return str(running.lines("daemon.ready")[0]["identity"])


def channel_of(running: Daemon) -> str:
    return f"cogworker:signal:{identity_of(running)}"


def start(daemon: Start, client: Client, *flags: str, slots: int = 1, **options: Any) -> Daemon:
    """A daemon that listens for orders."""
    running = daemon("-c", str(slots), *flags, target="stoppable_jobs:app", **options).ready()
    eventually(lambda: client.pubsub_numsub(channel_of(running))[0][1])
    eventually(lambda: client.exists(f"cogworker:process:{identity_of(running)}"))
    return running


def marks(witness: Client, jid: str) -> list[str]:
    found: list[str] = witness.lrange(f"t:marks:{jid}", 0, -1)
    return found


def begun(client: Client, witness: Client, name: str, *args: Any, **fields: Any) -> str:
    """Push a job and wait until it runs."""
    jid = push_raw(client, name, *args, **fields)
    eventually(lambda: marks(witness, jid)[:1] == ["began"])
    return jid


def stack_with(app: App, jid: str, where: str) -> Stack | None:
    """The stack of a job, if this stands in it."""
    stack = Running(app).stack(jid)
    return stack if stack is not None and any(where in line for line in stack.lines) else None


def entries(client: Client, key: str) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in client.zrange(key, 0, -1)]


def ask(client: Client, running: Daemon, message: str | bytes) -> None:
    """Publish on a daemon's channel, as anybody may."""
    assert client.publish(channel_of(running), message) == 1


def answer(client: Client, running: Daemon, **request: Any) -> dict[str, Any]:
    token = secrets.token_hex(12)
    ask(client, running, json.dumps({**request, "reply": token}))
    _, text = client.blpop([f"cogworker:x:reply:{token}"], timeout=15)
    return dict(json.loads(text))


def in_order(running: Daemon, client: Client, slots: int = 1) -> None:
    """Every slot takes jobs, nothing is left in progress, nobody is left behind, and the daemon stops."""
    where = f"t:meeting:{running.pid}"
    jids = [push_raw(client, "meet", where, slots, retry=False) for _ in range(slots)]

    def done() -> bool:
        return set(jids) <= {line["jid"] for line in running.lines("job.done")}

    eventually(done, 15, "every slot has done a job")
    eventually(lambda: inprogress(client) == [])
    assert client.llen("cogworker:queue:default") == 0
    assert len(running.children()) == slots
    assert client.keys("cogworker:orphanings:*") == []
    assert [running.lines(event) for event in ("child.died", "daemon.crashed")] == [[], []]
    eventually(lambda: zombies(running.pid) == [])
    assert running.stop() == 0


def written_down(app: App, client: Client, jid: str, then: str) -> None:
    """Wait until what is stored says that the job was cancelled, and what became of it."""
    if then == "requeue":
        return
    outcome = {"bury": "killed", "fail": "retrying", "discard": "discarded"}[then]
    attempts = eventually(lambda: read_attempts(Store.of(app), jid))
    assert [(each.outcome, each.error_class) for each in attempts] == [(outcome, "JobCancelled")]
    assert attempts[0].error_message == "cancelled while it ran"
    wanted = {"bury": (DEAD, 1), "fail": (RETRY, 1), "discard": (DEAD, 0)}[then]
    assert (client.zcard(DEAD), client.zcard(RETRY)) == (int(then == "bury"), int(then == "fail"))
    for entry in entries(client, wanted[0]):
        assert (entry["jid"], entry["error_class"], entry["retry_count"]) == (jid, "JobCancelled", 1)
    (run,) = eventually(lambda: History(Store.of(app)).of_job(jid, "failed"))
    assert run.error_class == "JobCancelled"
    eventually(lambda: client.get("cogworker:stats:failed") == "1")
    status: Any = eventually(lambda: app.status(jid))
    assert (status.status, status.error_class) == ("retrying" if then == "fail" else "failed", "JobCancelled")


# ---- cancel ---------------------------------------------------------------------------------------------


@ends
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("offend", "sleeps"),
        *(pytest.param("offend_async", each, marks=pytest.mark.slow) for each in ("sleeps", "cleans up badly")),
    ],
)
def test_a_job_that_is_cancelled_ends_by_the_error_and_becomes_what_was_asked_for(
    name: str, kind: str, then: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    before = running.child_pids()
    jid = begun(client, witness, name, kind)
    if then == "requeue":
        running.signal(signal.SIGTSTP)  # or it would begin anew at once
        eventually(lambda: running.lines("daemon.quiet"))
    assert Running(app).cancel(jid, then, grace=60)
    (told,) = eventually(lambda: running.lines("job.interrupted"))
    assert (told["jid"], told["order"], told["grace"]) == (jid, f"cancel_{then}", 60)
    if then == "requeue":
        (raw,) = eventually(lambda: client.lrange("cogworker:queue:default", 0, -1))
        assert json.loads(raw)["jid"] == jid
        assert "retry_count" not in json.loads(raw)
        assert client.get("cogworker:stats:failed") is None
        assert running.lines("job.requeued")
        client.delete("cogworker:queue:default")
        running.signal(signal.SIGCONT)
        eventually(lambda: running.lines("daemon.resumed"))
    written_down(app, client, jid, then)
    assert running.child_pids() == before
    in_order(running, client)


@ends
def test_a_cancelled_job_inside_c_is_killed_after_the_grace_and_becomes_what_was_asked_for(
    then: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    before = running.child_pids()
    jid = begun(client, witness, "offend_once", "holds the interpreter")
    assert Running(app).cancel(jid, then, grace=0.2)
    eventually(lambda: running.lines("child.killed"))
    if then == "requeue":
        eventually(lambda: marks(witness, jid) == ["began", "again"])
        eventually(lambda: client.get("cogworker:stats:processed") == "1")
        assert client.get("cogworker:stats:failed") is None
        assert [line["blame"] for line in running.lines("job.orphaned")] == [False]
    written_down(app, client, jid, then)
    eventually(lambda: running.child_pids() not in ([], before))
    in_order(running, client)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ignores", "sleeps"])
def test_with_basic_fetch_a_cancelled_job_is_put_back_once(
    kind: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client, "--fetch", "basic")
    jid = begun(client, witness, "offend_once", kind)
    assert Running(app).cancel(jid, "requeue", grace=0.5)
    eventually(lambda: marks(witness, jid)[-1] == "again")
    assert marks(witness, jid).count("began") == 1
    in_order(running, client)


@pytest.mark.slow
def test_a_job_that_is_requeued_by_a_kill_is_queued_in_its_status(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    jid = begun(client, witness, "offend", "ignores", status=True)
    running.signal(signal.SIGTSTP)
    eventually(lambda: running.lines("daemon.quiet"))
    assert Running(app).cancel(jid, "requeue", grace=0.2)
    eventually(lambda: client.llen("cogworker:queue:default") == 1)
    eventually(lambda: getattr(app.status(jid), "status", "") == "queued", 3)
    client.delete("cogworker:queue:default")
    running.signal(signal.SIGCONT)
    in_order(running, client)


def test_of_two_cancellations_the_first_one_counts(daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = start(daemon, client)
    jid = begun(client, witness, "offend", "ignores")
    assert Running(app).cancel(jid, "discard", grace=1)
    assert not Running(app).cancel(jid, "bury", grace=0)
    written_down(app, client, jid, "discard")
    assert len(running.lines("job.interrupted")) == 1
    in_order(running, client)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["cancelled", "timed out"])
def test_a_timeout_and_a_cancellation_do_not_meet_in_one_run(
    first: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client, env={"COGWORKERD_TIMEOUT_GRACE": "2"})
    jid = begun(client, witness, "offend", "ignores", timeout=2 if first == "cancelled" else 0.3, retry=False)
    if first == "timed out":
        eventually(lambda: running.lines("job.interrupted"))
    assert Running(app).cancel(jid, "bury", grace=3) is (first == "cancelled")
    (entry,) = eventually(lambda: entries(client, DEAD), 15)
    assert entry["error_class"] == {"cancelled": "JobCancelled", "timed out": "JobTimeout"}[first]
    assert len(running.lines("job.interrupted")) == 1
    in_order(running, client)


def test_a_job_that_does_not_run_is_not_cancelled(daemon: Start, app: App, client: Client, witness: Client) -> None:
    assert not Running(app).cancel(NOBODY), "no daemon is there"
    assert Running(app).stack(NOBODY) is None
    running = start(daemon, client)
    busy = begun(client, witness, "gated")
    waiting = push_raw(client, "last", 0)
    for jid in (NOBODY, waiting, "", "é\n", "\ud800"):
        assert not Running(app).cancel(jid)
        assert Running(app).stack(jid) is None
    witness.set("t:gate", 1)

    def reported() -> set[str]:
        return {line["jid"] for line in running.lines("report") if line["kind"] == "PERFORMED"}

    eventually(lambda: reported() == {busy, waiting})  # the supervisor hears of an end a moment after it
    assert marks(witness, waiting) == ["began", "ended"]
    for jid in (busy, waiting):
        assert not Running(app).cancel(jid)
        assert Running(app).stack(jid) is None
    assert running.lines("job.interrupted") == []
    in_order(running, client)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"then": "explode"}, "bury, fail, discard, requeue"),
        ({"then": ""}, "bury, fail, discard, requeue"),
        ({"grace": -1}, '"grace" is not a number'),
        ({"grace": 3601}, '"grace" is not a number'),
        ({"grace": float("nan")}, '"grace" is not a number'),
        ({"grace": float("inf")}, '"grace" is not a number'),
        ({"grace": True}, '"grace" is not a number'),
    ],
)
def test_what_cannot_be_asked_for_is_said_and_not_done(
    options: dict[str, Any], told: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    jid = begun(client, witness, "gated")
    with pytest.raises(ValueError, match=told):
        Running(app).cancel(jid, **options)
    witness.set("t:gate", 1)
    eventually(lambda: marks(witness, jid) == ["began", "ended"])
    in_order(running, client)


@pytest.mark.slow
def test_a_cancelled_job_that_ends_well_within_its_grace_has_ended_well(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    jid = begun(client, witness, "offend", "swallows")
    assert Running(app).cancel(jid)
    eventually(lambda: client.get("cogworker:stats:processed") == "1")
    assert marks(witness, jid) == ["began", "JobCancelled", "ended"]
    assert client.zcard(DEAD) == 0
    in_order(running, client)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dies in the cleanup", "default handler"])
def test_a_cancelled_job_whose_process_dies_of_it_is_not_run_again(
    kind: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    (before,) = running.child_pids()
    jid = begun(client, witness, "offend_once", kind)
    eventually(lambda: kind != "default handler" or "ready" in marks(witness, jid))
    assert Running(app).cancel(jid, "bury", grace=1)
    eventually(lambda: running.child_pids() not in ([], [before]))
    eventually(lambda: entries(client, DEAD) or "again" in marks(witness, jid))
    assert "again" not in marks(witness, jid)
    written_down(app, client, jid, "bury")


@pytest.mark.slow
@ends
@pytest.mark.parametrize("shutdown", ["2", "30"])
def test_a_job_that_was_cancelled_before_a_stop_becomes_what_was_asked_for(
    shutdown: str,
    then: str,
    daemon: Start,
    app: App,
    client: Client,
    witness: Client,
) -> None:
    running = start(daemon, client, "--shutdown-timeout", shutdown)
    jid = begun(client, witness, "offend", "ignores")
    assert Running(app).cancel(jid, then, grace=1 if shutdown == "30" else 1.5)
    assert running.stop() == 0
    written_down(app, client, jid, then)
    queued = [json.loads(raw)["jid"] for raw in client.lrange("cogworker:queue:default", 0, -1)]
    assert queued == ([jid] if then == "requeue" else [])
    assert inprogress(client) == []


@pytest.mark.slow
def test_a_job_that_was_cancelled_does_not_come_back_when_its_grace_outlasts_a_stop(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client, "--shutdown-timeout", "1")
    jid = begun(client, witness, "offend", "ignores")
    assert Running(app).cancel(jid, "bury", grace=60)
    assert running.stop() == 0
    assert client.llen("cogworker:queue:default") == 0
    written_down(app, client, jid, "bury")


# ---- requests that make no sense ------------------------------------------------------------------------

DEEP = "[" * 900 + "]" * 900
BAD_ORDERS = ("null", "1", "[]", "{}", '"CANCEL"', '"\\ud800"', DEEP)
BAD_JIDS = ("null", "1", "[]", '["JID"]', '{"a": "JID"}', "1e999", DEEP)
BAD_ENDS = ("null", "1", '["bury"]', "{}", DEEP)
BAD_GRACES = ('"1"', "NaN", "-1", "1e999", "9" * 3000)
BAD_MESSAGES: list[str | bytes] = [
    *("", "{", "}", "{}", "[]", "null", "cancel", "{'order': 'cancel'}", '{"order"', '"cancel"', "dance\n", "{\x00}"),
    *(b"\xff\xfe", b"{\xff}", b'{"order": "\xff"}', b"{\x00\x00\x00", b"\x00"),
    *(f'{{"order": {bad}, "jid": "JID"}}' for bad in BAD_ORDERS),
    *(f'{{"order": "cancel", "jid": {bad}}}' for bad in BAD_JIDS),
    *(f'{{"order": "cancel", "jid": "JID", "then": {bad}}}' for bad in BAD_ENDS),
    *(f'{{"order": "cancel", "jid": "JID", "grace": {bad}}}' for bad in BAD_GRACES),
    '{"order": "stack", "jid": "JID", "jid": 1}',
    '{"order": "cancel", "jid": "JID", "pad": "' + "x" * 5000 + '"}',
    '{"order": "cancel", "jid": "' + "x" * 4000 + '"}',
    "x" * 1_000_000,
    "{" * 1_000_000,
]
BAD_REPLIES: list[Any] = [
    "",
    "A" * 24,
    "0" * 15,
    "0" * 65,
    "../x",
    "0" * 24 + "\n",
    "cogworker:queue:default",
    None,
    1,
    [],
    {},
    DEEP,
]


def test_a_message_that_makes_no_sense_does_no_harm(daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = start(daemon, client)
    jid = begun(client, witness, "gated")
    before = set(client.keys("*"))
    for message in BAD_MESSAGES:
        named = message.replace("JID", jid) if isinstance(message, str) else message
        ask(client, running, named)
    for reply in BAD_REPLIES:
        ask(client, running, json.dumps({"order": "stack", "jid": jid, "reply": reply}))
    stack = Running(app).stack(jid)
    assert stack is not None, "it listens as before"
    assert {key for key in client.keys("*") if "x:reply:" in key} - before == set()
    assert running.lines("job.interrupted") == []
    assert running.lines("remote.unknown")
    witness.set("t:gate", 1)
    eventually(lambda: marks(witness, jid) == ["began", "ended"])
    in_order(running, client)
    running.clean_log()


@pytest.mark.parametrize(
    "request_",
    [
        {"order": "cancel", "jid": 1},
        {"order": "dance", "jid": "x"},
        {"jid": "x"},
        {"order": "cancel", "jid": "x", "grace": "1"},
    ],
)
def test_who_asks_for_what_makes_no_sense_is_told(request_: dict[str, Any], daemon: Start, client: Client) -> None:
    running = start(daemon, client)
    told = answer(client, running, **request_)
    assert told["identity"] == identity_of(running)
    assert told["error"]
    in_order(running, client)


def test_an_answer_that_nobody_takes_goes_away(daemon: Start, client: Client) -> None:
    running = start(daemon, client)
    token = secrets.token_hex(12)
    ask(client, running, json.dumps({"order": "stack", "jid": NOBODY, "reply": token}))
    eventually(lambda: client.llen(f"cogworker:x:reply:{token}") == 1)
    assert 0 < client.ttl(f"cogworker:x:reply:{token}") <= 60
    in_order(running, client)


@pytest.mark.slow
def test_the_title_says_nothing_more_of_the_server_after_an_answer_that_it_refused(
    daemon: Start, make_server: Callable[..., Server]
) -> None:
    server = make_server("--maxmemory-policy", "noeviction")
    with server.client() as client:
        running = daemon("-c", "1", target="stoppable_jobs:app", url=server.url).ready()
        eventually(lambda: client.pubsub_numsub(channel_of(running))[0][1])
        client.config_set("maxmemory", "1")
        eventually(lambda: "Redis refuses" in running.title(), 10)
        ask(client, running, json.dumps({"order": "stack", "jid": NOBODY, "reply": secrets.token_hex(12)}))
        eventually(lambda: running.lines("remote.order"))
        client.config_set("maxmemory", "0")
        assert answer(client, running, order="stack", jid=NOBODY)["found"] is False
        eventually(lambda: "Redis" not in running.title(), 15)


# ---- stack ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "where"),
    [
        ("offend", "sleeps", "in _sleep"),
        ("offend", "holds the interpreter", "in _hold_the_interpreter"),
        pytest.param("offend", "stays in C", "in _stay_in_c", marks=pytest.mark.slow),
        pytest.param("offend", "ignored signal", "in _ignored_signal", marks=pytest.mark.slow),
        pytest.param("offend", "joins a thread", "in _sleep", marks=pytest.mark.slow),
        pytest.param("offend_async", "blocks its loop", "in _async_block", marks=pytest.mark.slow),
    ],
)
def test_the_stack_of_a_running_job_is_shown_and_the_job_goes_on(
    name: str, kind: str, where: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    before = running.child_pids()
    jid = begun(client, witness, name, kind)
    for _ in range(2):
        # The mark stands before the call: the first looks may come too early.
        stack = eventually(lambda: stack_with(app, jid, where))
        assert stack is not None
        assert (stack.identity, stack.slot, [stack.pid]) == (identity_of(running), 1, before)
        assert 0 <= stack.seconds < 600
    assert running.child_pids() == before
    assert marks(witness, jid) == ["began"]
    assert Running(app).cancel(jid, grace=0)
    written_down(app, client, jid, "bury")
    in_order(running, client)


def test_many_who_ask_for_one_stack_all_see_it_and_the_job_goes_on(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    jid = begun(client, witness, "gated")
    with ThreadPoolExecutor(8) as pool:
        stacks = list(pool.map(lambda _: Running(app).stack(jid), range(40)))
    for stack in stacks:
        assert stack is not None
        assert any("in gated" in line for line in stack.lines)
    witness.set("t:gate", 1)
    eventually(lambda: marks(witness, jid) == ["began", "ended"])
    in_order(running, client)


@pytest.mark.slow
def test_to_ask_for_the_stack_of_a_job_that_has_reset_the_signal_does_no_harm(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client)
    before = running.child_pids()
    jid = begun(client, witness, "offend", "no stack")
    eventually(lambda: "ready" in marks(witness, jid))
    stack = Running(app).stack(jid)
    assert stack is None or stack.lines == []
    assert running.child_pids() == before
    assert marks(witness, jid) == ["began", "ready"]


@pytest.mark.slow
def test_a_stopped_child_has_no_stack_to_show(daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = start(daemon, client)
    jid = begun(client, witness, "gated")
    (child,) = running.children()
    os.kill(child.pid, signal.SIGSTOP)
    eventually(lambda: child.status() == psutil.STATUS_STOPPED)
    stack = Running(app).stack(jid)
    assert stack is not None
    assert stack.lines == []
    os.kill(child.pid, signal.SIGCONT)
    witness.set("t:gate", 1)
    eventually(lambda: marks(witness, jid) == ["began", "ended"])
    in_order(running, client)


# ---- fleets ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_three_daemons_only_the_one_that_runs_the_job_acts(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    fleet = [start(daemon, client) for _ in range(3)]
    jids = [begun(client, witness, "offend", "sleeps") for _ in fleet]

    def runs(running: Daemon, jid: str) -> bool:
        return any(line["jid"] == jid for line in running.lines("job.start"))

    (right,) = [running for running in fleet if runs(running, jids[1])]
    stack = Running(app).stack(jids[1])
    assert stack is not None
    assert stack.identity == identity_of(right)
    eventually(lambda: {job.jid for job in Running(app)} == set(jids))
    assert Running(app).cancel(jids[1])
    written_down(app, client, jids[1], "bury")
    assert [len(running.lines("job.interrupted")) for running in fleet] == [int(each is right) for each in fleet]
    assert [marks(witness, jid) for jid in jids] == [["began"]] * 3
    for jid in (jids[0], jids[2]):
        assert Running(app).cancel(jid, "discard")
    for running in fleet:
        eventually(lambda running=running: running.lines("job.interrupted"))
        assert running.stop() == 0
    assert client.zcard(DEAD) == 1
    assert inprogress(client) == []


@pytest.mark.slow
def test_a_daemon_that_does_not_answer_leaves_it_open_whether_the_job_runs(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    hung, well = start(daemon, client), start(daemon, client)
    os.kill(hung.pid, signal.SIGSTOP)
    try:
        with pytest.raises(NotAnswered):
            Running(app).cancel(NOBODY)
        with pytest.raises(NotAnswered):
            Running(app).stack(NOBODY)
        jid = push_raw(client, "offend", "sleeps")
        eventually(lambda: marks(witness, jid) == ["began"])
        if any(line["jid"] == jid for line in well.lines("job.start")):
            assert Running(app).cancel(jid), "the one that runs it has answered"
    finally:
        os.kill(hung.pid, signal.SIGCONT)
    for running in (hung, well):
        assert running.stop() == 0


def test_a_fleet_is_found_by_words_and_takes_orders(daemon: Start, app: App, client: Client, witness: Client) -> None:
    shop, mail = start(daemon, client, "--tag", "shop"), start(daemon, client, "--tag", "mail")
    one, two = identity_of(shop), identity_of(mail)
    fleet = Fleet(app)
    host = socket.gethostname()
    assert {process.identity for process in fleet} == {one, two}
    for word in ("shop", one, f"{host}:{shop.pid}", str(shop.pid), one[:-3]):
        assert [process.identity for process in fleet.named(word)] == [one], word
    assert {process.identity for process in fleet.named(f"{host}:")} == {one, two}
    assert fleet.named("nobody") == []
    assert fleet.quiet(fleet.named("shop")) == {one: True}
    eventually(lambda: shop.title().endswith(" quiet"))
    assert not mail.title().endswith(" quiet")
    jid = push_raw(client, "last", 0)
    eventually(lambda: [line for line in mail.lines("job.done") if line["jid"] == jid])
    assert fleet.quiet() == {one: True, two: True}
    eventually(lambda: mail.title().endswith(" quiet"))
    assert fleet.resume([one, "nobody:1:aaaaaaaaaaaa"]) == {one: True, "nobody:1:aaaaaaaaaaaa": False}
    eventually(lambda: not shop.title().endswith(" quiet"))
    with pytest.raises(ValueError, match="quiet, resume, stop"):
        fleet.send("dance")
    assert fleet.stop([]) == {}
    assert fleet.stop(fleet.named("mail")) == {two: True}
    assert mail.exited() == 0
    assert shop.process.poll() is None
    assert fleet.stop() == {one: True}
    assert shop.exited() == 0
    assert list(fleet) == []
    assert fleet.stop() == {}
    assert inprogress(client) == []


@pytest.mark.slow
def test_orders_and_requests_keep_to_their_namespace(daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = daemon(*("-c", "1"), target="stoppable_jobs:app", env={"COGWORKERD_NAMESPACE": "other"}).ready()
    other = App(app.settings.redis_url, namespace="other")
    eventually(lambda: client.pubsub_numsub(f"other:{channel_of(running)}")[0][1])
    eventually(lambda: list(Fleet(other)))
    assert list(Fleet(app)) == []
    jid = other.push("offend", ["sleeps"])
    assert jid is not None
    eventually(lambda: marks(witness, jid) == ["began"])
    assert not Running(app).cancel(jid)
    stack = Running(other).stack(jid)
    assert stack is not None
    assert Running(other).cancel(jid)
    eventually(lambda: client.zcard("other:cogworker:dead") == 1)
    assert Fleet(other).stop() == {identity_of(running): True}
    assert running.exited() == 0
    other.client.close()


@pytest.mark.slow
def test_what_runs_is_told_within_seconds_and_forgotten_when_it_has_ended(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, client, slots=2)
    began = time.time()
    first, second = (begun(client, witness, "gated") for _ in range(2))
    eventually(lambda: {job.jid for job in Running(app)} == {first, second})
    for job in Running(app):
        assert (job.identity, job.class_name, job.queue) == (identity_of(running), "gated", "default")
        assert abs(job.run_at - began) < 60
    witness.set("t:gate", 1)
    eventually(lambda: list(Running(app)) == [])
    in_order(running, client, slots=2)
