"""What each signal asks for in each phase."""

from __future__ import annotations

import signal

import pytest

from cogworkerd.supervisor.phase import HANDLED, Order, Phase, order

EXPECTED = {
    Phase.BOOTING: {
        "TERM": Order.STOP,
        "INT": Order.STOP,
        "TSTP": Order.QUIET,
        "CONT": Order.RESUME,
        "TTIN": Order.STACKS,
    },
    Phase.RUNNING: {
        "TERM": Order.STOP,
        "INT": Order.STOP,
        "TSTP": Order.QUIET,
        "USR2": Order.ROLL,
        "HUP": Order.ROLL,
        "TTIN": Order.STACKS,
    },
    Phase.QUIET: {
        "TERM": Order.STOP,
        "INT": Order.STOP,
        "CONT": Order.RESUME,
        "USR2": Order.ROLL,
        "HUP": Order.ROLL,
        "TTIN": Order.STACKS,
    },
    Phase.STOPPING: {"TERM": Order.STOP_NOW, "INT": Order.STOP_NOW, "TTIN": Order.STACKS},
    Phase.KILLING: {},
}


@pytest.mark.parametrize("phase", Phase)
def test_the_whole_table(phase: Phase) -> None:
    for number in HANDLED:
        assert order(phase, number) is EXPECTED[phase].get(number.name.removeprefix("SIG"), Order.NOTHING)


@pytest.mark.parametrize("phase", Phase)
def test_hup_is_term_once_the_terminal_is_gone(phase: Phase) -> None:
    assert order(phase, signal.SIGHUP, terminal_gone=True) is order(phase, signal.SIGTERM)
