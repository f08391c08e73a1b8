"""What a screen shows of a fleet: the state now, and how fast it changes since the last look."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from cogworkerd.jobsets import Store
from cogworkerd.snapshot import RunningJob, Snapshot, snapshot
from cogworkerd.status import JobStatus, read_statuses

MOST_STATUSES = 100


@dataclass(frozen=True)
class Overview:
    """One look.

    Attributes:
        at: epoch seconds.
        state: processes, queues, sets, counters, what runs.
        running: what runs, the oldest first.
        statuses: by jid, of the running jobs that say how far they are.
        rates: how much `processed` and `failed` grow a second; empty at the first look.
        changes: by how many jobs each queue grows a second.
    """

    at: float
    state: Snapshot
    running: list[RunningJob]
    statuses: dict[str, JobStatus]
    rates: dict[str, float] = field(default_factory=dict)
    changes: dict[str, float] = field(default_factory=dict)


class Watcher:
    """Looks again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: tuple[float, Snapshot] | None = None

    def look(self) -> Overview:
        """Look once.

        Raises:
            redis.exceptions.RedisError: the server is away.
        """
        state = snapshot(self._store.client, self._store.keys)
        clock, now = time.monotonic(), time.time()
        running = sorted(state.running, key=lambda job: job.run_at)
        found = read_statuses(self._store, [job.jid for job in running[:MOST_STATUSES]])
        statuses = {jid: status for jid, status in found.items() if status is not None}
        rates, changes = self._rates(clock, state)
        self._last = clock, state
        return Overview(now, state, running, statuses, rates, changes)

    def _rates(self, clock: float, state: Snapshot) -> tuple[dict[str, float], dict[str, float]]:
        if self._last is None:
            return {}, {}
        before, old = self._last
        seconds = max(clock - before, 0.001)
        sizes = {queue.name: queue.size for queue in old.queues}
        rates = {name: (count - old.stats[name]) / seconds for name, count in state.stats.items()}
        changes = {queue.name: (queue.size - sizes.get(queue.name, 0)) / seconds for queue in state.queues}
        return rates, changes
