"""How many CPUs this process may use, and who says so."""

from __future__ import annotations

import math
import os
from pathlib import Path

LEAST_SLOTS = 2
MOST_SLOTS = 16
_V2 = Path("/sys/fs/cgroup/cpu.max")
_V1 = Path("/sys/fs/cgroup/cpu")


def usable_cpus() -> tuple[int, str]:
    """The smallest of: affinity, the cgroup's quota (v2 `cpu.max`, v1 `cfs_quota_us`) rounded up, PYTHON_CPU_COUNT."""
    found = [(_affinity(), "affinity")]
    quota = _quota()
    if quota:
        found.append((quota, "cgroup quota"))
    override = os.environ.get("PYTHON_CPU_COUNT", "")
    if override.isdigit() and int(override):
        found.append((int(override), "PYTHON_CPU_COUNT"))
    return min(found)


def default_concurrency() -> tuple[int, str]:
    """How many slots to run when nobody said, and why."""
    cpus, source = usable_cpus()
    slots = min(max(cpus, LEAST_SLOTS), MOST_SLOTS)
    return slots, f"{cpus} usable CPU{'s' if cpus != 1 else ''} by {source}"


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _quota() -> int | None:
    try:
        if _V2.is_file():
            quota, period = _V2.read_text().split()
        else:
            quota = (_V1 / "cpu.cfs_quota_us").read_text().strip()
            period = (_V1 / "cpu.cfs_period_us").read_text().strip()
        return math.ceil(int(quota) / int(period)) if int(quota) > 0 else None
    except (OSError, ValueError):
        return None
