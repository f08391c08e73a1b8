"""C04: daemons that are started and stopped under load, at whatever they are, lose no job and run none twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.process.server_trouble import ran_once, settled
from tests.support import Client, Daemon, Server, push_raw

Start = Callable[..., Daemon]

QUEUES = ("a", "b", "c")
FLAGS = ("-c", "4", "-q", "a", "-q", "b", "-q", "c")
A_SECOND = 100


def produce(server: Server, count: int) -> None:
    """About a hundred jobs a second, on three queues."""
    began = time.monotonic()
    with server.client() as client:
        for n in range(count):
            push_raw(client, "book", n, queue=QUEUES[n % len(QUEUES)])
            time.sleep(max(0.0, began + n / A_SECOND - time.monotonic()))


@pytest.mark.parametrize(
    ("count", "stops", "whole_boot"),
    [
        (400, 3, True),
        pytest.param(2000, 20, True, marks=pytest.mark.slow),
        pytest.param(2000, 20, False, marks=pytest.mark.slow),
    ],
)
def test_c04_stops_under_load_lose_nothing_and_make_nothing_run_twice(
    count: int, stops: int, whole_boot: bool, daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    producer = threading.Thread(target=produce, args=(server, count))
    producer.start()
    try:
        for _ in range(stops):
            running = daemon(*FLAGS)
            if whole_boot:
                running.ready()
            time.sleep(1)  # the case's: wherever it is then
            assert running.stop() == 0, running.text()[-2000:]
            running.clean_log()
    finally:
        producer.join()
    last = daemon(*FLAGS).ready()
    ran_once(witness, count, 60)
    settled(client)
    assert client.keys("cogworker:inprogress:*") == []
    assert not client.exists("cogworker:unsettled")
    assert client.keys("cogworker:orphanings:*") == []
    assert client.get("cogworker:stats:processed") == str(count)
    assert last.stop() == 0
    last.clean_log()
