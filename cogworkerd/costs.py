"""What a kind of job costs: the receipts of its runs, summed per day and name."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cogworkerd.receipt import Receipt
from cogworkerd.store.reading import ask

if TYPE_CHECKING:
    from cogworkerd.jobsets import Store

COST_DAYS = 35
"""How many days are kept."""

COST_TTL = COST_DAYS * 86_400

MOST_NAMES = 1000
"""How many names a day has; what comes later is summed as OTHERS."""

OTHERS = "(others)"
UNREGISTERED = "(not registered)"
SUMS = (
    *("runs", "failed", "wall_us", "cpu_user_us", "cpu_system_us", "waits", "wait_us"),
    *("rss_growth_kb", "switches", "preempted"),
)
PEAK = "rss_peak_kb"


class Sums:
    """The sums of some runs, by job."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, name: str, failed: bool, receipt: Receipt) -> None:
        """Add a run."""
        sums = self._by_name.get(name)
        if sums is None:
            sums = self._by_name[name] = [0] * (len(SUMS) + 1)
        wait = receipt.wait
        values = (
            1,
            failed,
            int(receipt.wall * 1e6),
            int(receipt.cpu_user * 1e6),
            int(receipt.cpu_system * 1e6),
            wait is not None,
            int((wait or 0.0) * 1e6),
            receipt.rss_growth_kb,
            receipt.switches,
            receipt.preempted,
        )
        for index, value in enumerate(values):
            sums[index] += value
        sums[-1] = max(sums[-1], receipt.rss_peak_kb)

    def rows(self) -> Mapping[str, list[int]]:
        """For each name its SUMS, then PEAK."""
        return self._by_name


@dataclass(frozen=True)
class JobCost:
    """What the runs of one job took, in sum; times in seconds, sizes in KiB.

    Attributes:
        waits: how many of the runs said how long they had waited; wait: that time.
        rss_growth_kb: by how much they made their processes grow; rss_peak_kb: the largest process of them.
        switches: how often they waited for something; preempted: how often they were made to.
    """

    name: str
    runs: int
    failed: int
    wall: float
    cpu_user: float
    cpu_system: float
    waits: int
    wait: float
    rss_growth_kb: int
    switches: int
    preempted: int
    rss_peak_kb: int

    @property
    def cpu(self) -> float:
        return self.cpu_user + self.cpu_system


def read_costs(store: Store, days: int = 1, now: float | None = None) -> list[JobCost]:
    """What each job took in the last days (1: today, in UTC), the one that took most CPU first.

    Raises:
        redis.exceptions.RedisError: the server is away.
    """
    moment = time.time() if now is None else now
    totals: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for back in range(days):
        for raw, value in _hash(store, store.keys.cost_of_day(moment - 86_400 * back)):
            _, colon, name = raw.partition(":")
            field = raw[: -len(name) - 1] if colon else ""
            if field == PEAK:
                totals[name][field] = max(totals[name].get(field, 0), value)
            elif field in SUMS:
                totals[name][field] = totals[name].get(field, 0) + value
    return sorted((_cost(name, sums) for name, sums in totals.items()), key=lambda cost: cost.cpu, reverse=True)


def _hash(store: Store, key: str) -> list[tuple[str, int]]:
    found = []
    for raw, value in (ask(store.client, "HGETALL", key) or {}).items():
        try:
            found.append((raw.decode("utf-8", "replace"), int(value)))
        except ValueError:
            continue  # somebody else's, or more digits than a number may have
    return found


def _cost(name: str, sums: Mapping[str, int]) -> JobCost:
    def seconds(field: str) -> float:
        return sums.get(field, 0) / 1e6

    return JobCost(
        name,
        sums.get("runs", 0),
        sums.get("failed", 0),
        seconds("wall_us"),
        seconds("cpu_user_us"),
        seconds("cpu_system_us"),
        sums.get("waits", 0),
        seconds("wait_us"),
        sums.get("rss_growth_kb", 0),
        sums.get("switches", 0),
        sums.get("preempted", 0),
        sums.get(PEAK, 0),
    )
