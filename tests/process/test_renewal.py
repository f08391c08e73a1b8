"""New code without a stop: the supervisor becomes the new program, its children go on and are replaced one by one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import Client, Command, Daemon, eventually, inprogress, push_raw

pytestmark = pytest.mark.timeout(180)

Start = Callable[..., Daemon]

APP = """
import os, time, redis
from cogworkerd import App, current_job
app = App({app_settings})
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])
RELEASE = {release}

@app.job(name="work")
def work(n, seconds=0.0):
    witness.hincrby("t:start", str(n), 1)
    time.sleep(seconds)
    witness.hset("t:release", str(n), RELEASE)
    witness.hincrby("t:end", str(n), 1)
"""


class Releases:
    """The application's folder; each release is one file that takes the place of the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._time = time.time()

    def write(self, text: str) -> None:
        self._time += 10  # bytecode of the same second and size must not win
        new = self.folder / "new"
        new.write_text(text)
        os.utime(new, (self._time, self._time))
        new.rename(self.folder / "deployed.py")

    def deploy(self, number: int, app_settings: str = "", more: str = "") -> None:
        self.write(APP.format(release=number, app_settings=app_settings) + more)


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path)


@pytest.fixture
def deployed(daemon: Start, releases: Releases) -> Start:
    """Starts a daemon of release 1."""

    def start(*flags: str, **options: Any) -> Daemon:
        if not (releases.folder / "deployed.py").exists():
            releases.deploy(1)
        return daemon(*flags, target="deployed:app", app_dir=releases.folder, **options).ready()

    return start


def renewed(running: Daemon, times: int = 1, within: float = 20) -> None:
    """Wait until new programs have taken over so often, and every child was replaced by one of the last one."""

    def look() -> bool:
        names = [line["event"] for line in running.lines() if line["event"] in ("renewal.done", "roll.done")]
        return names.count("renewal.done") == times and names[-1] == "roll.done"

    eventually(look, within, f"{times} x renewal.done, then roll.done")


def ready_slots(running: Daemon) -> list[int]:
    """How many slots had a child that has said hello, after each change that the log tells of, once all were ready."""
    ready: set[int] = set()
    counts: list[int] = []
    begun = False
    for line in running.lines():
        if line["event"] in ("child.left", "child.died"):
            ready.discard(line["slot"])
        elif line["event"] == "report" and line["kind"] == "READY":
            ready.add(line["slot"])
        begun = begun or line["event"] == "daemon.ready"
        if begun:
            counts.append(len(ready))
    return counts


def each_once(witness: Client, count: int) -> None:
    """Every job has begun and ended once."""
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}
    assert witness.hlen("t:start") == witness.hlen("t:end") == count


def in_order(running: Daemon, client: Client, processed: int, complaints: int = 0) -> None:
    """Nothing is left, nothing was counted twice, nothing was said that should not be; the daemon stops."""
    eventually(lambda: client.get("cogworker:stats:processed") == str(processed))
    assert inprogress(client) == []
    assert [running.lines(name) for name in ("child.died", "job.orphaned", "job.stray")] == [[]] * 3
    assert running.stop() == 0
    assert len(running.complaints()) == complaints
    running.clean_log()


def test_new_code_performs_the_next_jobs_and_the_running_one_is_not_disturbed(
    deployed: Start, releases: Releases, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    pid, before = running.pid, set(running.child_pids())
    (identity,) = client.smembers("cogworker:processes")
    push_raw(client, "work", 1, 3)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    releases.deploy(2)
    running.signal(signal.SIGUSR2)
    renewed(running)
    push_raw(client, "work", 2)
    eventually(lambda: witness.hlen("t:end") == 2)
    assert witness.hgetall("t:release") == {"1": "1", "2": "2"}
    each_once(witness, 2)
    (done,) = running.lines("renewal.done")
    assert (done["adopted"], done["slots"]) == (2, 2)
    assert running.process.poll() is None
    assert running.pid == pid
    assert not before & set(running.child_pids())
    assert client.smembers("cogworker:processes") == {identity}
    assert min(ready_slots(running)) == 1
    assert "1/2 busy" not in running.title()
    in_order(running, client, 2)


def test_an_order_over_the_channel_does_the_same(
    deployed: Start, releases: Releases, client: Client, witness: Client, command: Command
) -> None:
    running = deployed("-c", "1")
    releases.deploy(2)
    done = command("restart")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": restart\n")
    renewed(running)
    push_raw(client, "work", 1)
    eventually(lambda: witness.hget("t:release", "1") == "2")
    in_order(running, client, 1)


def test_code_that_cannot_be_imported_changes_nothing_and_is_named_in_one_line(
    deployed: Start, releases: Releases, client: Client, witness: Client
) -> None:
    running = deployed("-c", "2")
    before = running.child_pids()
    releases.write("import nowhere_to_be_found\n")
    running.signal(signal.SIGUSR2)
    (refused,) = eventually(lambda: running.lines("renewal.refused"), 15)
    assert refused["level"] == "error"
    assert "nowhere_to_be_found" in refused["reason"]
    assert str(releases.folder / "deployed.py") in refused["reason"]
    push_raw(client, "work", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.child_pids() == before
    assert not running.lines("roll.started")
    releases.deploy(3)
    running.signal(signal.SIGUSR2)
    renewed(running)
    push_raw(client, "work", 2)
    eventually(lambda: witness.hget("t:release", "2") == "3")
    in_order(running, client, 2, complaints=1)


@pytest.mark.parametrize(
    ("every", "deploys", "broken"),
    [(0.0, 4, (2,)), pytest.param(10.0, 12, (4, 8), marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_deploys_under_load(
    every: float,
    deploys: int,
    broken: tuple[int, ...],
    deployed: Start,
    releases: Releases,
    client: Client,
    witness: Client,
) -> None:
    """Each release is one number higher; between two of them there are jobs all the time."""
    slots = 3
    running = deployed("-c", str(slots))
    pid, pushed, good = running.pid, 0, 1
    for number in range(2, 2 + deploys):
        next_deploy = time.monotonic() + every
        if number in broken:
            releases.write(f"this is release {number}, and no Python\n")
        else:
            releases.deploy(number)
            good += 1
        running.signal(signal.SIGUSR2)
        refused = len([n for n in broken if n <= number])
        while True:
            if client.llen("cogworker:queue:default") < 50:
                with client.pipeline() as pipe:
                    for _ in range(100):
                        push_raw(pipe, "work", pushed, pushed % 7 * 0.01)
                        pushed += 1
                    pipe.execute()
            settled = len(running.lines("renewal.done")), len(running.lines("renewal.refused"))
            rolled = len(running.lines("roll.done")) == good - 1
            if time.monotonic() >= next_deploy and settled == (good - 1, refused) and rolled:
                break
            assert time.monotonic() < next_deploy + 60, (settled, running.text()[-3000:])
            time.sleep(0.02)
    push_raw(client, "work", pushed)
    last = str(pushed)
    eventually(lambda: witness.hget("t:end", last) == "1", 60)
    eventually(lambda: witness.hlen("t:end") == pushed + 1, 60)
    each_once(witness, pushed + 1)
    assert witness.hget("t:release", last) == str(1 + deploys)
    assert running.process.poll() is None
    assert running.pid == pid
    assert min(ready_slots(running)) == slots - 1
    reasons = [line["reason"] for line in running.lines("renewal.refused")]
    assert len(reasons) == len(broken)
    assert all("SyntaxError" in reason for reason in reasons)
    in_order(running, client, pushed + 1, complaints=len(broken))
