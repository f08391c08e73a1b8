"""New code without a stop: the supervisor becomes the new program, its children go on and are replaced one by one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import Client, Daemon, eventually, push_raw

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
    eventually(lambda: len(running.lines("renewal.done")) == times, within, "renewal.done")
    eventually(lambda: running.lines()[-1]["event"] == "roll.done" or _rolled(running), within, "roll.done")


def _rolled(running: Daemon) -> bool:
    names = [line["event"] for line in running.lines() if line["event"] in ("renewal.done", "roll.done")]
    return names[-1:] == ["roll.done"]


def push(client: Client, *args: Any) -> None:
    from tests.support import push_raw

    push_raw(client, "work", *args)


def test_first(deployed: Start, releases: Releases, client: Client, witness: Client) -> None:
    running = deployed("-c", "2")
    pid, before = running.pid, set(running.child_pids())
    push(client, 1, 3)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    releases.deploy(2)
    running.signal(signal.SIGUSR2)
    renewed(running)
    push(client, 2)
    eventually(lambda: witness.hlen("t:end") == 2)
    assert witness.hgetall("t:release") == {"1": "1", "2": "2"}
    assert running.stop() == 0
    running.clean_log()
