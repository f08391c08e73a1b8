"""C53: a unique lock lives exactly as long as its job: whatever ends the job frees it, nothing else does."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from cogworkerd import App
from cogworkerd.unique import unique_digest
from tests.support import Client, Daemon, Server, eventually, inprogress

Start = Callable[..., Daemon]

QUEUE = "cogworker:queue:default"
DAY = 86_400
FETCH = pytest.mark.parametrize("fetch", ["reliable", "basic"])


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    """A client that knows the jobs by their names."""
    made = App(server.url)
    yield made
    made.client.close()


@pytest.fixture(autouse=True)
def _every_lock_has_an_end(client: Client) -> Iterator[None]:
    yield
    assert [key for key in client.scan_iter("cogworker:unique:*") if client.ttl(key) == -1] == []


def start(daemon: Start, *flags: str) -> Daemon:
    return daemon("-c", "1", *flags, target="unique_jobs:app").ready()


def push(app: App, name: str, **options: Any) -> str | None:
    return app.push(name, [1], **{"unique": "until_executed", **options})


def lock_of(name: str) -> str:
    return f"cogworker:unique:{unique_digest({'class': name, 'args': [1]}, 'default')}"


def at_work(witness: Client, times: int = 1) -> int:
    """Wait until the gated job has begun so many times; the pid of its latest child."""
    eventually(lambda: witness.llen("t:pids:1") == times, 15)
    return int(witness.lindex("t:pids:1", -1))


def open_the_gate(app: App, client: Client, witness: Client) -> None:
    """Let the job end; only then may a second one be pushed, and it is performed, too."""
    assert push(app, "gated") is None
    witness.set("t:gate", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    eventually(lambda: not client.exists(lock_of("gated")))
    assert push(app, "gated") is not None
    eventually(lambda: witness.hget("t:end", "1") == "2", 15)
    eventually(lambda: not client.exists(lock_of("gated")))
    eventually(lambda: inprogress(client) == [])


@FETCH
def test_c53_a_job_at_work_holds_its_lock_and_one_that_has_ended_does_not(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    jid = push(app, "gated")
    at_work(witness)
    assert client.get(lock_of("gated")) == jid
    open_the_gate(app, client, witness)
    assert running.stop() == 0
    assert running.complaints() == []
    running.clean_log()


@FETCH
def test_c53_a_job_that_has_failed_for_good_holds_its_lock_no_more(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    for count in (1, 2):
        assert push(app, "fatal", retry=False) is not None
        eventually(lambda count=count: client.zcard("cogworker:dead") == count)
        assert not client.exists(lock_of("fatal"))
    assert running.stop() == 0


@FETCH
def test_c53_a_job_that_waits_for_its_retry_holds_its_lock_for_the_wait_too(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    """R52."""
    running = start(daemon, "--fetch", fetch)
    jid = push(app, "boom", retry=3)
    eventually(lambda: client.zcard("cogworker:retry") == 1)
    assert push(app, "boom", retry=3) is None
    assert client.get(lock_of("boom")) == jid
    assert DAY + 3590 < client.ttl(lock_of("boom")) <= DAY + 3601
    assert running.stop() == 0
    assert push(app, "boom") is None


def test_c53_a_retry_that_is_due_runs_under_the_same_lock(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    """R52: held through retry and queue until the retries are used up."""
    running = start(daemon)
    jid = push(app, "boom", retry=1)
    raw = eventually(lambda: client.zrange("cogworker:retry", 0, -1))[0]
    assert client.get(lock_of("boom")) == jid
    client.zadd("cogworker:retry", {raw: 1})
    eventually(lambda: client.zcard("cogworker:dead") == 1, 15)
    assert not client.exists(lock_of("boom"))
    assert push(app, "boom") is not None
    assert running.stop() == 0


@FETCH
def test_c53_a_job_whose_child_is_killed_holds_its_lock_until_it_has_ended(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    jid = push(app, "gated")
    os.kill(at_work(witness), signal.SIGKILL)
    duplicates = []

    def begun_again() -> bool:
        duplicates.append(push(app, "gated"))
        return bool(witness.llen("t:pids:1") == 2)

    eventually(begun_again)
    assert set(duplicates) == {None}
    assert client.get(lock_of("gated")) == jid
    open_the_gate(app, client, witness)
    assert running.stop() == 0


@FETCH
def test_c53_a_job_whose_child_is_killed_four_times_is_dead_and_holds_its_lock_no_more(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon, "--fetch", fetch)
    jid = push(app, "gated")
    for times in (1, 2, 3, 4):
        pid = at_work(witness, times)
        assert push(app, "gated") is None
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: client.zcard("cogworker:dead") == 1)
    assert json.loads(client.zrange("cogworker:dead", 0, 0)[0])["jid"] == jid
    assert not client.exists(lock_of("gated"))
    assert push(app, "gated") not in (None, jid)
    at_work(witness, 5)
    witness.set("t:gate", 1)
    eventually(lambda: not client.exists(lock_of("gated")))
    assert running.stop() == 0


@FETCH
def test_c53_a_straggler_that_a_stop_requeues_holds_its_lock_while_no_daemon_runs_and_until_it_has_ended(
    fetch: str, daemon: Start, app: App, client: Client, witness: Client
) -> None:
    first = start(daemon, "--fetch", fetch, "--shutdown-timeout", "0.5")
    jid = push(app, "gated")
    at_work(witness)
    client.expire(lock_of("gated"), 100)
    assert first.stop() == 0
    assert client.llen(QUEUE) == 1
    assert inprogress(client) == []
    assert push(app, "gated") is None
    assert client.get(lock_of("gated")) == jid
    assert DAY - 60 < client.ttl(lock_of("gated")) <= DAY
    second = start(daemon, "--fetch", fetch)
    at_work(witness, 2)
    open_the_gate(app, client, witness)
    assert second.stop() == 0


def test_c53_a_job_whose_daemon_is_killed_holds_its_lock_until_it_has_ended_in_another(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    first = start(daemon)
    jid = push(app, "gated")
    child = at_work(witness)
    os.kill(first.pid, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    first.exited()
    assert push(app, "gated") is None
    second = start(daemon)
    at_work(witness, 2)
    assert client.get(lock_of("gated")) == jid
    open_the_gate(app, client, witness)
    assert second.stop() == 0


def test_c53_a_job_without_uniqueness_neither_minds_the_lock_nor_frees_it(
    daemon: Start, app: App, client: Client, witness: Client
) -> None:
    running = start(daemon)
    jid = push(app, "boom", retry=3)
    eventually(lambda: client.zcard("cogworker:retry") == 1)
    assert push(app, "boom", unique=None, retry=False) is not None
    eventually(lambda: client.zcard("cogworker:dead") == 1)
    assert client.get(lock_of("boom")) == jid
    assert push(app, "boom") is None
    assert running.stop() == 0


# ---- a client that is killed --------------------------------------------------------------------------------


def die_in_the_push(url: str, sent: float) -> None:
    """A client of its own process that is killed when so much of its push is on its way: a share of the bytes."""
    pid = os.fork()
    if pid == 0:
        send: Any = redis.Connection.send_packed_command

        def die(self: Any, command: Any, check_health: bool = True) -> None:
            whole = b"".join(command)
            send(self, [whole[: round(len(whole) * sent)]], check_health)
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            app = App(url)
            # The connection's own handshake is not the push.
            app.client._sync_pool().release(app.client._sync_pool().get_connection())
            redis.Connection.send_packed_command = die  # type: ignore[method-assign]
            push(app, "gated")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("sent", [0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 1])
def test_c53_a_client_that_is_killed_in_its_push_leaves_lock_and_job_or_neither(
    sent: float, app: App, server: Server, client: Client
) -> None:
    """There is no moment between lock and push: both are one script."""
    others = len(client.client_list())
    die_in_the_push(server.url, sent)
    eventually(lambda: len(client.client_list()) <= others)  # the server has noticed
    queued = [json.loads(raw)["jid"] for raw in client.lrange(QUEUE, 0, -1)]
    assert client.get(lock_of("gated")) == (queued[0] if queued else None)
    # The listing of the queue travels behind the push.
    assert len(queued) == (1 if sent >= 0.99 else 0)
    assert (push(app, "gated") is None) == bool(queued)
    assert client.llen(QUEUE) == 1


def test_c53_what_a_killed_client_has_pushed_is_performed_and_frees_its_lock(
    daemon: Start, app: App, server: Server, client: Client, witness: Client
) -> None:
    die_in_the_push(server.url, 1)
    running = start(daemon)
    at_work(witness)
    open_the_gate(app, client, witness)
    assert running.stop() == 0
