"""Measuring one run in its own process."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

from cogworkerd.receipt import Receipt
from cogworkerd.worker.proc_self import open_proc_self

_RESET_PEAK = b"5"  # proc(5), /proc/pid/clear_refs: the peak becomes what is resident now
_KB = 1024 if sys.platform == "darwin" else 1  # how many of its units getrusage needs for a KiB


class Meter:
    """One for the life of a child; each run is `start` and `stop`."""

    def __init__(self) -> None:
        self._peak = open_proc_self("clear_refs", os.O_WRONLY)
        self._wall = 0.0
        self._waited: float | None = None
        self._own = resource.getrusage(resource.RUSAGE_SELF)
        self._others = resource.getrusage(resource.RUSAGE_CHILDREN)

    def start(self, payload: Mapping[str, Any], now: float) -> None:
        """A run begins. `now`: epoch seconds."""
        if self._peak is not None:
            try:
                os.pwrite(self._peak, _RESET_PEAK, 0)
            except OSError:
                self._peak = None  # then the peak is that of the process's life so far
        self._waited = waited(payload, now)
        self._own = resource.getrusage(resource.RUSAGE_SELF)
        self._others = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._wall = time.monotonic()

    def stop(self) -> Receipt:
        """The run has ended."""
        wall = time.monotonic() - self._wall
        own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        before, others_before = self._own, self._others
        return Receipt(
            wall,
            own.ru_utime - before.ru_utime + others.ru_utime - others_before.ru_utime,
            own.ru_stime - before.ru_stime + others.ru_stime - others_before.ru_stime,
            own.ru_maxrss // _KB,
            (own.ru_maxrss - before.ru_maxrss) // _KB,
            own.ru_nvcsw - before.ru_nvcsw + others.ru_nvcsw - others_before.ru_nvcsw,
            own.ru_nivcsw - before.ru_nivcsw + others.ru_nivcsw - others_before.ru_nivcsw,
            self._waited,
        )


def waited(payload: Mapping[str, Any], now: float) -> float | None:
    """How long a job waited for its run, in seconds."""
    since = payload.get("enqueued_at")
    if isinstance(since, bool) or not isinstance(since, int | float) or not 0 < since < 1e12:
        return None
    return max(0.0, now - since)
