"""Jobs that leave early: by Requeue when they see a stop, by Stopped when its time is over, by force a second later."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cogworkerd import App
from cogworkerd.inspect import History, Store
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]
QUEUE = "cogworker:queue:default"
DAY = 86_400
fetches = pytest.mark.parametrize("fetch", ["reliable", pytest.param("basic", marks=pytest.mark.slow)])


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    """A client that knows the jobs by their names."""
    made = App(server.url)
    yield made
    made.client.close()


def start(daemon: Start, *flags: str, slots: int = 1, **options: Any) -> Daemon:
    return daemon("-c", str(slots), *flags, target="stoppable_jobs:app", **options).ready()


def marks(witness: Client, jid: str) -> list[str]:
    found: list[str] = witness.lrange(f"t:marks:{jid}", 0, -1)
    return found


def begun(witness: Client, jid: str, times: int = 1) -> None:
    eventually(lambda: marks(witness, jid).count("began") == times, 10)


def next_of_queue(client: Client) -> str:
    """The bytes of the job that will be fetched next."""
    return str(client.lindex(QUEUE, -1))


def nothing_failed(client: Client, app: App) -> None:
    """Nothing counts as a run, a failure or a fault."""
    for statistic in ("failed", "processed"):
        assert client.get(f"cogworker:stats:{statistic}") in (None, "0")
    for key in ("retry", "dead", "schedule"):
        assert client.zcard(f"cogworker:{key}") == 0
    assert client.keys("cogworker:job_attempts:*") == []
    assert client.llen("cogworker:unsettled") == 0
    assert History(Store.of(app)).size() == 0


def left_in_order(running: Daemon, client: Client, within: float = 8) -> None:
    assert running.exited(within) == 0
    assert inprogress(client) == []
    assert client.smembers("cogworker:processes") == set()
    assert [running.lines(event) for event in ("child.died", "daemon.crashed")] == [[], []]


# ---- Requeue --------------------------------------------------------------------------------------------


@fetches
@pytest.mark.parametrize("name", ["yield_to_a_stop", pytest.param("yield_asynchronously", marks=pytest.mark.slow)])
def test_a_job_that_yields_to_a_stop_is_first_in_its_queue_as_it_was(
    name: str, fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    jid = app.push(name, unique="until_executed", status=True)
    assert jid is not None
    begun(witness, jid)
    others = [push_raw(client, "last", 0) for _ in range(2)]
    client.set(f"cogworker:orphanings:{jid}", 2, ex=1000)
    (lock,) = client.keys("cogworker:unique:*")
    client.expire(lock, 100)
    running.signal(signal.SIGTERM)
    left_in_order(running, client)
    assert [json.loads(raw)["jid"] for raw in client.lrange(QUEUE, 0, -1)] == [others[1], others[0], jid]
    job = json.loads(next_of_queue(client))
    assert (job["class"], job["args"], job["queue"]) == (name, [], "default")
    assert {"retry_count", "failed_at", "error_class", "error_message"} & set(job) == set()
    nothing_failed(client, app)
    assert client.get(f"cogworker:orphanings:{jid}") == "2"
    assert client.ttl(f"cogworker:orphanings:{jid}") <= 1000
    assert client.get(lock) == jid
    assert client.ttl(lock) > DAY - 100, "it is as long as that of a job that waits"
    assert app.push(name, unique="until_executed") is None
    status = app.status(jid)
    assert status is not None
    assert (status.status, status.error_class) == ("queued", "")
    (told,) = running.lines("job.requeued")
    assert (told["jid"], told["reason"]) == (jid, "the daemon stops")
    witness.set("t:gate", 1)
    successor = start(daemon, "--fetch", fetch)
    eventually(lambda: client.get("cogworker:stats:processed") == "3")
    assert [line["jid"] for line in successor.lines("job.start")] == [jid, *others]
    assert marks(witness, jid) == ["began", "began", "ended"]
    assert not client.exists(lock)
    assert not client.exists(f"cogworker:orphanings:{jid}")
    assert successor.stop() == 0


@fetches
def test_a_job_that_asks_to_be_requeued_is_run_again_at_once_and_before_others(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    gate = push_raw(client, "gated")
    begun(witness, gate)
    jid = push_raw(client, "requeue_twice")
    other = push_raw(client, "last", 0)
    witness.set("t:gate", 1)
    eventually(lambda: client.get("cogworker:stats:processed") == "3", 10)
    assert [line["jid"] for line in running.lines("job.start")] == [gate, jid, jid, jid, other]
    assert client.get("cogworker:stats:failed") is None
    assert client.zcard("cogworker:retry") == client.zcard("cogworker:dead") == 0
    eventually(lambda: len(History(Store.of(app)).of_job(jid)) == 1)
    assert inprogress(client) == []
    assert running.stop() == 0


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param('"args":[],"retry_count":2,"error_class":"KeyError","failed_at":1.5', id="one that has failed"),
        pytest.param('"args" : [ ] ,  "x":"\\u00e9\\ud83d\\ude00", "y":1.0e+16', id="spelled by another program"),
        pytest.param('"args":[],"x":NaN,"y":1e999', id="numbers that are no JSON"),
        pytest.param('"args":[],"x":"\\ud800"', id="half a character"),
        pytest.param('"args":[],"x":1,"x":2', id="a name twice"),
    ],
)
@pytest.mark.slow
def test_a_job_is_requeued_byte_for_byte(fields: str, daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = start(daemon)
    raw = f'{{"class":"yield_to_a_stop","jid":"abc",{fields}}}'
    client.lpush(QUEUE, raw)
    begun(witness, "abc")
    running.signal(signal.SIGTERM)
    left_in_order(running, client)
    assert client.lrange(QUEUE, 0, -1) == [raw]
    nothing_failed(client, app)


@pytest.mark.slow
def test_a_job_goes_back_to_the_queue_that_it_names(daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = start(daemon, "-q", "default", "-q", "mail")
    jid = "abc"
    client.lpush(QUEUE, json.dumps({"class": "yield_to_a_stop", "jid": jid, "args": [], "queue": "mail"}))
    begun(witness, jid)
    running.signal(signal.SIGTERM)
    left_in_order(running, client)
    assert client.llen(QUEUE) == 0
    assert [json.loads(raw)["jid"] for raw in client.lrange("cogworker:queue:mail", 0, -1)] == [jid]
    nothing_failed(client, app)


@pytest.mark.slow
def test_a_requeue_that_the_server_did_not_take_is_made_when_it_is_back(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    server = make_server()
    assert server.process is not None
    with server.client() as client:
        running = start(daemon, url=server.url)
        jid = push_raw(client, "requeue_twice")
        gate = push_raw(client, "gated")
        begun(witness, gate)
        again = push_raw(client, "requeue_twice")
        server.process.send_signal(signal.SIGSTOP)
        witness.set("t:gate", 1)
        eventually(lambda: running.lines("redis.away"), 20)
        server.process.send_signal(signal.SIGCONT)
        eventually(lambda: client.get("cogworker:stats:processed") == "3", 20)
        assert [marks(witness, each) for each in (jid, again)] == [["began"] * 3] * 2
        eventually(lambda: inprogress(client) == [])
        assert running.stop() == 0


@pytest.mark.slow
def test_a_requeue_that_the_server_refuses_until_the_end_of_a_stop_is_made_by_a_successor(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    """R47."""

    def allow(*keys: str) -> None:
        patterns = [f"~{key}" for key in keys]
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "resetkeys", *patterns, "&*", "+@all")

    server = make_server()
    with server.client() as client:
        allow("*")
        running = start(daemon, url=f"redis://worker:secret@127.0.0.1:{server.port}/0")
        jid = push_raw(client, "yield_to_a_stop")
        begun(witness, jid)
        allow("cogworker:[^q]*", "cogworker:queues")
        running.signal(signal.SIGTERM)
        assert running.exited(20) == 0
        assert client.get("cogworker:stats:failed") is None
        witness.set("t:gate", 1)
        successor = start(daemon, url=server.url)
        eventually(lambda: client.get("cogworker:stats:processed") == "1", 20)
        assert marks(witness, jid) == ["began", "began", "ended"]
        eventually(lambda: inprogress(client) == [])
        assert client.llen("cogworker:unsettled") == client.llen(QUEUE) == client.zcard("cogworker:schedule") == 0
        assert successor.stop() == 0


# ---- Stopped --------------------------------------------------------------------------------------------


@fetches
@pytest.mark.parametrize(
    ("name", "args", "noted", "killed"),
    [
        ("told_to_stop", ["raise"], ["Stopped"], False),
        ("told_to_stop", ["fail"], ["Stopped"], False),
        ("told_to_stop", ["swallow"], ["Stopped"], True),
        pytest.param("offend", ["sleeps"], [], False, marks=pytest.mark.slow),
        pytest.param("offend", ["cleans up"], ["cleaned up"], False, marks=pytest.mark.slow),
        pytest.param("offend", ["cleans up for long"], ["cleaning"], True, marks=pytest.mark.slow),
        pytest.param("offend", ["holds the interpreter"], [], True, marks=pytest.mark.slow),
        pytest.param("offend", ["stops itself"], [], True, marks=pytest.mark.slow),
        pytest.param("offend", ["ignored signal"], [], True, marks=pytest.mark.slow),
        pytest.param("offend_async", ["cleans up"], ["cleaned up"], False, marks=pytest.mark.slow),
        pytest.param("offend_async", ["ignores once"], ["CancelledError"], True, marks=pytest.mark.slow),
        pytest.param("offend_async", ["cleans up badly"], ["cleaned up"], False, marks=pytest.mark.slow),
    ],
)
def test_what_runs_at_the_end_of_a_drain_is_told_and_requeued_whatever_it_does(
    name: str,
    args: list[str],
    noted: list[str],
    killed: bool,
    fetch: str,
    daemon: Start,
    app: App,
    client: Client,
    witness: Client,
) -> None:
    running = start(daemon, "--shutdown-timeout", "1", "--fetch", fetch)
    jid = app.push(name, args, unique="until_executed")
    assert jid is not None
    begun(witness, jid)
    other = push_raw(client, "last", 0)
    running.signal(signal.SIGTERM)
    left_in_order(running, client)
    assert marks(witness, jid) == ["began", *noted]
    assert [json.loads(raw)["jid"] for raw in client.lrange(QUEUE, 0, -1)] == [other, jid]
    assert {"retry_count", "failed_at", "error_class"} & set(json.loads(next_of_queue(client))) == set()
    nothing_failed(client, app)
    assert client.keys("cogworker:orphanings:*") == []
    (lock,) = client.keys("cogworker:unique:*")
    assert client.get(lock) == jid
    (told,) = running.lines("job.interrupted")
    assert (told["jid"], told["order"], told["grace"]) == (jid, "stop", None)
    assert bool(running.lines("child.killed")) is killed
    assert len(running.lines("job.requeued")) == int(not killed)


def test_a_job_that_returns_when_it_is_told_to_stop_has_ended_well(
    daemon: Start, client: Client, witness: Client
) -> None:
    running = start(daemon, "--shutdown-timeout", "1")
    jid = push_raw(client, "told_to_stop", "return")
    begun(witness, jid)
    running.signal(signal.SIGTERM)
    left_in_order(running, client)
    assert client.get("cogworker:stats:processed") == "1"
    assert client.llen(QUEUE) == 0
    assert running.lines("child.killed") == []


def test_a_job_that_ends_within_the_drain_is_told_nothing(daemon: Start, client: Client, witness: Client) -> None:
    running = start(daemon, "--shutdown-timeout", "20", slots=2)
    jid = push_raw(client, "last", 1)
    begun(witness, jid)
    running.signal(signal.SIGTERM)
    left_in_order(running, client, 15)
    assert marks(witness, jid) == ["began", "ended"]
    assert running.lines("job.interrupted") == []


@pytest.mark.parametrize("kind", ["cleans up", "ignores"])
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_second_signal_tells_the_running_jobs_now(
    kind: str, number: signal.Signals, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--shutdown-timeout", "600")
    jid = push_raw(client, "offend", kind)
    begun(witness, jid)
    running.signal(signal.SIGTERM)
    eventually(lambda: running.lines("daemon.stopping"))
    assert running.lines("job.interrupted") == []
    running.signal(number)
    eventually(lambda: running.lines("job.interrupted"))
    running.signal(number)  # one more changes nothing
    left_in_order(running, client)
    assert marks(witness, jid) == ["began", {"cleans up": "cleaned up", "ignores": "Stopped"}[kind]]
    assert [json.loads(raw)["jid"] for raw in client.lrange(QUEUE, 0, -1)] == [jid]
    nothing_failed(client, app)
    assert bool(running.lines("child.killed")) is (kind == "ignores")


@pytest.mark.slow
def test_of_many_that_are_told_each_is_requeued_once(daemon: Start, app: App, client: Client, witness: Client) -> None:
    running = start(daemon, "--shutdown-timeout", "1", slots=8)
    kinds = ["cleans up", "ignores", "sleeps", "holds the interpreter"] * 2
    jids = [push_raw(client, "offend", kind) for kind in kinds]
    for jid in jids:
        begun(witness, jid)
    running.signal(signal.SIGTERM)
    left_in_order(running, client, 12)
    queued = [json.loads(raw)["jid"] for raw in client.lrange(QUEUE, 0, -1)]
    assert sorted(queued) == sorted(jids)
    nothing_failed(client, app)
    assert client.keys("cogworker:orphanings:*") == []


@pytest.mark.slow
def test_a_job_that_a_stop_has_killed_and_requeued_is_queued_in_its_status(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--shutdown-timeout", "1")
    jid = app.push("offend", ["ignores"], status=True)
    assert jid is not None
    begun(witness, jid)
    running.signal(signal.SIGTERM)
    left_in_order(running, client)
    assert [json.loads(raw)["jid"] for raw in client.lrange(QUEUE, 0, -1)] == [jid]
    status = app.status(jid)
    assert status is not None
    assert status.status == "queued"
