"""Recycling: when a child has done enough, or has grown too large, it leaves after the job at hand.

A child that did nothing never leaves for this: it is only looked at after a job.
"""

from __future__ import annotations

import contextlib
import os
import time

import psutil

from cogworkerd.settings import Settings

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
        looks = (self._most_rss, self._most_private, self._kill_rss)
        self._statm = _open_statm() if any(limit is not None for limit in looks) else None
        self.reason = ""

    def performed(self) -> None:
        """A job has ended."""
        if self._jobs_left is not None:
            self._jobs_left -= 1
            if self._jobs_left <= 0:
                self.reason = "max_jobs_per_child"
        rss = self._rss() if self._statm is not None else 0
        if self._most_rss is not None and rss > self._most_rss:
            self.reason = "max_rss_per_child"
        if self._most_private is not None and self._look_is_due(rss):
            self._next_look, self._rss_then = time.monotonic() + _PRIVATE_EVERY, rss
            if self._private() > self._most_private:
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
        with contextlib.suppress(psutil.Error, OSError):
            return int(psutil.Process().memory_info().rss)
        return 0

    def _private(self) -> int:
        with contextlib.suppress(psutil.Error, OSError, AttributeError):
            return int(psutil.Process().memory_full_info().uss)
        return 0


def _open_statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
