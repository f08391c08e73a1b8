"""Death hooks: what an application wants to be told when a job is in dead. Each is called on its own."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cogworkerd import context, events
from cogworkerd.context import JobContext
from cogworkerd.errors import RecordedError
from cogworkerd.payload import DEFAULT_QUEUE, Unparseable, failures_of, parse, queue_of, unparseable
from cogworkerd.text import error_class, error_message

if TYPE_CHECKING:
    from cogworkerd.app import App
    from cogworkerd.log import Log


@dataclass(frozen=True, slots=True)
class Death:
    """A job that is in dead.

    Attributes:
        job: as its hooks see it.
        error: what ended it; what is recorded of it, where it was raised in another process.
    """

    job: JobContext
    error: BaseException


def death_of(entry: bytes) -> Death:
    """A death as the entry of dead tells it. An entry that is no job is told like other bytes that are none."""
    try:
        payload = parse(entry)
    except Unparseable as problem:
        payload = unparseable(entry, DEFAULT_QUEUE, str(problem), time.time())
    told, message = payload.get("error_class"), payload.get("error_message")
    error = RecordedError(
        told if isinstance(told, str) else "unknown error", message if isinstance(message, str) else ""
    )
    job = JobContext(payload, queue_of(payload, DEFAULT_QUEUE), max(1, failures_of(payload)), [False])
    return Death(job, error)


def call_death_hooks(app: App, death: Death, log: Log, after_each: Callable[[], None]) -> None:
    """Call every hook for this job. One that raises is logged and keeps no other from being called."""
    for number in range(len(app.death_hooks_of(death.job.name))):
        call_death_hook(app, death, number, log)
        after_each()


def call_death_hook(app: App, death: Death, number: int, log: Log) -> None:
    """Call one of the hooks for this job; its error is logged."""
    hook = app.death_hooks_of(death.job.name)[number]
    context.enter(death.job)
    try:
        # What a hook sets does not leak into the next job.
        contextvars.copy_context().run(hook, death.job, death.error)
    except BaseException as problem:
        log.emit(
            events.DEATH_HOOK_FAILED,
            exc_info=problem,
            hook=getattr(hook, "__qualname__", repr(hook)),
            error=error_class(problem),
            message=error_message(problem),
        )
    finally:
        context.leave()
