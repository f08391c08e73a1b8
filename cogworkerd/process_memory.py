"""What a process takes: RSS, PSS, and what it shares with nobody.

RSS counts pages that processes share once for each of them; PSS counts each page once, divided among those that share
it. For PSS and for the private part the kernel walks the whole memory map, 5 to 10 ms for a large process.
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
