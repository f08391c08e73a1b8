"""C42: the running lock of a periodic entry outlives no crash for longer than its job, and losing it ends nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.apps.periodic_jobs import Entry, Run, environment, meetings, runs
from tests.process.server_trouble import one_thread
from tests.support import Client, Daemon, eventually

Start = Callable[..., Daemon]
T = TypeVar("T")

# In one step: a job that is on its way from the queue to a list must not be counted twice, or not at all.
_AT_HAND = """
local count = redis.call('LLEN', KEYS[1])
for _, key in ipairs(redis.call('KEYS', 'cogworker:inprogress:*')) do count = count + redis.call('LLEN', key) end
return count
"""


class Book:
    """Waits for runs, and looks each time how many copies of the job there are.

    Attributes:
        most: the most copies at one time.
    """

    def __init__(self, client: Client, witness: Client) -> None:
        self._count = client.register_script(_AT_HAND)
        self._witness = witness
        self.most = 0

    def at_hand(self) -> int:
        count = int(self._count(keys=["cogworker:queue:default"]))
        self.most = max(self.most, count)
        return count

    def runs(self) -> list[Run]:
        return runs(self._witness)

    def wait(self, look: Callable[[], T], within: float, message: str) -> T:
        def look_and_count() -> T:
            self.at_hand()
            return look()

        return eventually(look_and_count, within, message)

    def next_run(self, than: int, within: float) -> Run:
        """The run with this number, once it has begun."""
        return self.wait(lambda: self.runs()[than:], within, f"run {than} begins")[0]

    def over(self, number: int, within: float = 12) -> None:
        self.wait(lambda: self.runs()[number].over, within, f"run {number} is over")


@pytest.mark.slow
def test_c42_the_entry_goes_on_after_a_dead_child_a_lost_lock_and_a_dead_supervisor(
    daemon: Start, client: Client, witness: Client
) -> None:
    # Longer than two beats: one of them is to find that the lock is gone.
    entry = Entry("alone", "* * * * * */2", seconds=7, unique=True)
    lock = f"periodic:running:{entry.pjid}"
    running = daemon("-c", "4", target="periodic_jobs:app", env=environment(entry)).ready()
    book = Book(client, witness)
    book.next_run(0, 10)
    book.over(0)
    broken = book.next_run(1, 12)

    os.kill(broken.pid, signal.SIGKILL)
    again = book.next_run(2, 3)
    assert (again.jid, again.slot) == (broken.jid, broken.slot)
    assert again.pid != broken.pid
    assert client.get(lock) == again.jid
    book.over(2)
    following = book.next_run(3, 12)
    assert following.slot > again.slot
    assert book.most == 1
    assert meetings(book.runs()) == []
    assert running.lines("lock.lost") == []

    assert list(client.scan_iter("periodic:running:*")) == [lock]
    client.delete(lock)
    extra = book.next_run(4, 5)
    assert extra.jid != following.jid
    told = eventually(lambda: running.lines("lock.lost"), 12)
    assert {(line["lock"], line["jid"]) for line in told} == {(lock, following.jid)}
    book.over(3)
    assert client.get(lock) == extra.jid  # the first copy has left the lock of the second one alone
    book.over(4)
    book.next_run(5, 12)
    assert book.most == 2
    found = book.runs()
    assert meetings(found[:5]) == [(found[3], found[4])]
    assert meetings(found[4:]) == []
    assert one_thread(running)

    book.most = 0
    running.signal(signal.SIGKILL)
    running.exited()
    successor = daemon("-c", "4", target="periodic_jobs:app", env=environment(entry)).ready()
    seen = len(book.runs())
    book.next_run(seen, 20)
    book.wait(lambda: any(run.over for run in book.runs()[seen:]), 12, "it is over")
    book.wait(lambda: len({run.jid for run in book.runs()[seen:]} - {run.jid for run in found}) >= 1, 20, "a new slot")
    assert book.most == 1
    assert meetings(book.runs()[5:]) == []
    assert all(client.ttl(key) > 0 for key in client.scan_iter("periodic:running:*"))
    assert successor.stop() == 0
    for one in (running, successor):
        one.clean_log()
