"""Releases of one application, and what tests of renewals do with a daemon that runs it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.process.test_renewal import Releases, renewed
from tests.support import Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]


CODE = """
import os, signal, sys, time, redis, setproctitle
from pathlib import Path
from cogworkerd import App, Retry, current_job
from cogworkerd.errors import Interruption
CHECK = setproctitle.getproctitle() == "cogworkerd:check"
HERE = Path(__file__).parent
RELEASE = {release}
{before}
app = App({app_settings})
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])

@app.job(name="work")
def work(n, seconds=0.0, ballast=""):
    witness.hincrby("t:start", str(n), 1)
    time.sleep(seconds)
    witness.hset("t:release", str(n), RELEASE)
    witness.hincrby("t:end", str(n), 1)

@app.job(name="hold")
def hold(n):
    "Runs until the test says go."
    witness.hset("t:pid", str(n), os.getpid())
    witness.hincrby("t:start", str(n), 1)
    began = time.monotonic()
    try:
        while not witness.hexists("t:go", str(n)):
            time.sleep(0.02)
    finally:
        witness.hset("t:seconds", str(n), time.monotonic() - began)
    witness.hset("t:release", str(n), RELEASE)
    witness.hincrby("t:end", str(n), 1)

@app.job(name="stubborn", retry=False)
def stubborn(n):
    "Is not impressed by an interruption."
    witness.hincrby("t:start", str(n), 1)
    while True:
        try:
            time.sleep(60)
        except Interruption:
            witness.hincrby("t:told", str(n), 1)

@app.job(name="fail", retry=1)
def fail(n, size):
    witness.hincrby("t:start", str(n), 1)
    witness.hincrby("t:end", str(n), 1)
    raise ValueError("x" * size)
{more}
"""

AS_DAEMON = "if not CHECK and RELEASE == 2:\n    "
"""Before what only the second release does, and only once it has followed the first."""


class Folder(Releases):
    """An application's folder, with a configuration file beside the code."""

    def deploy(self, number: int, app_settings: str = "", more: str = "", before: str = "") -> None:
        self.write(CODE.format(release=number, app_settings=app_settings, more=more, before=before))

    def configure(self, **settings: Any) -> None:
        text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        (self.folder / "cogworkerd.toml").write_text(text)


def held(client: Client, witness: Client, *numbers: int, **fields: Any) -> dict[int, int]:
    """Push jobs that run until the test says go, wait until they run; the pids of their children."""
    for number in numbers:
        push_raw(client, "hold", number, **fields)
    eventually(lambda: all(witness.hexists("t:pid", str(number)) for number in numbers), 10)
    return {number: int(witness.hget("t:pid", str(number))) for number in numbers}


def go(witness: Client, *numbers: int) -> None:
    for number in numbers:
        witness.hset("t:go", str(number), 1)


def ended(witness: Client, *numbers: int, within: float = 10) -> None:
    """Wait until these jobs have ended."""
    eventually(lambda: all(witness.hexists("t:end", str(number)) for number in numbers), within, f"{numbers} ended")


def refused(running: Daemon, times: int = 1, within: float = 15) -> str:
    """Wait until new code was refused so often; the last reason."""
    lines = eventually(lambda: found if len(found := running.lines("renewal.refused")) >= times else [], within)
    assert len(lines) == times
    assert lines[-1]["level"] == "error"
    return str(lines[-1]["reason"])


def came(running: Daemon, event: str, times: int = 1, within: float = 20) -> list[dict[str, Any]]:
    """Wait until an event was logged so often."""

    def look() -> list[dict[str, Any]]:
        lines = running.lines(event)
        return lines if len(lines) >= times else []

    return eventually(look, within, f"{times} x {event}")


def ask(running: Daemon) -> None:
    """USR2, and wait until the daemon has heard it."""
    before = len(running.lines("renewal.started"))
    running.signal(signal.SIGUSR2)
    came(running, "renewal.started", before + 1)


def recorded(client: Client, count: int) -> None:
    """Wait until so many runs are written down; each is counted once, too."""

    def look() -> tuple[int, int]:
        counts = [int(count) for key in client.keys("cogworker:history:daily:*") for count in client.hvals(key)]
        return client.zcard("cogworker:history:all"), sum(counts)

    eventually(lambda: look() == (count, count), message=f"{look()}, and not {count}, runs and counts")


def rolled(running: Daemon, within: float = 30) -> None:
    """Wait until a renewal is done and nothing is under way."""

    def look() -> bool:
        names = [line["event"] for line in running.lines()]
        last = {name: index for index, name in enumerate(names)}
        tried = max(last.get("renewal.done", -1), last.get("renewal.refused", -1))
        begun = max(last.get("roll.started", -1), last.get("renewal.done", -1))
        return "renewal.done" in last and tried > last.get("renewal.started", -1) and last.get("roll.done", -1) > begun

    eventually(look, within, "renewal.done, then roll.done")


def followed(running: Daemon) -> None:
    """Wait until the new code has been judged; it was fit, and has taken over."""
    eventually(lambda: running.lines("renewal.done") or running.lines("renewal.refused"), 15)
    assert running.lines("renewal.refused") == []
    renewed(running)


def point(link: Path, target: Path) -> None:
    """Let a link lead elsewhere, in one step."""
    following = link.with_name("next")
    following.symlink_to(target)
    following.rename(link)


def renewed_around_a_job(running: Daemon, client: Client, witness: Client) -> None:
    """USR2 while job 1 is held: it ends after the renewal, and job 2 is of the new program."""
    running.signal(signal.SIGUSR2)
    came(running, "renewal.done")
    go(witness, 1)
    renewed(running)
    push_raw(client, "work", 2)
    ended(witness, 1, 2)


def never(look: Callable[[], Any], seconds: float) -> None:
    """What would be wrong does not come within this time."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        found = look()
        assert not found, found
        time.sleep(0.02)


def pids_below(running: Daemon) -> set[int]:
    return {child.pid for child in psutil.Process(running.pid).children()}
