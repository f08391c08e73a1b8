"""The daemon as a service: what it says to a manager over its life, and what its children cannot say."""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]
_CREDENTIALS = struct.Struct("3i")


class Manager:
    """A service manager's socket; it notes who said what, and when."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.heard: list[tuple[float, int, str]] = []

    def hear(self) -> list[str]:
        """Everything so far."""
        while True:
            try:
                data, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return [text for _, _, text in self.heard]
            pid = _CREDENTIALS.unpack(ancillary[0][2])[0]
            self.heard.append((time.monotonic(), pid, data.decode()))

    def said(self, text: str) -> bool:
        return any(text in line for line in self.hear())

    def speakers(self) -> set[int]:
        self.hear()
        return {pid for _, pid, _ in self.heard}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


def environment(manager: Manager, watchdog: float = 0.0) -> dict[str, str]:
    asked = {"WATCHDOG_USEC": str(int(watchdog * 1e6))} if watchdog else {}
    return {"NOTIFY_SOCKET": str(manager.path), **asked}


def test_c61_a_life_is_told_in_order_and_by_the_supervisor_alone(
    daemon: Start, client: Client, witness: Client, manager: Manager
) -> None:
    running = daemon("-c", "2", env=environment(manager)).ready()
    eventually(lambda: manager.said("READY=1"))
    assert manager.said("STATUS=0/2 busy")
    running.signal(signal.SIGTSTP)
    eventually(lambda: manager.said("STATUS=0/2 busy, quiet"))
    running.signal(signal.SIGCONT)
    eventually(lambda: running.lines("daemon.resumed"))
    push_raw(client, "book", 1, 2)
    eventually(lambda: manager.said("STATUS=1/2 busy"))
    running.signal(signal.SIGTERM)
    assert running.process.wait(20) == 0
    told = manager.hear()
    assert told.count("READY=1") == 1
    assert told.count("STOPPING=1") == 1
    assert told.index("STOPPING=1") < told.index("STATUS=1/2 busy, stopping")
    assert "EXTEND_TIMEOUT_USEC=40000000" in told
    assert witness.hget("t:end", "1") == "1"
    assert manager.speakers() == {running.pid}


def test_c61_while_the_server_is_down_the_start_is_prolonged_and_nothing_is_ready(
    daemon: Start, make_server: Callable[..., Server], manager: Manager
) -> None:
    server = make_server()
    server.stop()
    running = daemon("-c", "1", env=environment(manager), url=server.url)
    eventually(lambda: len([line for line in manager.hear() if line.startswith("EXTEND_TIMEOUT")]) >= 3, 10)
    assert manager.said("waiting for Redis")
    assert not manager.said("READY=1")
    server.start()
    eventually(lambda: manager.said("READY=1"), 15)
    assert running.stop() == 0


def test_c61_a_job_finds_nothing_to_speak_with(
    daemon: Start, client: Client, witness: Client, manager: Manager
) -> None:
    running = daemon("-c", "1", target="service_jobs:app", env=environment(manager, 30.0)).ready()
    push_raw(client, "told")
    assert eventually(lambda: witness.lrange("t:told", 0, -1)) == ["{}"]
    assert running.stop() == 0
    assert manager.speakers() == {running.pid}


def test_the_watchdog_is_fed_by_a_loop_that_turns_and_by_no_other(daemon: Start, manager: Manager) -> None:
    running = daemon("-c", "1", env=environment(manager, 0.6)).ready()
    eventually(lambda: manager.hear().count("WATCHDOG=1") >= 5)
    running.signal(signal.SIGSTOP)
    time.sleep(0.3)  # what was under way
    before = manager.hear().count("WATCHDOG=1")
    time.sleep(1.5)
    assert manager.hear().count("WATCHDOG=1") == before
    running.signal(signal.SIGCONT)
    eventually(lambda: manager.hear().count("WATCHDOG=1") > before + 2)
    assert running.stop() == 0


def test_a_roll_is_told_as_a_reload(daemon: Start, manager: Manager) -> None:
    running = daemon("-c", "2", env=environment(manager)).ready()
    eventually(lambda: manager.said("READY=1"))
    before = set(running.child_pids())
    running.signal(signal.SIGHUP)
    eventually(lambda: manager.hear().count("READY=1") == 2, 10)
    told = [line.partition("\n")[0] for line in manager.hear()]
    assert told.index("RELOADING=1") < len(told) - 1 - told[::-1].index("READY=1")
    assert not before & set(running.child_pids())
    assert running.stop() == 0


def test_children_are_what_the_kernel_takes_first_when_memory_is_short(daemon: Start) -> None:
    running = daemon("-c", "2").ready()
    own = int(Path(f"/proc/{running.pid}/oom_score_adj").read_text())
    for pid in running.child_pids():
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == min(own + 200, 1000)
    assert running.stop() == 0


def test_what_processes_share_is_counted_once_in_pss(daemon: Start, client: Client) -> None:
    running = daemon("-c", "2").ready()
    (key,) = client.keys("cogworker:process:*")

    def sampled() -> Any:
        """What is published, once each process was asked."""
        found = json.loads(client.hget(key, "info"))
        return found if all(slot["pss_kb"] for slot in found["slots"]) else None

    info = eventually(sampled, 40)
    assert 0 < info["pss_kb"] < info["rss_kb"]
    assert running.stop() == 0
