"""A daemon and the terminal that it was started on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.support import Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]

# Makes the terminal on descriptor 0 the controlling one, which a login shell has and a test's child has not.
ON_THE_TERMINAL = (
    "python3",
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])",
)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: the side that is closed to hang up, and the daemon's."""
    ours, theirs = os.openpty()
    yield ours, theirs
    for fd in (ours, theirs):
        try:
            os.close(fd)
        except OSError:
            pass  # the test has closed it


def test_a_terminal_that_is_closed_stops_the_daemon(
    daemon: Start, client: Client, witness: Client, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    running = daemon("-c", "1", stdin=theirs, wrap=ON_THE_TERMINAL).ready()
    os.close(theirs)
    push_raw(client, "book", 1, 1)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    os.close(ours)  # the kernel sends HUP
    assert running.exited() == 0
    assert witness.hget("t:end", "1") == "1"


def test_nohup_keeps_it_running(daemon: Start, client: Client, witness: Client, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    running = daemon("-c", "1", stdin=theirs, wrap=(*ON_THE_TERMINAL, "nohup")).ready()
    os.close(theirs)
    os.close(ours)
    running.signal(signal.SIGHUP)
    push_raw(client, "book", 1)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    assert not running.lines("roll.started")
    assert running.stop() == 0
