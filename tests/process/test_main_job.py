"""The main job, end to end: enqueue, perform, settle."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support import Client, Daemon, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def test_every_job_of_ten_thousand_is_performed_once(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon("-c", "4", "--log-level", "info").ready()
    with client.pipeline(transaction=False) as pipe:
        for n in range(10_000):
            payload = {"class": "book", "args": [n], "queue": "default", "jid": f"j{n}", "retry": True}
            pipe.lpush("cogworker:queue:default", json.dumps(payload))
        pipe.execute()
    eventually(lambda: witness.hlen("t:end") == 10_000, 60)
    eventually(lambda: client.get("cogworker:stats:processed") == "10000")
    assert set(witness.hgetall("t:start").values()) == {"1"}
    assert set(witness.hgetall("t:end").values()) == {"1"}
    assert inprogress(client) == []
    assert running.stop() == 0
    of_runs = ("cogworker:throughput:", "cogworker:history:", "cogworker:x:cost:")
    assert client.zcard("cogworker:history:success") == 5000
    assert client.zcard("cogworker:history:all") == 5000
    left = {key for key in client.keys("*") if not key.startswith(of_runs)}
    assert left <= {"cogworker:queues", "cogworker:live_queues", "cogworker:stats:processed", "cogworker:x:recovery"}
    running.clean_log()


def test_an_async_job_a_failing_one_and_one_of_another_queue(daemon: Start, client: Client, witness: Client) -> None:
    daemon("-c", "2").ready()
    push_raw(client, "later", 1)
    push_raw(client, "mailed", 2, queue="mail")
    push_raw(client, "flaky", 3, retry=3)
    push_raw(client, "fatal", retry=False)
    eventually(lambda: witness.hgetall("t:end") == {"1": "1", "2": "1"})
    eventually(lambda: witness.lrange("t:flaky:3", 0, -1) == ["1", "2"])
    dead = eventually(lambda: client.zrange("cogworker:dead", 0, -1))
    assert json.loads(dead[0])["error_class"] == "ValueError"
    eventually(lambda: client.get("cogworker:stats:processed") == "3")
    assert client.get("cogworker:stats:failed") == "2"
    assert client.zcard("cogworker:retry") == 0


def test_a_failed_job_is_filed_as_the_wire_format_says(daemon: Start, client: Client) -> None:
    daemon("-c", "1").ready()
    jid = push_raw(client, "boom", "no luck", retry=3, created_at=1.5, odd={"kept": [1, 2**70]})
    entry, score = eventually(lambda: client.zrange("cogworker:retry", 0, -1, withscores=True))[0]
    job: dict[str, Any] = json.loads(entry)
    assert job["retry_count"] == 1
    assert (job["error_class"], job["error_message"]) == ("ValueError", "no luck")
    assert job["odd"] == {"kept": [1, 2**70]}
    assert job["created_at"] == 1.5
    assert 15 <= score - job["failed_at"] <= 15 + 29 + 1
    record = json.loads(client.lrange(f"cogworker:job_attempts:{jid}", 0, -1)[0])
    assert record["attempt"] == 1
    assert record["outcome"] == "retrying"
