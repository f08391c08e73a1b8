"""How fast no-op jobs are drained, and what a job costs each process.

    python -m tests.bench.drain [--slots 2] [--jobs 40000] [--server redis|valkey] [--runs 3]

The backlog is filled first; the rate is taken between 95 % and 10 % of it, the log at info goes to a file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis

from tests.support import Server

APP = """
from cogworkerd import App
app = App()
@app.job(name="noop")
def noop() -> None: ...
"""
QUEUE = "cogworker:queue:default"


@dataclass(frozen=True)
class Run:
    """One measurement. Microseconds of CPU a job; commands and scripts a job as the server counts them."""

    rate: float
    children: float
    parent: float
    server: float
    commands: float
    scripts: float


@dataclass(frozen=True)
class Reading:
    at: float
    left: int
    children: float
    parent: float
    server: float
    commands: int
    scripts: int


def read(client: redis.Redis, parent: psutil.Process, server: psutil.Process) -> Reading:
    stats = client.info("stats")
    calls = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    return Reading(
        time.monotonic(),
        client.llen(QUEUE),
        sum(cpu(child) for child in parent.children()),
        cpu(parent),
        cpu(server),
        stats["total_commands_processed"],
        calls,
    )


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(server: Server, slots: int, jobs: int) -> Run:
    client = server.client()
    client.flushall()
    with tempfile.TemporaryDirectory(prefix="cwbench-") as folder:
        return drain(server, client, Path(folder), slots, jobs)


def drain(server: Server, client: redis.Redis, folder: Path, slots: int, jobs: int) -> Run:
    (folder / "bench_app.py").write_text(APP)
    environment = {**os.environ, "COGWORKERD_REDIS_URL": server.url}
    fill = f"import bench_app; bench_app.noop.enqueue_many([()] * {jobs})"
    subprocess.run([sys.executable, "-c", fill], cwd=folder, env=environment, check=True)
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "cogworkerd", "run", "bench_app:app", "-c", str(slots)],
            cwd=folder,
            env=environment,
            stdout=log,
        )
    try:
        parent, held = psutil.Process(daemon.pid), psutil.Process(client.info("server")["process_id"])
        while client.llen(QUEUE) > 0.95 * jobs:
            time.sleep(0.005)
        first = read(client, parent, held)
        while client.llen(QUEUE) > 0.10 * jobs:
            time.sleep(0.01)
        last = read(client, parent, held)
    finally:
        daemon.terminate()
        daemon.wait()
        client.close()
    done = first.left - last.left

    def each(name: str) -> float:
        return float(1e6 * (getattr(last, name) - getattr(first, name)) / done)

    return Run(
        done / (last.at - first.at),
        each("children"),
        each("parent"),
        each("server"),
        (last.commands - first.commands) / done,
        (last.scripts - first.scripts) / done,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--server", choices=("redis", "valkey"), default="valkey")
    options = parser.parse_args()
    server = Server(options.server)
    try:
        runs = [measure(server, options.slots, options.jobs) for _ in range(options.runs)]
    finally:
        server.close()
    print(f"{options.jobs} no-op jobs, {options.slots} slots, {options.server}, median of {options.runs} runs")
    for name, unit in (
        ("rate", "jobs a second"),
        ("children", "us of CPU a job in the children"),
        ("parent", "us of CPU a job in the supervisor"),
        ("server", "us of CPU a job in the server"),
        ("commands", "commands a job, those inside scripts included"),
        ("scripts", "scripts a job"),
    ):
        values = [getattr(run, name) for run in runs]
        print(f"{statistics.median(values):10.1f}  {unit} ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
