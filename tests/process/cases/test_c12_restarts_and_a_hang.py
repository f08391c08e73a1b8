"""C12: a server that restarts several times in a row and then hangs silently: everything fetches again afterwards."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.process.server_trouble import (
    BEGINNINGS,
    check_discipline,
    nothing_failed,
    one_thread,
    ran_once,
    says,
    settled,
    sites,
    stays,
)
from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]


@pytest.mark.parametrize(
    ("restarts", "hang"), [(2, 0.0), pytest.param(5, 20.0, marks=(pytest.mark.slow, pytest.mark.timeout(400)))]
)
def test_c12_after_restarts_and_a_hang_all_slots_fetch_again(
    restarts: int, hang: float, daemon: Start, make_server: Callable[..., Server], witness: Client
) -> None:
    server = make_server()
    running = daemon("-c", "3", url=server.url).ready()
    pids = running.child_pids()
    for _ in range(restarts):
        server.stop()
        stays(1)
        server.start()
        stays(1)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    says(running, "waiting for Redis", 10)
    stays(max(0.0, began + hang - time.monotonic()))
    server.process.send_signal(signal.SIGCONT)
    eventually(lambda: "waiting for Redis" not in running.title(), 5)
    with server.client() as client:
        for n in range(3):
            push_raw(client, "book", n, 2)
        eventually(lambda: "[3/3 busy]" in running.title(), 5, "all three at the same time")
        ran_once(witness, 3)
        settled(client)
        nothing_failed(client)
        assert client.get("cogworker:stats:processed") == "3"
    assert running.child_pids() == pids
    assert one_thread(running)
    check_discipline(running, restarts + 1)
    # One a minute: an outage that began in the last minute has none.
    assert sum(sites(running, "redis.still_away").values()) <= sum(sites(running, *BEGINNINGS).values())
    assert running.stop() == 0
    running.clean_log()
