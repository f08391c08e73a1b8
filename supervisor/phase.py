"""The phases of a supervisor and what each signal does in each: one table, no side effects."""

from __future__ import annotations

import signal
from enum import Enum


class Phase(Enum):
    """BOOTING: nothing was fetched yet. RUNNING. QUIET: what runs goes on, nothing new. STOPPING: the drain.
    KILLING: the drain is over, what still runs is killed."""

    BOOTING = "booting"
    RUNNING = "running"
    QUIET = "quiet"
    STOPPING = "stopping"
    KILLING = "killing"


STOPPING = (Phase.STOPPING, Phase.KILLING)


class Order(Enum):
    """What a signal asks for. RENEW: new code, then ROLL; ROLL: children are replaced one by one."""

    STOP = "stop"
    STOP_NOW = "stop now"
    QUIET = "quiet"
    RESUME = "resume"
    RENEW = "renew"
    ROLL = "roll"
    STACKS = "stacks"
    NOTHING = "nothing"


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HANDLED = (*STOP_SIGNALS, signal.SIGTSTP, signal.SIGCONT, signal.SIGUSR2, signal.SIGHUP, signal.SIGTTIN)

BLOCKED = (*HANDLED, signal.SIGCHLD)
"""What waits while the supervisor forks, or becomes another program."""

_STOP = dict.fromkeys(STOP_SIGNALS, Order.STOP)
_STOP_NOW = dict.fromkeys(STOP_SIGNALS, Order.STOP_NOW)
_STACKS = {signal.SIGTTIN: Order.STACKS}
_ROLL = {signal.SIGUSR2: Order.RENEW, signal.SIGHUP: Order.ROLL}
_QUIET = {signal.SIGTSTP: Order.QUIET}
_RESUME = {signal.SIGCONT: Order.RESUME}

TABLE: dict[Phase, dict[signal.Signals, Order]] = {
    # A roll of children that are about to be forked has nothing to do.
    Phase.BOOTING: {**_STOP, **_QUIET, **_RESUME, **_STACKS},
    Phase.RUNNING: {**_STOP, **_QUIET, **_ROLL, **_STACKS},
    Phase.QUIET: {**_STOP, **_RESUME, **_ROLL, **_STACKS},
    Phase.STOPPING: {**_STOP_NOW, **_STACKS},
    Phase.KILLING: {},
}


def order(phase: Phase, number: signal.Signals, terminal_gone: bool = False) -> Order:
    """What this signal asks for in this phase.

    Args:
        terminal_gone: the daemon was started on a terminal that is not there any more; HUP is then a stop.
    """
    if number is signal.SIGHUP and terminal_gone:
        number = signal.SIGTERM
    return TABLE[phase].get(number, Order.NOTHING)
