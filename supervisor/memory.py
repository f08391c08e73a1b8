"""What the daemon's processes take: RSS at every beat, PSS now and then.

RSS counts pages that processes share once for each of them; PSS counts each page once, divided among those that share
it. Asking for PSS makes the kernel walk the whole memory map, 5 to 10 ms for a large process, so it is asked of one
process at a time.
"""

from __future__ import annotations

import psutil


def rss_kb(pid: int | None = None) -> int | None:
    """The resident set of a process, by default our own, in KiB; None where it cannot be told (it has just ended)."""
    try:
        return int(psutil.Process(pid).memory_info().rss) // 1024
    except (psutil.Error, OSError, NotImplementedError, RuntimeError):
        return None


def pss_kb(pid: int | None = None) -> int | None:
    """The proportional set of a process, in KiB; None where the system does not tell it."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss) // 1024
    except (psutil.Error, OSError, NotImplementedError, RuntimeError, AttributeError):
        return None


class ProportionalSets:
    """The PSS of each process, as of its last turn."""

    def __init__(self) -> None:
        self._known: dict[int | None, int] = {}
        self._turn = 0

    def sample(self, pids: list[int | None]) -> None:
        """Ask one of these processes (None: our own); the next one at the next call. The others are forgotten."""
        self._known = {pid: size for pid, size in self._known.items() if pid in pids}
        self._turn += 1
        pid = pids[self._turn % len(pids)]
        size = pss_kb(pid)
        if size is not None:
            self._known[pid] = size

    def of(self, pid: int | None) -> int | None:
        return self._known.get(pid)

    @property
    def total(self) -> int | None:
        """Of all processes that were asked."""
        return sum(self._known.values()) if self._known else None
