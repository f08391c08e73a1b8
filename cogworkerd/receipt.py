"""What one run took: CPU, memory, switches, times. One process a slot makes it exact."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

_NUMBERS = struct.Struct("!dddqqqqd")
_UNKNOWN = -1.0


class Receipt(NamedTuple):  # made twice a job, and a frozen dataclass takes four times as long
    """One run. Programs that the job started, and waited for, are part of its CPU time and switches.

    Attributes:
        wall: seconds from its start to its end.
        cpu_user: seconds of CPU in its own code; cpu_system: in the kernel for it.
        rss_peak_kb: the largest resident set of its process during the run, KiB.
        rss_growth_kb: how much larger that is than at the start of the run, KiB.
        switches: how often it waited for something; preempted: how often it was made to wait.
        wait: seconds between being enqueued (or due) and its start; None where the job does not say.
    """

    wall: float
    cpu_user: float
    cpu_system: float
    rss_peak_kb: int
    rss_growth_kb: int
    switches: int
    preempted: int
    wait: float | None = None

    @property
    def cpu(self) -> float:
        """Seconds of CPU."""
        return self.cpu_user + self.cpu_system

    def encode(self) -> bytes:
        return _NUMBERS.pack(*self[:-1], _UNKNOWN if self.wait is None else self.wait)

    @classmethod
    def decode(cls, body: bytes) -> Receipt:
        found = cls._make(_NUMBERS.unpack(body))
        return found._replace(wait=None) if found.wait == _UNKNOWN else found

    def as_fields(self) -> dict[str, Any]:
        """For a history entry and for the log: seconds to the microsecond."""
        found: dict[str, Any] = {
            "wall": round(self.wall, 6),
            "cpu_user": round(self.cpu_user, 6),
            "cpu_system": round(self.cpu_system, 6),
            "rss_peak_kb": self.rss_peak_kb,
            "rss_growth_kb": self.rss_growth_kb,
            "switches": self.switches,
            "preempted": self.preempted,
        }
        if self.wait is not None:
            found["wait"] = round(self.wait, 6)
        return found


SIZE = _NUMBERS.size
