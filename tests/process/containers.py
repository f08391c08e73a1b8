"""Daemons in containers of a sort: namespaces of their own, one host name."""

from __future__ import annotations

import functools
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import psutil

from tests.support import Client, Daemon, eventually

HOST = "worker"
_NAMED = ("sh", "-c", f'hostname {HOST} && exec "$@"', "sh")
CONTAINER = ("unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child", *_NAMED)
OTHER_NETWORK = ("unshare", "--uts", "--net", *_NAMED)
SAME_NAME = ("unshare", "--uts", *_NAMED)


@functools.cache
def allowed(wrap: tuple[str, ...]) -> bool:
    """Whether this user may make these namespaces."""
    try:
        return subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def start_container(daemon: Callable[..., Daemon], *flags: str, **options: Any) -> Daemon:
    """A daemon as process 1 of a namespace of its own. Its `pid` is that of its `unshare`."""
    return daemon(*flags, wrap=CONTAINER, **options)


def init(running: Daemon) -> psutil.Process:
    """Process 1 of the namespace, as it is seen from outside."""
    found: psutil.Process = eventually(lambda: psutil.Process(running.pid).children())[0]
    return found


def stop_container(running: Daemon) -> int:
    init(running).send_signal(signal.SIGTERM)
    return running.exited()


def kill_container(running: Daemon) -> None:
    """The kernel ends everything in a namespace with its process 1."""
    first = init(running)
    inside = [first, *first.children(recursive=True)]
    first.kill()
    running.exited()
    _, left = psutil.wait_procs(inside, 10)
    assert left == []


def identity(running: Daemon) -> str:
    return str(running.lines("daemon.ready")[0]["identity"])


def let_lapse(client: Client, name: str) -> None:
    """As if a minute had passed: the presence of this identity and the lease of the recovery run out."""
    client.delete(f"cogworker:process:{name}", "cogworker:x:recovery")
