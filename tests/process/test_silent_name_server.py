"""A name server that never answers counts as away: everybody waits, nothing blocks, and a stop is obeyed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.server_trouble import one_thread, ran_once, says, settled
from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]

ADDRESS = "127.86.0.53"
NAME = "queue.silent.test"
MOUNT = 'mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf && mount --bind "$3" /etc/hosts'


class SilentNameServer:
    """A socket that takes questions and answers none, and files that make a process ask it.

    Attributes:
        wrap: puts a command where these files are those of the system.
    """

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((ADDRESS, 53))
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._hosts = folder / "hosts"
        files = {"resolv.conf": f"nameserver {ADDRESS}\n", "nsswitch.conf": "hosts: files dns\n", "hosts": ""}
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
        script = f'{MOUNT} && shift 3 && exec "$@"'
        paths = [str(folder / name) for name in files]
        self.wrap = ("unshare", "--mount", "sh", "-c", script, "sh", *paths)

    def knows(self, known: bool) -> None:
        """Whether the name is in the file of hosts. The file stays the one that is mounted."""
        self._hosts.write_text(f"127.0.0.1 {NAME}\n" if known else "", "utf-8")

    def questions(self) -> int:
        """How many questions about the name have come since the last look."""
        count = 0
        while True:
            try:
                count += b"\x05queue\x06silent" in self._socket.recv(4096)
            except BlockingIOError:
                return count

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[SilentNameServer]:
    try:
        made = SilentNameServer(tmp_path)
    except OSError as error:
        pytest.skip(f"this user may not be a name server: {error}")
    try:
        tried = subprocess.run([*made.wrap, "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"this user may not mount files of its own: {tried.stderr.strip()}")
        yield made
    finally:
        made.close()


def _url(server: Server) -> str:
    return f"redis://{NAME}:{server.port}/0"


def test_a_boot_waits_takes_signals_and_stops_in_time(
    daemon: Start, server: Server, name_server: SilentNameServer
) -> None:
    running = daemon("-c", "2", url=_url(server), wrap=name_server.wrap)
    says(running, "waiting for Redis")
    assert name_server.questions() > 0
    assert len(running.lines("daemon.waiting")) == 1
    for _ in range(2):
        # Each between two questions or in the middle of one; none has to wait for an answer.
        name_server.questions()
        eventually(lambda: name_server.questions() > 0, 10)
        count = len(running.lines("daemon.quiet"))
        running.signal(signal.SIGTSTP)
        eventually(lambda count=count: len(running.lines("daemon.quiet")) > count, 3)
        says(running, "quiet", 3)
        running.signal(signal.SIGTTIN)
        running.signal(signal.SIGCONT)
        eventually(lambda count=count: len(running.lines("daemon.resumed")) > count, 3)
    assert running.children() == []
    name_server.questions()
    eventually(lambda: name_server.questions() > 0, 10)
    assert running.stop(8) == 0
    assert len(running.lines("redis.away")) == 1
    running.clean_log()


def test_a_boot_goes_on_once_the_name_is_known(
    daemon: Start, server: Server, client: Client, witness: Client, name_server: SilentNameServer
) -> None:
    push_raw(client, "book", 1)
    running = daemon("-c", "2", url=_url(server), wrap=name_server.wrap)
    says(running, "waiting for Redis")
    name_server.knows(True)
    running.ready()
    ran_once(witness, 1)
    eventually(lambda: one_thread(running))
    assert running.stop() == 0
    running.clean_log()


def _silenced(daemon: Start, server: Server, name_server: SilentNameServer) -> Daemon:
    """A daemon at work whose lines were all cut when the name server had fallen silent; the server is there."""
    name_server.knows(True)
    running = daemon("-c", "2", url=_url(server), wrap=name_server.wrap).ready()
    name_server.knows(False)
    server.stop()
    eventually(lambda: running.lines("redis.away"))
    server.start()
    eventually(lambda: name_server.questions() > 0, 15)
    return running


def test_a_name_server_that_falls_silent_at_work_is_lived_through(
    daemon: Start, make_server: Callable[..., Server], witness: Client, name_server: SilentNameServer
) -> None:
    """The supervisor goes on with the last address it knows, also forking; signals are taken; jobs are done later."""
    server = make_server()
    running = _silenced(daemon, server, name_server)
    with server.client() as client:
        eventually(lambda: client.hlen("cogworker:last_beat") == 1, 30, "a beat by the last good answer")
        running.signal(signal.SIGTSTP)
        eventually(lambda: running.lines("daemon.quiet"), 3)
        running.signal(signal.SIGCONT)
        eventually(lambda: running.lines("daemon.resumed"), 3)
        running.signal(signal.SIGTTIN)
        eventually(lambda: len(running.lines("child.stack")) == 2, 5)
        pids = running.child_pids()
        os.kill(pids[0], signal.SIGKILL)
        eventually(lambda: len(running.child_pids()) == 2 and pids[0] not in running.child_pids(), 20, "a new child")
        name_server.knows(True)
        for n in range(4):
            push_raw(client, "book", n)
        ran_once(witness, 4, 30)
        settled(client)
        assert client.get("cogworker:stats:failed") is None
    eventually(lambda: one_thread(running), 10)
    assert running.stop() == 0
    running.clean_log()


def test_a_stop_while_the_name_server_is_silent_ends_in_time(
    daemon: Start, make_server: Callable[..., Server], name_server: SilentNameServer
) -> None:
    running = _silenced(daemon, make_server(), name_server)
    assert running.stop(33) == 0
    running.clean_log()
