"""Stats: the counters of a fleet in one place."""

from __future__ import annotations

from cogworkerd.app import App
from cogworkerd.attempts import Attempt, read_attempts
from cogworkerd.costs import JobCost, read_costs
from cogworkerd.history import History
from cogworkerd.jobsets import Store
from cogworkerd.store.reading import counter
from cogworkerd.throughput import Hour, read_throughput


class Stats:
    """Counters. Each question is one round trip, but for `costs`: one a day.

    Args:
        at: an app, or a `Store`.
    """

    def __init__(self, at: App | Store) -> None:
        self._store = at if isinstance(at, Store) else Store.of(at)

    @property
    def processed(self) -> int:
        """Successful runs, ever."""
        return self._counter(self._store.keys.processed)

    @property
    def failed(self) -> int:
        """Failed runs and buried jobs, ever."""
        return self._counter(self._store.keys.failed)

    def throughput(self, hours: int = 24) -> list[Hour]:
        """Runs of each of the last hours, at most 25; the one that we are in is the last."""
        return read_throughput(self._store, hours)

    def daily(self, days: int = 30) -> dict[str, dict[str, int]]:
        """Runs of each of the last days (UTC), today first."""
        return History(self._store).daily(days)

    def costs(self, days: int = 1) -> list[JobCost]:
        """What each kind of job took, the one that took most CPU first; `days`: 1 is today (UTC), 35 the most."""
        return read_costs(self._store, days)

    def attempts(self, jid: str) -> list[Attempt]:
        """The failures of one job, oldest first."""
        return read_attempts(self._store, jid)

    def _counter(self, key: str) -> int:
        return counter(self._store.client.get(key))
