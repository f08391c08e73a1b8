"""How long it takes to retry one class of many dead jobs by filter, and what memory the process needs for it.

    python -m tests.bench.dead_million [--entries 1000000] [--server redis|valkey]

Dead is filled with jobs of ten classes. `DeadSet(...).retry_all` looks at all of them and retries those of one class.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import dataclass

import redis

from cogworkerd.jobsets import DeadSet, Store
from cogworkerd.locks import Locks
from cogworkerd.payload import new_jid
from cogworkerd.store.keys import Keys
from tests.support import Server

CLASSES = tuple(f"shop.mail.send_{n}" for n in range(10))
BATCH = 1000
KEYS = Keys()


@dataclass(frozen=True)
class Run:
    """One measurement. Memory in KiB, the peak of the process's life."""

    seconds: float
    retried: int
    peak_before: int
    peak_after: int


def fill(client: redis.Redis, entries: int) -> None:
    """Dead jobs as a daemon leaves them."""
    for start in range(0, entries, BATCH):
        numbers = range(start, min(start + BATCH, entries))
        client.zadd(KEYS.dead, {job(n): 1_700_000_000 + n / 1000 for n in numbers})


def job(n: int) -> str:
    payload = {
        "class": CLASSES[n % len(CLASSES)],
        "args": [n, "someone@example.com"],
        "queue": "mail",
        "jid": new_jid(),
        "retry": True,
        "created_at": 1_690_000_000.25,
        "enqueued_at": 1_699_000_000.25,
        "retry_count": 26,
        "failed_at": 1_690_000_001.5,
        "error_class": "ConnectionRefusedError",
        "error_message": "[Errno 111] Connection refused",
    }
    return json.dumps(payload, separators=(",", ":"))


def measure(server: Server, entries: int) -> Run:
    # One client that fills, one that is measured: what the filling has allocated is not part of it.
    with server.client() as client:
        client.flushall()
        fill(client, entries)
    with redis.Redis(port=server.port) as client:
        dead = DeadSet(Store(client, KEYS, Locks(KEYS)))
        before = peak()
        began = time.perf_counter()
        retried = dead.retry_all(lambda entry: entry.name == CLASSES[3])
        seconds = time.perf_counter() - began
        check(client, entries, retried)
    return Run(seconds, retried, before, peak())


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def check(client: redis.Redis, entries: int, retried: int) -> None:
    """A number that was got by doing less would be worth nothing."""
    expected = len(range(3, entries, len(CLASSES)))
    found = (retried, client.llen(KEYS.queue("mail")), client.zcard(KEYS.dead))
    assert found == (expected, expected, entries - expected), f"retried, queued, left: {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--server", choices=("redis", "valkey"), default="valkey")
    options = parser.parse_args()
    server = Server(options.server)
    try:
        run = measure(server, options.entries)
    finally:
        server.close()
    print(f"{options.entries} dead jobs of {len(CLASSES)} classes, one of them retried by filter, {options.server}")
    for value, unit in (
        (f"{run.seconds:.1f}", "seconds"),
        (f"{options.entries / run.seconds:.0f}", "entries looked at a second"),
        (f"{run.retried}", "jobs retried"),
        (f"{run.retried / run.seconds:.0f}", "jobs retried a second"),
        (f"{run.peak_after / 1024:.1f}", "MiB peak RSS of the process"),
        (f"{(run.peak_after - run.peak_before) / 1024:.1f}", "MiB more than before the retry"),
    ):
        print(f"{value:>10}  {unit}")


if __name__ == "__main__":
    main()
