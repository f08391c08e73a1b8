"""What one run took: CPU, memory, switches, times. One process a slot makes it exact."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any

_NUMBERS = struct.Struct("!dddqqqqd")
_UNKNOWN = -1.0


@dataclass(frozen=True, slots=True)
class Receipt:
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
        wait = _UNKNOWN if self.wait is None else self.wait
        return _NUMBERS.pack(
            self.wall,
            self.cpu_user,
            self.cpu_system,
            self.rss_peak_kb,
            self.rss_growth_kb,
            self.switches,
            self.preempted,
            wait,
        )

    @classmethod
    def decode(cls, body: bytes) -> Receipt:
        wall, user, system, peak, growth, switches, preempted, wait = _NUMBERS.unpack(body)
        return cls(wall, user, system, peak, growth, switches, preempted, None if wait == _UNKNOWN else wait)

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
FIELDS = tuple(field.name for field in fields(Receipt))
