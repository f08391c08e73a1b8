"""Signals that come before the supervisor stands: while Python starts, while the application is imported."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

from cogworkerd.supervisor.origin import CHECK, HANDOVER

_STOP = ("SIGTERM", "SIGINT")
_REMEMBERED = ("SIGTSTP", "SIGCONT", "SIGHUP", "SIGUSR2", "SIGTTIN")

received: list[signal.Signals] = []
companions: set[int] = set()
"""Processes that must not outlive this one when it is stopped now."""


def install() -> None:
    """A stop ends the process at once, with status 0: nothing was fetched, nobody knows of us yet. Others are kept for
    the supervisor; also a stop, where the program before this one has left children."""
    follows = HANDOVER in os.environ and CHECK not in os.environ
    for name in _STOP:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _remember if follows else _leave)
    for name in _REMEMBERED:
        if hasattr(signal, name) and not _left_to_nohup(getattr(signal, name)):
            signal.signal(getattr(signal, name), _remember)
    if follows:
        from cogworkerd.supervisor.phase import BLOCKED

        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)


def _left_to_nohup(number: signal.Signals) -> bool:
    """HUP that was ignored when the process began, as nohup has it, stays ignored."""
    return number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


def _leave(number: int, frame: FrameType | None) -> None:
    for pid in companions:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _remember(number: int, frame: FrameType | None) -> None:
    received.append(signal.Signals(number))
