"""C31: a job that swallows every Exception and never ends. Its timeout ends it all the same, as one failed attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from cogworkerd import App
from cogworkerd.inspect import Store, read_attempts
from tests.support import APPS, ROOT, Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]


def test_c31_a_job_that_eats_every_exception_is_ended_and_has_failed_once(
    daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    running = daemon("-c", "2", target="stoppable_jobs:app").ready()
    # Pushed by the app itself, so that the timeout is the decorator's.
    env = {
        **os.environ,
        "COGWORKERD_REDIS_URL": server.url,
        "WITNESS_URL": f"redis://127.0.0.1:{witness.connection_pool.connection_kwargs['port']}/0",
    }
    words = ("enqueue", "stoppable_jobs:app", "greedy", "--app-dir", str(APPS))
    pushed = subprocess.run(
        [sys.executable, "-m", "cogworkerd", *words], capture_output=True, text=True, check=True, env=env, cwd=ROOT
    )
    jid = pushed.stdout.strip()
    push_raw(client, "book", "a", 6)
    eventually(lambda: witness.llen("t:greedy") == 1)
    (raw,) = eventually(lambda: client.zrange("cogworker:retry", 0, -1), 8)
    entry = json.loads(raw)
    assert (entry["jid"], entry["retry_count"]) == (jid, 1)
    assert (entry["error_class"], entry["error_message"]) == ("JobTimeout", "still running after 2 s")
    eventually(lambda: client.get("cogworker:stats:processed") == "1", 10)
    assert (client.get("cogworker:stats:failed"), client.zcard("cogworker:dead")) == ("1", 0)
    app = App(server.url)
    (attempt,) = read_attempts(Store.of(app), jid)
    app.client.close()
    assert (attempt.attempt, attempt.outcome, attempt.error_class) == (1, "retrying", "JobTimeout")
    assert witness.llen("t:greedy") == 1
    assert witness.hgetall("t:start") == witness.hgetall("t:end") == {"a": "1"}
    assert client.keys("cogworker:orphanings:*") == []
    assert inprogress(client) == []
    assert running.stop() == 0
