"""cogworkerd: background jobs on Redis or Valkey, performed by a supervisor and one forked process per slot.

The names below are the public API. They are imported on first use: `cogworkerd run` must have its signal handlers in
place long before redis-py is loaded, or a stop that comes in the first tenth of a second would kill it half-way.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cogworkerd.app import App
    from cogworkerd.context import JobContext, current_job
    from cogworkerd.errors import (
        AppImportError,
        Bury,
        CogworkerdError,
        Discard,
        Expired,
        JobCancelled,
        JobMemoryExceeded,
        JobTimeout,
        ProcessDied,
        PushFailed,
        PushUnknown,
        RecordedError,
        Requeue,
        Retry,
        SettingsError,
        Stopped,
        UnknownJob,
    )
    from cogworkerd.job import Call, Job
    from cogworkerd.middleware import PendingJob
    from cogworkerd.retry import BURY, DISCARD
    from cogworkerd.status import JobStatus

_HOMES = {
    "App": "app",
    "AppImportError": "errors",
    "BURY": "retry",
    "Bury": "errors",
    "Call": "job",
    "CogworkerdError": "errors",
    "current_job": "context",
    "DISCARD": "retry",
    "Discard": "errors",
    "Expired": "errors",
    "Job": "job",
    "JobCancelled": "errors",
    "JobContext": "context",
    "JobMemoryExceeded": "errors",
    "JobStatus": "status",
    "JobTimeout": "errors",
    "PendingJob": "middleware",
    "ProcessDied": "errors",
    "PushFailed": "errors",
    "PushUnknown": "errors",
    "RecordedError": "errors",
    "Requeue": "errors",
    "Retry": "errors",
    "SettingsError": "errors",
    "Stopped": "errors",
    "UnknownJob": "errors",
}

__all__ = [
    "BURY",
    "DISCARD",
    "App",
    "AppImportError",
    "Bury",
    "Call",
    "CogworkerdError",
    "Discard",
    "Expired",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobMemoryExceeded",
    "JobStatus",
    "JobTimeout",
    "PendingJob",
    "ProcessDied",
    "PushFailed",
    "PushUnknown",
    "RecordedError",
    "Requeue",
    "Retry",
    "SettingsError",
    "Stopped",
    "UnknownJob",
    "current_job",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cogworkerd' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cogworkerd.{home}"), name)
