"""Dying with the parent, on the systems that offer it."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def parent_death_signal() -> Callable[[], bool] | None:
    """A function for a fresh child that asks the kernel for SIGTERM when the parent dies; None where there is none.

    It is looked up before the fork: loading a library is not for a process that shares a parent's locks.
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    return lambda: bool(prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) == 0)
