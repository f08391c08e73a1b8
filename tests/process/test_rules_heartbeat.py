"""The rules of the heartbeat that take a whole daemon: its first beat, and beats that fail while it works."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.supervisor_parts import KEYS, limited_user
from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]
SECONDARY = (KEYS.inprogress_identities, KEYS.last_beat, KEYS.live_queues, KEYS.queues, KEYS.processes)


class Door:
    """A server that closes every line as soon as it is open.

    Attributes:
        knocks: when each line came, in monotonic seconds.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.knocks: list[float] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self.knocks.append(time.monotonic())
                line.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def presence_keys(client: Client) -> list[str]:
    found: list[str] = client.keys("cogworker:process:*")
    return found


def scripts_run(client: Client) -> int:
    """How many scripts the server was asked for."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


# ---- R12 -----------------------------------------------------------------------------------------------


def test_the_first_beat_is_tried_once_a_second_until_a_stop_comes(daemon: Start, door: Door) -> None:
    """R12: not more often, and nobody is forked to fetch meanwhile."""
    running = daemon("-c", "2", url=door.url)
    eventually(lambda: len(door.knocks) >= 5, 15)
    gaps = [later - earlier for earlier, later in itertools.pairwise(door.knocks)]
    assert min(gaps) > 0.8, gaps
    assert running.children() == []
    assert running.stop(8) == 0
    assert not running.lines("child.started")
    running.clean_log()


def test_nothing_is_fetched_while_the_server_lets_us_in_but_takes_no_beat(
    daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    """R12: the server answers, so a fetch would work; it waits for the first beat all the same."""
    push_raw(client, "book", 1)
    with limited_user(server, client, "-hset") as url:
        name = url.split("//")[1].split(":")[0]
        running = daemon("-c", "2", url=url)
        eventually(lambda: running.lines("daemon.waiting"), 15)
        before = scripts_run(client)
        eventually(lambda: scripts_run(client) >= before + 2, 10, "the beat is tried again")
        assert running.children() == []
        assert not running.lines("daemon.start")
        assert client.llen("cogworker:queue:default") == 1
        assert presence_keys(client) == []
        client.execute_command("ACL", "SETUSER", name, "+hset")
        running.ready()
        eventually(lambda: witness.hget("t:end", "1") == "1")
        assert running.stop() == 0


# ---- R8 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", SECONDARY)
def test_a_daemon_starts_and_works_with_a_shared_key_of_the_wrong_type(
    wrong: str, daemon: Start, client: Client, witness: Client
) -> None:
    """R8: it beats, and writes the other keys."""
    client.set(wrong, "another type")
    running = daemon("-c", "1").ready()
    client.lpush("cogworker:queue:default", '{"class":"book","args":[1],"jid":"j1"}')
    eventually(lambda: witness.hget("t:end", "1") == "1")
    (presence,) = presence_keys(client)
    identity = presence.removeprefix("cogworker:process:")
    written: dict[str, Callable[[], object]] = {
        KEYS.inprogress_identities: lambda: client.sismember(KEYS.inprogress_identities, identity),
        KEYS.last_beat: lambda: client.hexists(KEYS.last_beat, identity),
        KEYS.live_queues: lambda: client.zscore(KEYS.live_queues, "default"),
        KEYS.queues: lambda: client.sismember(KEYS.queues, "default"),
        KEYS.processes: lambda: client.sismember(KEYS.processes, identity),
    }
    assert {key for key, look in written.items() if key != wrong and not look()} == set()
    assert running.stop() == 0
    running.clean_log()


# ---- R13 -----------------------------------------------------------------------------------------------


def test_beats_that_are_refused_for_a_while_do_not_end_the_heartbeat(
    daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    """R13: the presence comes back by itself, and so does the work."""
    with limited_user(server, client) as url:
        name = url.split("//")[1].split(":")[0]
        running = daemon("-c", "1", url=url).ready()
        (presence,) = presence_keys(client)
        client.execute_command("ACL", "SETUSER", name, "-hset")
        client.delete(presence)
        eventually(lambda: [line for line in running.lines("redis.refusing") if line["site"] == "heartbeat"], 15)
        assert not client.exists(presence)
        client.execute_command("ACL", "SETUSER", name, "+hset")
        eventually(lambda: client.hget(presence, "busy") == "0", 15)
        eventually(lambda: [line for line in running.lines("redis.back") if line["site"] == "heartbeat"], 15)
        push_raw(client, "book", 1)
        eventually(lambda: witness.hget("t:end", "1") == "1")
        assert running.stop() == 0
    running.clean_log()


def test_beats_that_meet_a_presence_of_the_wrong_type_do_not_end_the_heartbeat(daemon: Start, client: Client) -> None:
    """R13: an error of another kind than the server's being away."""
    running = daemon("-c", "1").ready()
    (presence,) = presence_keys(client)
    client.delete(presence)
    client.set(presence, "no hash")
    eventually(lambda: running.lines("redis.error"), 15)
    eventually(lambda: client.type(presence) == "hash" or client.delete(presence), 15)
    eventually(lambda: client.type(presence) == "hash", 15)
    assert client.hget(presence, "busy") == "0"
    assert running.stop() == 0
    running.clean_log()
