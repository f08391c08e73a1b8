"""Every example of every command is run as a user would type it, in a shell, against a real server and a daemon."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cogworkerd.cli.parser import COMMANDS
from tests.support import APPS, PATIENCE, Daemon, Server, eventually

JID = "4f3a91c0ffee4f3a91c0ffee"
OTHER = "d" * 24


def examples() -> list[str]:
    return [
        line.strip()
        for name in COMMANDS
        for line in import_module(f"cogworkerd.cli.{name}").EXAMPLES.splitlines()[1:]
        if line.strip()
    ]


@dataclass(frozen=True)
class Case:
    """What becomes of one example.

    Attributes:
        says: words of its output.
        status: of its exit.
        until: it goes on until it has said this and was interrupted by Ctrl-C.
        running: JID is a job that runs; else it waits for its retry.
        ran: a job has run.
        on_terminal: its output is a terminal.
        embedded: a daemon runs with a private server in ./data.
        installed: the files of a user's service are there.
        instead: words that are replaced, where the line itself would need more than a test has.
    """

    says: tuple[str, ...]
    status: int = 0
    until: str = ""
    running: bool = False
    ran: bool = False
    on_terminal: bool = False
    embedded: bool = False
    installed: bool = False
    instead: dict[str, str] = field(default_factory=dict)


RUNS_UNTIL_READY = Case(("daemon.ready", "daemon.stopped"), until='"daemon.ready"')
AN_ID = Case(("id",))

CASES = {
    "cogworkerd run shop.jobs:app": RUNS_UNTIL_READY,
    "cogworkerd run shop.jobs:app -c 10 -q mail,3 -q default": RUNS_UNTIL_READY,
    "cogworkerd run shop.jobs:app --embedded ./data": RUNS_UNTIL_READY,
    "COGWORKERD_REDIS_URL_FILE=/run/secrets/redis cogworkerd run shop.jobs:app --log-format json": RUNS_UNTIL_READY,
    "cogworkerd check shop.jobs:app": Case(("shop.mail.send_welcome", "Memory that records can reach")),
    "cogworkerd check shop.jobs:app -c 10 --redis-url-file /run/secrets/redis": Case(("--redis-url-file", "23 needed")),
    "cogworkerd demo": Case(("files,", "interrupted"), 130, until="a private server"),
    "cogworkerd demo ~/projects": Case(("killed and came back", "yes")),
    "cogworkerd enqueue shop.jobs:app mail.send_welcome '[42]'": AN_ID,
    """cogworkerd enqueue shop.jobs:app mail.send_welcome '[42]' --kwargs '{"lang": "de"}' --in 300""": AN_ID,
    "echo '[42]' | cogworkerd enqueue shop.jobs:app mail.send_welcome -": AN_ID,
    "cogworkerd status": Case(("Processes", "mail", "shop")),
    "cogworkerd status --watch": Case(("PROCESSES (1)", "mail"), until="QUEUES", on_terminal=True),
    "cogworkerd status --watch --every 5": Case(("PROCESSES (1)", "mail"), until="QUEUES", on_terminal=True),
    "cogworkerd status --json": Case(('"processes"', '"shop"')),
    "cogworkerd status --memory": Case(("PSS", "private", "shared")),
    "cogworkerd status --embedded ./data": Case(("Processes", "private"), embedded=True),
    "cogworkerd jobs list dead": Case((OTHER, "no luck")),
    "cogworkerd jobs list retry --name shop.mail.send_welcome --limit 50 --json": Case((JID, '"jobs"')),
    "cogworkerd jobs list queue:mail": Case(("e" * 24,)),
    "cogworkerd jobs list running": Case((JID, "40 % rows"), running=True),
    f"cogworkerd jobs show {JID}": Case(('"in": "retry"', "shop.mail.send_welcome")),
    f"cogworkerd jobs show {JID} --raw": Case(('{"class":"shop.mail.send_welcome"',)),
    f"cogworkerd jobs retry {JID}": Case(("on its queue (was in retry)",)),
    "cogworkerd jobs retry --from dead --name shop.mail.send_welcome --yes": Case(("dead: 1 jobs, on its queue",)),
    "cogworkerd jobs delete --from dead --all --yes": Case(("dead: 1 jobs, deleted",)),
    f"cogworkerd jobs bury {JID}": Case(("in dead (was in retry)",)),
    f"cogworkerd jobs cancel {JID} --yes": Case(("told to end; killed in 5 s",), running=True),
    f"cogworkerd jobs cancel {JID} --then requeue --grace 30 --yes": Case(("killed in 30 s",), running=True),
    "cogworkerd jobs cost": Case(("shop.reports.sum", "CPU/run"), ran=True),
    "cogworkerd jobs cost --days 7 --json": Case(('"days": 7', "shop.reports.sum"), ran=True),
    "cogworkerd queues list": Case(("mail", "latency")),
    "cogworkerd queues list --json": Case(('"queues"', '"mail"')),
    "cogworkerd queues pause mail": Case(("mail: paused",)),
    "cogworkerd queues resume mail": Case(("mail: resumed",)),
    "cogworkerd queues clear mail --yes": Case(("mail: 1 jobs deleted",)),
    f"cogworkerd stack {JID}": Case(("slot", "in build"), running=True),
    f"cogworkerd stack {JID} --json": Case(('"lines"', "in build"), running=True),
    "cogworkerd quiet": Case((": quiet",)),
    "cogworkerd quiet shop": Case((": quiet",)),
    "cogworkerd quiet --all": Case((": quiet",)),
    "cogworkerd resume": Case((": resume",)),
    "cogworkerd resume shop": Case((": resume",)),
    "cogworkerd resume --all": Case((": resume",)),
    "cogworkerd restart": Case((": restart",)),
    "cogworkerd restart shop": Case((": restart",)),
    "cogworkerd restart --all": Case((": restart",)),
    "cogworkerd stop": Case((": stop",)),
    "cogworkerd stop shop": Case((": stop",)),
    "cogworkerd stop --all": Case((": stop",)),
    "cogworkerd healthcheck": Case(("well",)),
    "cogworkerd healthcheck --tag shop --within 30": Case(("well",)),
    # It writes to /etc, as root: the same files are printed.
    "cogworkerd systemd install shop.jobs:app --app-dir /srv/shop": Case(
        ("Type=notify", "/etc/cogworkerd/cogworkerd.env"), instead={"install": "install --print"}
    ),
    "cogworkerd systemd install shop.jobs:app --app-dir /srv/shop --account shop --print": Case(("User=shop",)),
    "cogworkerd systemd install shop.jobs:app --user": Case(("wrote", "systemctl --user")),
    # It removes from /etc, as root: the same files of a user are removed.
    "cogworkerd systemd uninstall": Case(("removed",), installed=True, instead={"uninstall": "uninstall --user"}),
}


class Shop:
    """A folder with the application, a server and a daemon with the tag `shop`, all of which last for many lines."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self.server = Server(kind)
        self.witness = self.server.client(db=1)
        self.client = self.server.client()
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        shutil.copy(APPS / "shop_jobs.py", folder / "shop" / "jobs.py")
        (folder / "projects").mkdir()
        (folder / "projects" / "read.me").write_text("two words\n")
        (folder / "secret").write_text(self.server.url)
        (folder / "bin").mkdir()
        program = folder / "bin" / "cogworkerd"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cogworkerd "$@"\n')
        program.chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")},
            "REDIS_URL": self.server.url,
            "WITNESS_URL": self.server.url.replace("/0", "/1"),
            "HOME": str(folder),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }
        self._daemons: list[Daemon] = []

    def daemon(self, *flags: str) -> Daemon:
        """Start a daemon; it reads no queue `mail`, so that what waits there stays."""
        running = Daemon(
            self.server.url,
            self.environment["WITNESS_URL"],
            *("-c", "2", "-q", "default", *flags),
            target="shop.jobs:app",
            app_dir=self.folder,
            cwd=self.folder,
        )
        self._daemons.append(running)
        return running.ready()

    def prepare(self, case: Case) -> None:
        """The server as every line finds it: one daemon that listens, some jobs, JID where the case wants it."""
        self.witness.set("t:gate", 1)
        eventually(lambda: not any(self.client.lrange(key, 0, -1) for key in self._in_progress()), 15)
        for key in ("schedule", "retry", "dead", "paused_queues", "queue:mail", "queue:default"):
            self.client.delete(f"cogworker:{key}")
        self.witness.flushdb()
        self._close_daemons(1)
        if not self._daemons or self._daemons[0].process.poll() is not None:
            self._close_daemons()
            self.daemon("--tag", "shop")
        (identity,) = eventually(lambda: self.client.smembers("cogworker:processes"), 15)
        channel = f"cogworker:signal:{identity}"
        eventually(lambda: self.client.publish(channel, "resume") == 1, 15)
        eventually(lambda: self.client.hget(f"cogworker:process:{identity}", "quiet") == "false", 15)
        self.client.sadd("cogworker:queues", "mail")
        self.client.lpush("cogworker:queue:mail", _job("e" * 24))
        self.client.zadd("cogworker:dead", {_job(OTHER, error_message="no luck"): 1000.0})
        if case.running:
            self.client.lpush("cogworker:queue:default", _job(JID, "shop.reports.build", args=[1], queue="default"))
            eventually(lambda: self.client.hgetall(f"cogworker:workers:{identity}"), 15)
        else:
            self.client.zadd("cogworker:retry", {_job(JID): 4e9})
        if case.ran:
            self.client.lpush("cogworker:queue:default", _job(OTHER, "shop.reports.sum", args=[1, 0], queue="default"))
            eventually(lambda: any(self.client.scan_iter("cogworker:x:cost:*")), 15)
        if case.embedded:
            self.daemon("--tag", "private", "--embedded", "./data")
        shutil.rmtree(self.folder / ".config", ignore_errors=True)
        if case.installed:
            unit = self.folder / ".config" / "systemd" / "user" / "cogworkerd.service"
            unit.parent.mkdir(parents=True)
            unit.touch()

    def _in_progress(self) -> list[str]:
        return list(self.client.scan_iter("cogworker:inprogress:*"))

    def settle(self, line: str) -> None:
        """What a line has begun is over: a stopped daemon has left, a private server has ended."""
        if line.startswith("cogworkerd restart"):
            eventually(lambda: self._daemons[0].lines("roll.done"), 20)
        if line.startswith("cogworkerd stop"):
            assert self._daemons[0].exited() == 0
        for extra in self._daemons[1:]:
            assert extra.stop() == 0
        self._close_daemons(1)

    def _close_daemons(self, first: int = 0) -> None:
        for running in self._daemons[first:]:
            running.close()
        del self._daemons[first:]

    def close(self) -> None:
        self._close_daemons()
        self.client.close()
        self.witness.close()
        self.server.close()


def _job(jid: str, name: str = "shop.mail.send_welcome", **fields: Any) -> str:
    payload = {"class": name, "args": [42], "queue": "mail", "jid": jid, **fields}
    return json.dumps(payload, separators=(",", ":"))


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = Shop(request.config.getoption("--server"), tmp_path_factory.mktemp("s"))
    yield made
    made.close()


class Line:
    """One line that a shell runs, in a session of its own, with what it has written so far."""

    def __init__(self, shop: Shop, text: str, on_terminal: bool) -> None:
        self._written = bytearray()
        self._ours, theirs = os.openpty() if on_terminal else os.pipe()
        if on_terminal:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            ["bash", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=shop.folder,
            env=shop.environment,
            start_new_session=True,
            # A shell that put the tests behind may have made it one that is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while chunk := os.read(self._ours, 65536):
                self._written += chunk

    @property
    def output(self) -> str:
        return bytes(self._written).decode("utf-8", "replace")

    def interrupt_after(self, word: str) -> None:
        """Ctrl-C, as the terminal sends it, to all its processes."""
        eventually(
            lambda: word in self.output or self.process.poll() is not None, 30, f"{word} in {self.output[-2000:]}"
        )
        assert self.process.poll() is None, self.output
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> int:
        try:
            status = self.process.wait(60 * PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self._reader.join(10)
            os.close(self._ours)
        return status


@pytest.mark.parametrize("line", examples())
def test_an_example_does_what_it_shows(line: str, shop: Shop) -> None:
    case = CASES[line]
    shop.prepare(case)
    text = line.replace("/run/secrets/redis", str(shop.folder / "secret")).replace("/srv/shop", str(shop.folder))
    for word, other in case.instead.items():
        text = text.replace(f" {word}", f" {other}")
    running = Line(shop, text, case.on_terminal)
    try:
        if case.until:
            running.interrupt_after(case.until)
    finally:
        status = running.ended()
    assert status == case.status, running.output
    if case is AN_ID:
        found = running.output.strip()
        waiting = (*shop.client.lrange("cogworker:queue:mail", 0, -1), *shop.client.zrange("cogworker:schedule", 0, -1))
        assert found in [json.loads(raw)["jid"] for raw in waiting], running.output
    else:
        assert [word for word in case.says if word not in running.output] == [], running.output
    assert "Traceback" not in running.output
    shop.settle(line)


def test_no_example_is_expected_that_is_not_there() -> None:
    assert CASES.keys() - set(examples()) == set()
