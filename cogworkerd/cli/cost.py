"""The table of `jobs cost`: what each kind of job took."""

from __future__ import annotations

import json
from dataclasses import asdict

from cogworkerd.cli.tables import duration, size, table
from cogworkerd.costs import JobCost

HEAD = ("job", "runs", "failed", "CPU", "CPU/run", "time/run", "wait/run", "peak", "growth")


def as_json(costs: list[JobCost], days: int) -> str:
    """One object: the sums; times in seconds, sizes in KiB."""
    return json.dumps({"days": days, "jobs": [{**asdict(cost), "cpu": cost.cpu} for cost in costs]}, indent=2)


def as_text(costs: list[JobCost], days: int) -> str:
    """A table, the job that took most CPU first."""
    title = "Costs today (UTC)" if days == 1 else f"Costs of the last {days} days (UTC)"
    return table(title, HEAD, [_row(cost) for cost in costs], "nothing ran")


def _row(cost: JobCost) -> tuple[object, ...]:
    runs = max(cost.runs, 1)
    return (
        cost.name,
        cost.runs,
        cost.failed,
        duration(cost.cpu),
        short(cost.cpu / runs),
        short(cost.wall / runs),
        short(cost.wait / cost.waits) if cost.waits else "unknown",
        size(cost.rss_peak_kb),
        size(cost.rss_growth_kb // runs),
    )


def short(seconds: float) -> str:
    """A time span from microseconds up."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else duration(seconds)
