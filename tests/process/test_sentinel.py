"""Failovers with real sentinels: the daemon follows the primary, and no job is lost, counted as failed or run twice."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.process.server_trouble import (
    check_discipline,
    nothing_failed,
    one_thread,
    ran_once,
    says,
    says_no_more,
    settled,
)
from tests.support import Client, Daemon, Server, _free_port, eventually, push_raw, server_binary

Start = Callable[..., Daemon]
MakeServer = Callable[..., Server]

MASTER = "mymaster"
CONFIG = """\
port {port}
bind 127.0.0.1
protected-mode no
dir {folder}
sentinel monitor {master} 127.0.0.1 {primary} {quorum}
sentinel down-after-milliseconds {master} 500
sentinel failover-timeout {master} 3000
"""


class Sentinel:
    """One sentinel process."""

    def __init__(self, kind: str, folder: Path, primary: int, quorum: int) -> None:
        folder.mkdir()
        self.port = _free_port()
        binary = server_binary(kind)
        assert binary is not None, f"no {kind} server on this machine"
        config = folder / "sentinel.conf"
        config.write_text(
            CONFIG.format(port=self.port, folder=folder, master=MASTER, primary=primary, quorum=quorum), "utf-8"
        )
        self.process = subprocess.Popen(
            [binary, str(config), "--sentinel"], stdout=subprocess.DEVNULL, start_new_session=True
        )
        self.client: Client = redis.Redis(port=self.port, decode_responses=True)

    def primary(self) -> int:
        """The port of the primary, as this sentinel has it."""
        return int(self.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1])

    def knows(self, replicas: int, sentinels: int) -> bool:
        try:
            (found,) = [line for line in self.client.info("sentinel").values() if isinstance(line, dict)]
        except (redis.exceptions.RedisError, ValueError):
            return False
        return bool(
            (found["slaves"], found["sentinels"]) == (replicas, sentinels)
            and all(
                replica["flags"] == "slave" and replica["master-link-status"] == "ok" for replica in self._replicas()
            )
        )

    def _replicas(self) -> list[dict[str, str]]:
        rows = self.client.execute_command("SENTINEL", "REPLICAS", MASTER)
        return [row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True)) for row in rows]

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


class Fleet:
    """A primary, a replica that has caught up, and sentinels that know all."""

    def __init__(self, kind: str, make_server: MakeServer, folder: Path, sentinels: int) -> None:
        self.primary = make_server("--repl-diskless-sync-delay", "0")
        self.replica = make_server(
            "--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(self.primary.port)
        )
        self.sentinels: list[Sentinel] = []
        try:
            for number in range(sentinels):
                self.sentinels.append(
                    Sentinel(kind, folder / f"sentinel-{number}", self.primary.port, sentinels // 2 + 1)
                )
            for sentinel in self.sentinels:
                eventually(lambda s=sentinel: s.knows(1, sentinels), 20, "the sentinel knows all")
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{MASTER}/0"

    def caught_up(self) -> None:
        """Wait until the replica has all that the primary has."""
        with self.primary.client() as client:
            eventually(lambda: client.wait(1, 1000) == 1)

    def failed_over(self, alive: list[Sentinel] | None = None) -> None:
        """Wait until sentinels name the replica as the primary, and it is."""
        for sentinel in self.sentinels if alive is None else alive:
            eventually(lambda s=sentinel: s.primary() == self.replica.port, 30, "the sentinel names the new primary")
        with self.replica.client() as client:
            eventually(lambda: client.role()[0] == "master", 10)

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()


@pytest.fixture
def fleet(request: pytest.FixtureRequest, make_server: MakeServer, tmp_path: Path) -> Iterator[Callable[[int], Fleet]]:
    made: list[Fleet] = []

    def make(sentinels: int) -> Fleet:
        made.append(Fleet(request.config.getoption("--server"), make_server, tmp_path, sentinels))
        return made[-1]

    yield make
    for found in made:
        found.close()


SENTINELS = pytest.mark.parametrize("sentinels", [1, pytest.param(3, marks=pytest.mark.slow)])


def _push(server: Server, *numbers: int, seconds: float = 0) -> None:
    with server.client() as client:
        for n in numbers:
            push_raw(client, "book", n, seconds)


def _goes_on(running: Daemon, fleet: Fleet, witness: Client, done: int, pids: list[int]) -> None:
    """Jobs pushed to the new primary are performed by the same children; the log and the title are as they should."""
    _push(fleet.replica, *range(100, 110))
    ran_once(witness, done + 10, 30)
    with fleet.replica.client() as client:
        settled(client)
        nothing_failed(client)
        assert client.get("cogworker:stats:processed") == str(done + 10)
    check_discipline(running)
    says_no_more(running, "Redis")
    assert running.child_pids() == pids
    assert one_thread(running)


@SENTINELS
def test_a_daemon_follows_when_the_primary_dies(
    sentinels: int, fleet: Callable[[int], Fleet], daemon: Start, witness: Client
) -> None:
    """One job is under way meanwhile: it is settled at the new primary and not run again."""
    servers = fleet(sentinels)
    running = daemon("-c", "2", url=servers.url).ready()
    pids = running.child_pids()
    _push(servers.primary, 1, 2)
    ran_once(witness, 2)
    _push(servers.primary, 3, seconds=3)
    eventually(lambda: witness.hget("t:start", "3") == "1")
    with servers.primary.client() as client:
        eventually(lambda: client.get("cogworker:stats:processed") == "2")
    servers.caught_up()
    servers.primary.stop()
    says(running, "waiting for Redis")
    servers.failed_over()
    _goes_on(running, servers, witness, 3, pids)
    assert running.stop() == 0
    running.clean_log()


@pytest.mark.slow
@pytest.mark.parametrize("sentinels", [1, 3])
def test_a_daemon_follows_when_the_primary_is_demoted_by_a_sentinel(
    sentinels: int, fleet: Callable[[int], Fleet], daemon: Start, witness: Client
) -> None:
    """A job is under way until all is over: what is settled at the old primary when the replica is promoted already is
    lost with its writes."""
    servers = fleet(sentinels)
    running = daemon("-c", "2", url=servers.url, target="gated_jobs:app").ready()
    pids = running.child_pids()
    _push(servers.primary, 1, 2)
    ran_once(witness, 2)
    with servers.primary.client() as client:
        push_raw(client, "gated", 3)
        eventually(lambda: witness.hget("t:start", "3") == "1")
        eventually(lambda: client.get("cogworker:stats:processed") == "2")
    servers.caught_up()
    servers.sentinels[0].client.execute_command("SENTINEL", "FAILOVER", MASTER)
    servers.failed_over()
    with servers.primary.client() as client:
        eventually(lambda: client.role()[0] == "slave", 20, "the old primary is a replica")
    witness.set("t:gate", 1)
    _goes_on(running, servers, witness, 3, pids)
    assert running.stop() == 0
    running.clean_log()


def test_a_daemon_leaves_an_old_primary_that_keeps_its_lines_open(
    fleet: Callable[[int], Fleet], daemon: Start, witness: Client
) -> None:
    """Demoted by hand, no line is closed: everybody stays connected to a read-only replica and must leave by itself."""
    servers = fleet(1)
    running = daemon("-c", "2", url=servers.url).ready()
    pids = running.child_pids()
    _push(servers.primary, 1, 2)
    ran_once(witness, 2)
    with servers.primary.client() as client:
        eventually(lambda: client.get("cogworker:stats:processed") == "2")
    servers.caught_up()
    sentinel = servers.sentinels[0].client
    sentinel.execute_command("SENTINEL", "REMOVE", MASTER)
    with servers.replica.client() as new, servers.primary.client() as old:
        new.execute_command("REPLICAOF", "NO", "ONE")
        old.execute_command("REPLICAOF", "127.0.0.1", servers.replica.port)
    sentinel.execute_command("SENTINEL", "MONITOR", MASTER, "127.0.0.1", servers.replica.port, 1)
    servers.failed_over()
    _goes_on(running, servers, witness, 2, pids)
    assert running.stop() == 0
    running.clean_log()


@pytest.mark.slow
def test_a_daemon_boots_and_works_with_a_sentinel_less(
    fleet: Callable[[int], Fleet], daemon: Start, witness: Client
) -> None:
    """The first of the sentinels that the URL names is dead, at boot and at the failover."""
    servers = fleet(3)
    servers.sentinels[0].process.kill()
    servers.sentinels[0].process.wait()
    running = daemon("-c", "2", url=servers.url).ready()
    pids = running.child_pids()
    _push(servers.primary, 1, 2)
    ran_once(witness, 2)
    with servers.primary.client() as client:
        eventually(lambda: client.get("cogworker:stats:processed") == "2")
    servers.caught_up()
    servers.primary.stop()
    servers.failed_over(servers.sentinels[1:])
    _goes_on(running, servers, witness, 2, pids)
    assert running.stop() == 0
    running.clean_log()
