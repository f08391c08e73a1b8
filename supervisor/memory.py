"""What the daemon's processes take: RSS at every beat, PSS now and then.

RSS counts pages that processes share once for each of them; PSS counts each page once, divided among those that share
it. Asking for PSS makes the kernel walk the whole memory map, 5 to 10 ms for a large process, so it is asked of one
process at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil


def rss_kb(pid: int | None = None) -> int | None:
    """The resident set of a process, by default our own, in KiB; None where it cannot be told (it has just ended)."""
    try:
        return int(psutil.Process(pid).memory_info().rss) // 1024
    except (psutil.Error, OSError, NotImplementedError, RuntimeError):
        return None


@dataclass(frozen=True)
class Share:
    """What a process takes, in KiB: its proportional set, and what it shares with nobody."""

    pss_kb: int
    private_kb: int


def share_of(pid: int | None = None) -> Share | None:
    """Of a process, by default our own; None where the system does not tell it."""
    try:
        found = psutil.Process(pid).memory_full_info()
        return Share(int(found.pss) // 1024, int(found.uss) // 1024)
    except (psutil.Error, OSError, NotImplementedError, RuntimeError, AttributeError):
        return None


class Shares:
    """The share of each process, as of its last turn."""

    def __init__(self) -> None:
        self._known: dict[int | None, Share] = {}
        self._turn = 0

    def sample(self, pids: list[int | None]) -> None:
        """Ask one of these processes (None: our own); the next one at the next call. The others are forgotten."""
        self._known = {pid: share for pid, share in self._known.items() if pid in pids}
        self._turn += 1
        pid = pids[self._turn % len(pids)]
        share = share_of(pid)
        if share is not None:
            self._known[pid] = share

    def of(self, pid: int | None) -> Share | None:
        return self._known.get(pid)

    @property
    def total_pss_kb(self) -> int | None:
        """Of all processes that were asked."""
        return sum(share.pss_kb for share in self._known.values()) if self._known else None
