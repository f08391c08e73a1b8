"""The exceptions that applications and operators meet."""

from __future__ import annotations

import math
from datetime import timedelta

import redis.exceptions


class CogworkerdError(Exception):
    """Base of all errors of this package."""


class SettingsError(CogworkerdError):
    """A setting, an option of the command line or a configuration file is wrong. Each problem is one sentence."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class UsageError(CogworkerdError):
    """The words of a command make no sense for what is there."""


class AppImportError(CogworkerdError):
    """The application could not be imported, or the name does not lead to an App."""


class PushUnknown(CogworkerdError, redis.exceptions.ConnectionError):
    """The push was sent but its answer never came: the jobs may be on the server or not.

    Nothing was repeated. A caller that pushes again may push a second copy.

    Attributes:
        jids: the ids of the jobs whose fate is not known.
        pushed: the ids of jobs of the same call that are certainly on the server.
    """

    def __init__(self, jids: list[str], reason: str, pushed: list[str] | None = None) -> None:
        shown = ", ".join(jids[:3]) + (f" and {len(jids) - 3} more" if len(jids) > 3 else "")
        super().__init__(f"not known whether the push took effect (jid {shown}): {reason}")
        self.jids = jids
        self.pushed = pushed or []


class PushFailed(CogworkerdError, redis.exceptions.RedisError):
    """A bulk push ended early: the server refused, or could not be reached before anything was sent.

    Attributes:
        pushed: the ids of jobs of the same call that are certainly on the server; no other job of the call is.
    """

    def __init__(self, reason: str, pushed: list[str]) -> None:
        super().__init__(f"{reason} ({len(pushed)} jobs of this call were pushed before)")
        self.pushed = pushed


class Retry(CogworkerdError):
    """Raised by a job: this run has failed, try again. `raise Retry(...) from error` says why.

    Attributes:
        delay: seconds or a timedelta until then; None: the usual back-off.

    A job without retries left goes to dead all the same.
    """

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        self.delay = None if delay is None else _seconds(delay)
        super().__init__(reason or "the job asked for a retry")


def _seconds(delay: object) -> float:
    allowed = f"delay = {delay!r:.80}: allowed are seconds from 0 up, a timedelta, or None"
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(allowed)
    try:
        number = float(seconds)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise ValueError(allowed)
    return number


class Bury(CogworkerdError):
    """Raised by a job: there is no sense in trying again; it goes to dead."""

    def __init__(self, reason: str = "the job asked to be buried") -> None:
        super().__init__(reason)


class Discard(CogworkerdError):
    """Raised by a job: it has failed, and nothing of it is kept."""

    def __init__(self, reason: str = "the job asked to be discarded") -> None:
        super().__init__(reason)


class RecordedError(CogworkerdError):
    """What is known of an error of another process: what a death hook gets for a job that did not die in its own.

    Attributes:
        error_class: the name of its class.
    """

    def __init__(self, error_class: str, message: str) -> None:
        super().__init__(f"{error_class}: {message}" if message else error_class)
        self.error_class = error_class


class UnknownJob(CogworkerdError):
    """A payload names a job that is not registered on the worker's app."""


class ProcessDied(CogworkerdError):
    """The process that ran a job died in the middle of it."""


class Interruption(BaseException):
    """Raised in a running job from outside. Not an Exception, so that a job's `except Exception` does not eat it."""


class JobTimeout(Interruption):
    """The job has run longer than it may: a failure like any other, and tried again like any other.

    It is raised in the job's main thread (an async job is cancelled). A job that has not ended `timeout_grace` seconds
    later is killed, and its failure names this error all the same.
    """


class JobMemoryExceeded(Interruption):
    """The job's process has grown beyond the setting `kill_rss` and was killed: a failure like any other."""


class Expired(CogworkerdError):
    """A job was not started before its `expires_at`. It is never raised; it stands in the history and in the status."""


CANCEL_ENDS = ("bury", "fail", "discard", "requeue")


class JobCancelled(Interruption):
    """Somebody has cancelled the running job.

    Attributes:
        then: what becomes of it: "bury" (to dead), "fail" (as any failure), "discard" or "requeue".
    """

    def __init__(self, reason: str = "cancelled while it ran", then: str = "bury") -> None:
        if then not in CANCEL_ENDS:
            raise ValueError(f"then = {then!r:.40}: allowed is {', '.join(CANCEL_ENDS)}")
        super().__init__(reason)
        self.then = then


class Requeue(BaseException):
    """Raised by a job: put me back on my queue, I go on later. That is no failure and is not counted as one.

    Not an Exception, so that `except Exception` does not eat it.
    """

    def __init__(self, reason: str = "the job asked to be requeued") -> None:
        super().__init__(reason)


class Stopped(Requeue):
    """Raised in a job that still runs when the time of a stop is over; soon after, its process is killed.

    The job goes back to its queue either way; it has a second to leave things in order.
    """

    def __init__(self, reason: str = "the daemon stops") -> None:
        super().__init__(reason)
