"""Systems that lack something: no pidfd, no memfd, no prctl, no /proc; no passwd entry, nothing writable."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]

LACKING = """
import ctypes, os
del os.pidfd_open, os.memfd_create
_whole = ctypes.CDLL.__getattr__
def _partial(library, name):
    if name == "prctl":
        raise AttributeError(name)
    return _whole(library, name)
ctypes.CDLL.__getattr__ = _partial
"""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="namespaces and other users need root")


@pytest.fixture
def bare(daemon: Start, tmp_path: Path) -> Start:
    """A daemon on a system that lacks what Linux alone has."""
    (tmp_path / "sitecustomize.py").write_text(LACKING)

    def start(*flags: str, **options: object) -> Daemon:
        return daemon(
            *flags,
            env={"PYTHONPATH": str(tmp_path)},
            wrap=("unshare", "--mount", "--", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"'),
            **options,
        )

    return start


@needs_root
def test_jobs_run_and_a_killed_one_comes_back(bare: Start, client: Client, witness: Client) -> None:
    running = bare("-c", "2").ready()
    for n in range(20):
        push_raw(client, "book", n)
    eventually(lambda: witness.hlen("t:end") == 20)
    push_raw(client, "pidof", "t:p", 2)
    pid = int(eventually(lambda: witness.lrange("t:p", 0, -1))[0])
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: witness.llen("t:p") == 2, 3)
    eventually(lambda: witness.llen("t:p:done") == 1)
    assert [line["job"] for line in running.lines("job.orphaned")] == ["pidof"]
    assert running.stop() == 0


@needs_root
def test_children_die_with_their_supervisor(bare: Start, client: Client, witness: Client) -> None:
    """The end of the pipe of its life tells an idle child, and a busy one by a signal (P9)."""
    running = bare("-c", "2", "--shutdown-timeout", "3").ready()
    push_raw(client, "pidof", "t:p", 60)
    eventually(lambda: witness.lrange("t:p", 0, -1))
    children = running.children()
    running.process.kill()
    running.process.wait()
    eventually(lambda: not any(child.is_running() for child in children), 10)


@needs_root
def test_signals_and_a_drain(bare: Start, client: Client, witness: Client) -> None:
    running = bare("-c", "1").ready()
    push_raw(client, "book", 1, 1)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    running.signal(signal.SIGTTIN)
    assert running.stop() == 0
    assert witness.hget("t:end", "1") == "1"
    running.clean_log()


READ_ONLY_AS_NOBODY = (
    # The one capability lets it enter folders that are another user's, as those of this interpreter may be.
    "mount -o remount,bind,ro / && ! touch /probe 2>/dev/null && exec setpriv --reuid 54321 --regid 54321"
    ' --clear-groups --inh-caps +dac_read_search --ambient-caps +dac_read_search -- "$0" "$@"'
)


@needs_root
def test_a_user_without_a_name_or_home_and_nothing_writable(daemon: Start, client: Client, witness: Client) -> None:
    running = daemon(
        *("-c", "1"),
        wrap=("unshare", "--mount", "--", "env", "-u", "HOME", "sh", "-c", READ_ONLY_AS_NOBODY),
        env={"TMPDIR": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
    ).ready()
    assert running.children()[0].uids().real == 54321
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert running.stop() == 0
