"""Outcomes that cannot be filed when their daemon stops are parked, and any live daemon files them (R46, R47)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cogworkerd.unique import unique_digest
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]
NOT_DEAD = "~cogworker:[^d]*"
NOT_RETRY = "~cogworker:[^r]*"
RECORDS = "cogworker:quarantine:cogworker:unsettled:records"


def url_of(server: Server) -> str:
    return f"redis://worker:secret@127.0.0.1:{server.port}/0"


def allow(client: Client, *rules: str) -> None:
    client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "resetkeys", "&*", "+@all", *rules)


@pytest.fixture
def guarded(make_server: Callable[..., Server]) -> Server:
    """A server whose user `worker` may reach everything, until a test says otherwise."""
    server = make_server()
    with server.client() as client:
        allow(client, "~*")
    return server


@pytest.mark.parametrize(
    ("job", "keys", "target"), [("fatal", NOT_DEAD, "cogworker:dead"), ("boom", NOT_RETRY, "cogworker:retry")]
)
def test_r47_an_outcome_whose_set_refuses_it_is_parked_at_stop_and_filed_by_another_daemon(
    job: str, keys: str, target: str, daemon: Start, guarded: Server
) -> None:
    fields = {"retry": False} if job == "fatal" else {"retry": 3}
    lock = f"cogworker:unique:{unique_digest({'class': job, 'args': []}, 'default')}"
    with guarded.client() as client:
        first = daemon("-c", "1", url=url_of(guarded)).ready()
        allow(client, keys)
        jid = push_raw(client, job, unique="until_executed", **fields)
        client.set(lock, jid)
        eventually(lambda: any(line["site"] == "settle" for line in first.lines("redis.refusing")), 15)
        assert first.stop() == 0
        assert len(first.lines("settle.parked")) == 1
        (record,) = client.lrange("cogworker:unsettled", 0, -1)
        assert json.loads(record)["set"] == target
        assert json.loads(json.loads(record)["payload"])["jid"] == jid
        assert inprogress(client) == []
        assert client.llen("cogworker:queue:default") == 0
        assert client.get(lock) == jid, "the job is not over"

        second = daemon("-c", "1", url=guarded.url).ready()
        eventually(lambda: client.zcard(target) == 1, 10)
        assert client.llen("cogworker:unsettled") == 0
        assert client.exists(lock) == (target == "cogworker:retry")
        assert client.get("cogworker:stats:failed") == "1"
        assert len(second.lines("parked.filed")) == 1
        assert client.lrange(f"cogworker:job_attempts:{jid}", 0, -1) != []
        assert second.stop() == 0


def test_r46_an_outcome_that_cannot_even_be_parked_stays_listed_and_is_not_requeued(
    daemon: Start, guarded: Server
) -> None:
    with guarded.client() as client:
        running = daemon("-c", "1", url=url_of(guarded)).ready()
        allow(client, "~cogworker:[^du]*")  # neither dead nor unsettled
        push_raw(client, "fatal", retry=False)
        eventually(lambda: any(line["site"] == "settle" for line in running.lines("redis.refusing")), 15)
        assert running.stop() == 0
        assert len(inprogress(client)) == 1
        assert client.llen("cogworker:queue:default") == 0
        assert client.scard("cogworker:inprogress_identities") == 1


def test_r47_unusable_records_are_moved_aside_and_stop_nobody(daemon: Start, client: Client) -> None:
    good = {"set": "cogworker:retry", "score": 4e9, "payload": '{"class":"book","jid":"a"}'}
    bad = [
        "nonsense",
        "[]",
        json.dumps({**good, "set": "cogworker:queues"}),
        json.dumps({**good, "score": "soon"}),
        json.dumps({**good, "payload": {"class": "book"}}),
        json.dumps({**good, "payload": "\ud800"}),
        '{"set":"cogworker:retry","score":1e400,"payload":"{}"}',
        json.dumps({"set": ["cogworker:retry"], "score": 1, "payload": "x"}),
    ]
    client.rpush("cogworker:unsettled", *bad, json.dumps(good))
    running = daemon("-c", "1").ready()
    eventually(lambda: client.zscore("cogworker:retry", good["payload"]) == 4e9)
    eventually(lambda: client.llen("cogworker:unsettled") == 0)
    assert client.lrange(RECORDS, 0, -1) == bad
    assert 0 < client.ttl(RECORDS) <= 2_592_000
    assert len(running.lines("parked.unusable")) == len(bad)
    assert running.stop() == 0
    running.clean_log()


def test_r47_a_record_whose_set_refuses_it_keeps_no_other_waiting(daemon: Start, guarded: Server) -> None:
    def record(target: str) -> str:
        return json.dumps({"set": target, "score": 4e9, "payload": '{"class":"book","jid":"a"}'})

    with guarded.client() as client:
        allow(client, NOT_DEAD)
        client.rpush("cogworker:unsettled", record("cogworker:dead"), record("cogworker:schedule"))
        daemon("-c", "1", url=url_of(guarded)).ready()
        eventually(lambda: client.zcard("cogworker:schedule") == 1, 10)
        assert client.lrange("cogworker:unsettled", 0, -1) == [record("cogworker:dead")]
        allow(client, "~*")
        eventually(lambda: client.zcard("cogworker:dead") == 1, 15)
