"""What is said to a service manager, by the protocol of sd_notify: to a socket of ours."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogworkerd.supervisor.systemd import Notifier


class Manager:
    """A socket that hears, by a path or an abstract name."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@cogworkerd-test-{os.getpid()}"
    made = Manager(address)
    yield made
    made.socket.close()


def test_each_message_is_one_datagram(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    notifier.extend(15.0)
    notifier.status("0/2 busy, waiting for Redis")
    notifier.ready()
    notifier.alive()
    notifier.stopping()
    assert manager.heard() == [
        "EXTEND_TIMEOUT_USEC=15000000",
        "STATUS=0/2 busy, waiting for Redis",
        "READY=1",
        "WATCHDOG=1",
        "STOPPING=1",
    ]
    notifier.close()


def test_a_status_is_sent_when_it_changes_on_one_line_and_cut(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    for text in ("a", "a", "two\nlines", "x" * 1000):
        notifier.status(text)
    assert manager.heard() == ["STATUS=a", "STATUS=two lines", f"STATUS={'x' * 200}"]
    notifier.close()


def test_a_reload_carries_the_time_of_the_monotonic_clock(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    first, second = manager.heard()[0].split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.close()


def test_what_the_manager_asked_for_is_taken_out_of_the_environment(manager: Manager) -> None:
    env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "X": "1"}
    notifier = Notifier.from_environment(env)
    assert env == {"X": "1"}
    assert notifier.watchdog == 30.0
    notifier.ready()
    assert manager.heard() == ["READY=1"]
    notifier.close()


@pytest.mark.parametrize(
    "env",
    [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": ""}],
    ids=str,
)
def test_who_is_not_watched_has_no_watchdog(env: dict[str, str]) -> None:
    assert Notifier.from_environment(dict(env)).watchdog == 0.0


@pytest.mark.parametrize("address", ["", "relative/path", "vsock:2:1", "/nowhere/at/all"])
def test_a_manager_that_cannot_be_told_is_no_error(address: str) -> None:
    notifier = Notifier(address)
    notifier.ready()
    notifier.status("x")
    notifier.close()
    notifier.stopping()
