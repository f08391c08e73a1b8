"""Orders to stop a running job: what each raises in it, and what its timeout is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from cogworkerd.errors import JobCancelled, JobTimeout, Stopped


class Interrupt(IntEnum):
    """The orders. The number is what the shared memory carries."""

    TIMEOUT = 1
    STOP = 2
    CANCEL_BURY = 3
    CANCEL_FAIL = 4
    CANCEL_DISCARD = 5
    CANCEL_REQUEUE = 6

    @classmethod
    def cancel(cls, then: str) -> Interrupt:
        """The order to cancel. `then`: one of errors.CANCEL_ENDS."""
        return cls[f"CANCEL_{then.upper()}"]


def error_of(interrupt: Interrupt, payload: Mapping[str, Any], default_timeout: float | None) -> BaseException:
    """What an order raises in the job.

    Args:
        payload: the job.
        default_timeout: the setting `timeout`, seconds.
    """
    if interrupt is Interrupt.TIMEOUT:
        seconds = timeout_of(payload, default_timeout)
        return JobTimeout(f"still running after {seconds:g} s" if seconds is not None else "it ran for too long")
    if interrupt is Interrupt.STOP:
        return Stopped()
    return JobCancelled(then=interrupt.name.removeprefix("CANCEL_").lower())


def timeout_of(payload: Mapping[str, Any], default: float | None) -> float | None:
    """How long a job may run, in seconds; None: as long as it likes.

    Its field `timeout` counts if it is a positive number; anything else there is another program's.
    """
    own = payload.get("timeout")
    if isinstance(own, bool) or not isinstance(own, int | float) or not 0 < own < 1e9:
        return default
    return float(own)
