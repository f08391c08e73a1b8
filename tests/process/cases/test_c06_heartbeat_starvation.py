"""C06: a job that lets nothing else of its process have a turn loses neither its lease nor its lock meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from cogworkerd import App
from cogworkerd.locks import Locks
from cogworkerd.store import scripts
from cogworkerd.unique import unique_digest
from tests.cutting_proxy import CuttingProxy
from tests.supervisor_parts import KEYS, limited_user
from tests.support import PATIENCE, Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def identities(client: Client) -> set[str]:
    found: set[str] = client.smembers(KEYS.inprogress_identities)
    return found


def last_beat(client: Client) -> float:
    """The stamp of the only daemon."""
    (stamp,) = client.hvals(KEYS.last_beat)
    return float(stamp)


def away_at(running: Daemon, site: str) -> bool:
    """Whether it has told that this site cannot reach the server."""
    return site in [line["site"] for line in running.lines("redis.away")]


def owner_of_the_job(client: Client) -> str:
    """The identity whose list has the one job."""
    (owner,) = (name for name in identities(client) if client.llen(KEYS.inprogress(name)))
    return owner


@pytest.mark.parametrize(
    ("threshold", "ttl", "seconds", "again", "grain"),
    [
        ("7", "6.5", 8.5, 7.5, 2 * 10**7),
        # As it was reported: a sum of 200 million holds the interpreter for seconds.
        pytest.param("10", "10", 30.0, 20.0, 2 * 10**8, marks=pytest.mark.slow),
    ],
)
def test_c06_a_job_that_hogs_its_interpreter_keeps_its_daemons_lease_and_its_lock(
    threshold: str,
    ttl: str,
    seconds: float,
    again: float,
    grain: int,
    daemon: Start,
    server: Server,
    client: Client,
    witness: Client,
) -> None:
    """The second push comes when the lock would have lapsed long since, and the lease nearly."""
    settings = {"COGWORKERD_UNIQUE_LOCK_TTL": ttl}
    running = [
        daemon("-c", "1", "--orphan-threshold", threshold, target="unique_jobs:app", env=settings).ready()
        for _ in range(2)
    ]
    app = App(server.url, unique_lock_ttl=float(ttl))
    call = [seconds, grain]
    jid = app.push("hog", call, unique="until_executed")
    lock = KEYS.unique(unique_digest({"class": "hog", "args": call}, "default"))
    began = time.monotonic()
    eventually(lambda: witness.get("t:hog"))
    owner = owner_of_the_job(client)
    second_push = False
    while not witness.exists("t:hog:done"):
        beat, (now, _) = float(client.hget(KEYS.last_beat, owner)), client.time()
        assert now - beat <= float(threshold)
        assert client.exists(KEYS.process(owner))
        if not second_push and time.monotonic() - began > again:
            second_push = True
            assert client.get(lock) == jid
            assert app.push("hog", call, unique="until_executed") is None
        assert time.monotonic() - began < (seconds + 20) * PATIENCE
        time.sleep(0.2)
    assert second_push
    eventually(lambda: inprogress(client) == [])
    assert witness.get("t:hog") == "1"
    assert not client.exists(lock)
    app.client.close()
    for one in running:
        assert not one.lines("recovery.done")
        assert not one.lines("lock.lost")
        assert one.stop() == 0
        one.clean_log()


def test_r14_the_locks_of_a_job_at_work_outlive_their_ttl_and_end_with_it(
    daemon: Start, client: Client, witness: Client
) -> None:
    """R6, R14: refreshed beat by beat, also with a lifetime of less than two beats; what the server says of the job
    does not count."""
    running = daemon("-c", "1", target="unique_jobs:app", env={"COGWORKERD_UNIQUE_LOCK_TTL": "6.5"}).ready()
    jid = push_raw(client, "gated", 1, unique="until_executed", periodic_pjid="p1")
    locks = (KEYS.unique(unique_digest({"class": "gated", "args": [1]}, "default")), KEYS.periodic_running("p1"))
    for lock in locks:
        client.set(lock, jid, ex=7)
    eventually(lambda: witness.llen("t:pids:1") == 1)
    client.delete(KEYS.inprogress(owner_of_the_job(client)))
    end = time.monotonic() + 8
    while time.monotonic() < end:
        assert [client.get(lock) for lock in locks] == [jid, jid]
        time.sleep(0.1)
    assert client.ttl(locks[1]) > Locks(KEYS).active_ttl - 10
    witness.set("t:gate", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0


def test_r15_the_running_lock_that_a_server_has_lost_is_taken_again_with_the_first_beat_after_it(
    daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    """R15: for an until_executed run; its unique lock stays released, and so do the locks of another run."""
    own = make_server()
    running = daemon("-c", "2", url=own.url, target="unique_jobs:app").ready()
    with own.client() as client:
        jid = push_raw(client, "gated", 1, unique="until_executed", periodic_pjid="p1", periodic_until_executed=True)
        push_raw(client, "gated", 2, periodic_pjid="p2")
        eventually(lambda: witness.llen("t:pids:1") == witness.llen("t:pids:2") == 1)
        own.stop()
        eventually(lambda: away_at(running, "heartbeat"), 15)
        own.start()
        eventually(lambda: client.get(KEYS.periodic_running("p1")) == jid, 15)
        assert not client.exists(KEYS.periodic_running("p2"))
        assert client.keys("cogworker:unique:*") == []
        witness.set("t:gate", 1)
        eventually(lambda: witness.hvals("t:end") == ["1", "1"])
        assert running.stop() == 0


@pytest.mark.slow
def test_r17_releases_that_find_the_line_cut_do_not_make_a_beat_a_failed_one(
    daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    """R17: nor is the next round of locks the first one after a failed beat (R15)."""
    proxy = CuttingProxy(server.port)
    try:
        with limited_user(server, client, "-del") as url:
            name = str(urlsplit(url).username)
            running = daemon("-c", "2", url=url.replace(str(server.port), str(proxy.port)), target="unique_jobs:app")
            running.ready()
            proxy.cut_before(scripts.RELEASE_LOCK.sha.encode(), times=1000)
            push_raw(client, "gated", 1, periodic_pjid="p1", periodic_until_executed=True)
            eventually(lambda: witness.llen("t:pids:1") == 1)
            lock = KEYS.unique(unique_digest({"class": "fatal", "args": [2]}, "default"))
            client.set(lock, "j2", ex=1000)
            push_raw(client, "fatal", 2, jid="j2", unique="until_executed", retry=False)
            eventually(lambda: running.lines("lock.deferred"))
            client.execute_command("ACL", "SETUSER", name, "+del")
            eventually(lambda: away_at(running, "deferred releases"), 15)
            stamp, cuts = last_beat(client), proxy.cuts_left
            eventually(lambda: last_beat(client) > stamp, 15)
            eventually(lambda: proxy.cuts_left < cuts)
            assert not away_at(running, "heartbeat")
            assert not client.exists(KEYS.periodic_running("p1"))
            assert client.get(lock) == "j2"
            proxy.cut_before(b"", times=0)
            eventually(lambda: not client.exists(lock), 15)
            witness.set("t:gate", 1)
            assert running.stop() == 0
            assert len(running.lines("lock.deferred")) == 1
    finally:
        proxy.close()
