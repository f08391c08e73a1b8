"""Looking at a fleet and steering it from Python: one import for all of it.

from cogworkerd.inspect import DeadSet, Fleet, Queue, Running
DeadSet(app).retry_all(lambda entry: entry.name == "shop.mail.send_welcome")
"""

from __future__ import annotations

from cogworkerd.attempts import Attempt, read_attempts
from cogworkerd.costs import JobCost, read_costs
from cogworkerd.fleet import Fleet, NotAnswered, Running, Stack
from cogworkerd.history import History, Run
from cogworkerd.jobsets import DeadSet, Entry, JobSet, Queue, RetrySet, ScheduledSet, Store
from cogworkerd.snapshot import PeriodicEntry, Process, QueueState, RunningJob, Snapshot, snapshot
from cogworkerd.stats import Stats
from cogworkerd.status import JobStatus, read_status, read_statuses
from cogworkerd.throughput import Hour, read_throughput

__all__ = [
    "Attempt",
    "DeadSet",
    "Entry",
    "Fleet",
    "History",
    "Hour",
    "JobCost",
    "JobSet",
    "JobStatus",
    "NotAnswered",
    "PeriodicEntry",
    "Process",
    "Queue",
    "QueueState",
    "RetrySet",
    "Run",
    "Running",
    "RunningJob",
    "ScheduledSet",
    "Snapshot",
    "Stack",
    "Stats",
    "Store",
    "read_attempts",
    "read_costs",
    "read_status",
    "read_statuses",
    "read_throughput",
    "snapshot",
]
