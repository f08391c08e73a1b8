"""Daemons of one host name in namespaces of their own: none is ever taken for another's predecessor on its machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.process.containers import (
    CONTAINER,
    OTHER_NETWORK,
    SAME_NAME,
    allowed,
    identity,
    kill_container,
    let_lapse,
    start_container,
    stop_container,
)
from tests.process.server_trouble import settled, stays
from tests.support import Client, Daemon, Server, eventually, inprogress, push_raw

Start = Callable[..., Daemon]

TWO_TURNS = 11.0
"""Seconds in which a daemon looks for predecessors on its machine at least twice."""

in_containers = pytest.mark.skipif(not allowed(CONTAINER), reason="this user may not make these namespaces")


@in_containers
@pytest.mark.slow
def test_a_live_one_is_never_recovered_however_small_the_threshold(
    daemon: Start, client: Client, witness: Client
) -> None:
    """Its last beat is older than the threshold most of the time, but it is present."""
    flags = ("-c", "1", "--orphan-threshold", "1")
    busy = start_container(daemon, *flags).ready()
    push_raw(client, "book", 1, TWO_TURNS + 1)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    other = start_container(daemon, *flags).ready()
    eventually(lambda: witness.hget("t:end", "1") == "1", TWO_TURNS + 6)
    settled(client)
    assert witness.hgetall("t:start") == {"1": "1"}
    for running in (busy, other):
        assert stop_container(running) == 0
        assert not running.lines("recovery.done")
        assert not running.lines("job.stray")
        running.clean_log()


@in_containers
def test_a_killed_one_is_left_alone_as_long_as_it_counts_as_present(
    daemon: Start, client: Client, witness: Client
) -> None:
    """Nobody outside its namespace can see that it is gone."""
    flags = ("-c", "1", "--orphan-threshold", "1")
    killed = start_container(daemon, *flags).ready()
    push_raw(client, "book", 1, 60)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    other = start_container(daemon, *flags).ready()
    outside = daemon(*flags).ready()
    kill_container(killed)
    stays(TWO_TURNS)
    assert len(inprogress(client)) == 1
    assert client.llen(f"cogworker:inprogress:{identity(killed)}") == 1
    assert witness.hgetall("t:start") == {"1": "1"}
    assert stop_container(other) == 0
    assert outside.stop() == 0


@in_containers
@pytest.mark.slow
def test_a_killed_one_is_recovered_by_the_threshold_once_its_presence_is_over(
    daemon: Start, client: Client, witness: Client
) -> None:
    """By its successor of the same name and pid, 10 s after that has seen it dead for the first time."""
    flags = ("-c", "1", "--orphan-threshold", "3")
    killed = start_container(daemon, *flags).ready()
    push_raw(client, "book", 1, 4)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    kill_container(killed)
    stays(5)  # its beat is older than the threshold now
    let_lapse(client, identity(killed))
    successor = start_container(daemon, *flags).ready()
    eventually(lambda: successor.lines("recovery.done"), 30)
    eventually(lambda: witness.hget("t:end", "1") == "1", 10)
    assert witness.hgetall("t:start") == {"1": "2"}
    settled(client)
    eventually(lambda: client.smembers("cogworker:inprogress_identities") == {identity(successor)}, 15)
    (done,) = successor.lines("recovery.done")
    assert (done["dead"], done["requeued"]) == (identity(killed), 1)
    assert stop_container(successor) == 0
    successor.clean_log()


@in_containers
@pytest.mark.slow
def test_a_killed_one_is_not_recovered_before_the_threshold_though_its_presence_is_over(
    daemon: Start, client: Client, witness: Client
) -> None:
    flags = ("-c", "1", "--orphan-threshold", "300")
    killed = start_container(daemon, *flags).ready()
    push_raw(client, "book", 1, 60)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    kill_container(killed)
    let_lapse(client, identity(killed))
    successor = start_container(daemon, *flags).ready()
    stays(2 * TWO_TURNS)  # a first look, and a second one 10 s later
    assert client.llen(f"cogworker:inprogress:{identity(killed)}") == 1
    assert witness.hgetall("t:start") == {"1": "1"}
    assert not successor.lines("recovery.done")
    assert stop_container(successor) == 0
    successor.clean_log()


@pytest.mark.skipif(
    not (allowed(OTHER_NETWORK) and allowed(SAME_NAME)), reason="this user may not make these namespaces"
)
def test_a_live_one_in_another_network_namespace_is_no_predecessor(
    daemon: Start, server: Server, client: Client, witness: Client, request: pytest.FixtureRequest
) -> None:
    """Same host name, same boot, same pid namespace; but its sign of life is invisible across networks."""
    url = f"unix://{server.socket}?db=0"
    env = {"WITNESS_URL": f"unix://{request.getfixturevalue('_witness').socket}?db=0"}
    flags = ("-c", "1", "--orphan-threshold", "1")
    busy = daemon(*flags, url=url, env=env, wrap=OTHER_NETWORK).ready()
    push_raw(client, "book", 1, TWO_TURNS + 1)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    other = daemon(*flags, url=url, env=env, wrap=SAME_NAME).ready()
    assert identity(busy).split(":")[0] == identity(other).split(":")[0]
    eventually(lambda: witness.hget("t:end", "1") == "1", TWO_TURNS + 6)
    settled(client)
    assert witness.hgetall("t:start") == {"1": "1"}
    for running in (busy, other):
        assert not running.lines("recovery.done")
        assert running.stop() == 0
        running.clean_log()


@pytest.mark.skipif(not allowed(SAME_NAME), reason="this user may not make these namespaces")
def test_a_killed_one_of_the_same_namespaces_is_recovered_at_once(
    daemon: Start, client: Client, witness: Client
) -> None:
    """The counterpart: boot, pid and network namespaces are the same, so its death is seen, whatever the threshold."""
    killed = daemon("-c", "1", wrap=SAME_NAME).ready()
    push_raw(client, "book", 1, 3)
    eventually(lambda: witness.hget("t:start", "1") == "1")
    for pid in (killed.pid, *killed.child_pids()):
        os.kill(pid, signal.SIGKILL)
    killed.exited()
    successor = daemon("-c", "1", wrap=SAME_NAME).ready()
    eventually(lambda: witness.hget("t:start", "1") == "2", 15)
    eventually(lambda: witness.hget("t:end", "1") == "1")
    settled(client)
    assert successor.stop() == 0
    successor.clean_log()
