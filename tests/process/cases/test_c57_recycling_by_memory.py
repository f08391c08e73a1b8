"""C57 (b): children that are replaced when they have grown: no job is lost or run twice, and their memory is gone."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]
MIB = 2**20
LIMIT, ABOVE = 120 * MIB, 60 * MIB


class Sizes:
    """What the children take, each time that somebody looks."""

    def __init__(self, running: Daemon) -> None:
        self._running = running
        self.largest: dict[int, int] = {}

    def look(self) -> None:
        for child in self._running.children():
            try:
                size = child.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self.largest[child.pid] = max(size, self.largest.get(child.pid, 0))


@pytest.mark.parametrize("count", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_c57_children_that_have_grown_are_replaced_after_their_job_and_do_every_job_once(
    count: int, daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "2", "--max-rss-per-child", "120M", target="crashing_jobs:app").ready()
    sizes = Sizes(running)
    for n in range(count):
        push_raw(client, "grow", n, 20, 0.2)

    def all_done() -> bool:
        sizes.look()
        return bool(witness.hlen("t:end") == count)

    eventually(all_done, 60)
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}
    eventually(lambda: client.get("cogworker:stats:processed") == str(count))
    pids = {int(pid) for pid in witness.lrange("t:pids", 0, -1)}
    assert len(pids) >= 4
    assert max(sizes.largest.values()) <= LIMIT + ABOVE
    assert pids <= sizes.largest.keys()

    recycled = eventually(lambda: running.lines("child.recycled"))
    assert {line["reason"] for line in recycled} == {"max_rss_per_child"}
    eventually(lambda: len(running.lines("child.left")) == len(running.lines("child.recycled")) >= len(pids) - 2)
    eventually(lambda: len(running.children()) == 2)
    alive = set(running.child_pids())
    assert [pid for pid in pids - alive if psutil.pid_exists(pid)] == []
    eventually(lambda: zombies(running.pid) == [])
    assert sum(child.memory_info().rss for child in running.children()) <= 2 * (LIMIT + ABOVE)

    assert inprogress(client) == []
    assert client.keys("cogworker:orphanings:*") == []
    assert [running.lines(name) for name in ("child.died", "child.killed", "job.orphaned", "job.stray")] == [[]] * 4
    assert client.get("cogworker:stats:failed") is None
    assert running.stop() == 0
    assert running.complaints() == []
    running.clean_log()
