"""The shared page: orders from the supervisor to all its children at once.

A child reads it before each fetch, without a system call. It is a memfd where there is one (it survives a re-execution
of the supervisor), else an anonymous shared mapping.
"""

from __future__ import annotations

import mmap
import time

from cogworkerd.worker.shared_memory import shared_memory

_FIELDS = 5
_QUIET, _REGISTRATION, _LEASE, _LAST_BEAT, _IDLE = range(_FIELDS)
_SIZE = mmap.PAGESIZE

LEASE = 50.0
"""Seconds after a good beat during which children may fetch: presence (60) - blocking wait (5) - margin (5)."""

ORPHAN_LIMIT = 55.0
"""Seconds after the last good beat at which an orphaned child is gone, before anyone may take its job over."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds since boot, suspended time included where the system counts it."""
    return time.clock_gettime(_CLOCK)


class Page:
    """Five 8-byte fields; each is written and read whole.

    Args:
        fd: of one that is there already.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd, self._map = shared_memory("cogworkerd-page", _SIZE, fd)
        self._fields = memoryview(self._map).cast("Q")

    @property
    def quiet(self) -> bool:
        """Fetch nothing."""
        return self._fields[_QUIET] != 0

    @quiet.setter
    def quiet(self, value: bool) -> None:
        self._fields[_QUIET] = int(value)

    @property
    def registration(self) -> int:
        """How often this identity has registered: a job fetched under an older number may have been taken over."""
        return self._fields[_REGISTRATION]

    def raise_registration(self) -> None:
        self._fields[_REGISTRATION] += 1

    def beat(self, now: float) -> None:
        """Note a good beat: children may fetch for another `LEASE` seconds."""
        self._fields[_LAST_BEAT] = int(now * 1e9)
        self._fields[_LEASE] = int((now + LEASE) * 1e9)

    @property
    def last_beat(self) -> float:
        return self._fields[_LAST_BEAT] / 1e9

    def may_fetch(self, now: float) -> bool:
        """Not quiet, and a good beat covers a fetch that begins now."""
        fields = self._fields
        return fields[_QUIET] == 0 and now * 1e9 < fields[_LEASE]

    @property
    def idle_slots(self) -> int:
        """How many slots wait for work: they share the looks at all queues."""
        return self._fields[_IDLE]

    @idle_slots.setter
    def idle_slots(self, count: int) -> None:
        self._fields[_IDLE] = count
