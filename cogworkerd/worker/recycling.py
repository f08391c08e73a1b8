"""Recycling: when a child has done enough, or has grown too large, it leaves after the job at hand.

A child that did nothing never leaves for this: it is only looked at after a job.
"""

from __future__ import annotations

import contextlib
import os
import time

from cogworkerd.process_memory import rss_kb, share_of
from cogworkerd.settings import Settings
from cogworkerd.worker.proc_self import open_proc_self

_PRIVATE_EVERY = 1.0
"""Seconds between two looks at the memory that is not shared: the kernel walks the whole map for it, milliseconds."""

_GROWN = 1.05
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Recycling:
    """Looks at one child.

    Attributes:
        reason: the setting that says that it is to leave; "" while it may stay.
    """

    def __init__(self, settings: Settings) -> None:
        self._jobs_left = settings.max_jobs_per_child
        self._most_rss = settings.max_rss_per_child
        self._most_private = settings.max_private_per_child
        self._kill_rss = settings.kill_rss
        self._next_look = 0.0
        self._rss_then = 0
        limits = (self._most_rss, self._most_private, self._kill_rss)
        self._looks = any(limit is not None for limit in limits)
        self._statm = open_proc_self("statm", os.O_RDONLY) if self._looks else None
        self.reason = ""

    def performed(self) -> None:
        """A job has ended."""
        if self._jobs_left is not None:
            self._jobs_left -= 1
            if self._jobs_left <= 0:
                self.reason = "max_jobs_per_child"
        if self._looks:
            self._look()

    def _look(self) -> None:
        rss = self._rss()
        if self._most_rss is not None and rss > self._most_rss:
            self.reason = "max_rss_per_child"
        if self._most_private is not None and self._look_is_due(rss):
            self._next_look, self._rss_then = time.monotonic() + _PRIVATE_EVERY, rss
            if _private() > self._most_private:
                self.reason = "max_private_per_child"
        if self._kill_rss is not None and rss > self._kill_rss:
            # The job that did it has ended; the next one is not to be killed for it.
            self.reason = "kill_rss"

    def _look_is_due(self, rss: int) -> bool:
        return time.monotonic() >= self._next_look or rss > self._rss_then * _GROWN

    def _rss(self) -> int:
        """Bytes. psutil's way to it costs thirty times as much, and this is asked after each job."""
        if self._statm is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                return int(os.pread(self._statm, 100, 0).split()[1]) * _PAGE
        return (rss_kb() or 0) * 1024


def _private() -> int:
    """Bytes that this process shares with nobody."""
    share = share_of()
    return share.private_kb * 1024 if share is not None else 0
