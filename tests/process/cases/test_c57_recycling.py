"""C57 (a): children that are replaced after every job: no job is lost or run twice, nothing counts as a fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import Client, Daemon, eventually, inprogress, push_raw, zombies

Start = Callable[..., Daemon]


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_c57_children_replaced_after_each_job_do_every_job_once(
    count: int, daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "4", "--max-jobs-per-child", "1").ready()
    for n in range(count):
        push_raw(client, "book", n)
    eventually(lambda: witness.hlen("t:end") == count, 60)
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}
    eventually(lambda: inprogress(client) == [])
    eventually(lambda: len(running.children()) == 4)
    eventually(lambda: zombies(running.pid) == [])
    eventually(lambda: len(running.lines("child.left")) >= count)
    left = running.lines("child.left")
    assert len({line["child"] for line in left}) == len(left)
    assert running.lines("child.died") == []
    assert running.lines("job.orphaned") == []
    assert running.lines("job.stray") == []
    assert client.keys("cogworker:orphanings:*") == []
    assert running.stop() == 0
    running.clean_log()
