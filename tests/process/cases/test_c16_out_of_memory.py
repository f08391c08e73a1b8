"""C16: a server without memory refuses writes: what runs ends and is filed afterwards, and nothing runs again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import redis.exceptions

from cogworkerd import App
from tests.process.server_trouble import check_discipline, ran_once, says, says_no_more, settled, stays
from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]


@pytest.mark.parametrize(
    ("seconds", "shortage"), [(2, 4.0), pytest.param(6, 20.0, marks=(pytest.mark.slow, pytest.mark.timeout(400)))]
)
def test_c16_in_a_shortage_jobs_end_and_are_filed_after_it(
    seconds: int,
    shortage: float,
    daemon: Start,
    make_server: Callable[..., Server],
    witness: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = make_server()
    monkeypatch.setenv("COGWORKERD_REDIS_URL", server.url)
    app = App()

    @app.job(name="book")
    def book(n: int) -> None:
        pass

    running = daemon("-c", "4", url=server.url, target="life_jobs:app").ready()
    pids = running.child_pids()
    with server.client() as client:
        for n in range(3):
            push_raw(client, "book", n, seconds)
        jid = push_raw(client, "boom", "t:boom", seconds, retry=3)
        eventually(lambda: "[4/4 busy]" in running.title())
        quiet_lines = len(_lines(running))

        client.config_set("maxmemory", "1mb")
        with pytest.raises(redis.exceptions.ResponseError, match="maxmemory"):
            book.enqueue(99)
        says(running, "Redis refuses writes", 10)
        stays(shortage)
        assert "Redis refuses writes" in running.title()
        ran_once(witness, 3)
        shortage_lines = len(_lines(running)) - quiet_lines
        client.config_set("maxmemory", "0")

        eventually(lambda: client.zcard("cogworker:retry") == 1, 10)
        settled(client)
        (entry,) = client.zrange("cogworker:retry", 0, -1)
        filed = json.loads(entry)
        assert (filed["jid"], filed["retry_count"]) == (jid, 1)
        assert client.llen(f"cogworker:job_attempts:{jid}") == 1
        assert client.zcard("cogworker:dead") == 0
        assert client.llen("cogworker:queue:default") == 0
        assert client.get("cogworker:stats:processed") == "3"
        assert client.get("cogworker:stats:failed") == "1"
    ran_once(witness, 3)
    assert witness.get("t:boom") == "1"
    assert running.child_pids() == pids
    check_discipline(running)
    says_no_more(running, "refuses")
    assert shortage_lines < 20, "\n".join(str(line) for line in _lines(running))
    assert running.stop() == 0
    running.clean_log()


def _lines(running: Daemon) -> list[dict[str, object]]:
    """What the log holds at its usual level."""
    return [line for line in running.lines() if line["level"] != "debug"]
