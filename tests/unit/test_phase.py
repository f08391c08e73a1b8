"""The whole table: every phase, every signal, with and without the terminal that the daemon was started on."""

from __future__ import annotations

import itertools
import signal

import pytest

from cogworkerd.supervisor.phase import HANDLED, TABLE, Order, Phase, order

SIGNALS = ("TERM", "INT", "TSTP", "CONT", "HUP", "USR2", "TTIN")

# As the table of signals in the docs has it, a row a phase.
EXPECTED = {
    Phase.BOOTING: (
        *(Order.STOP, Order.STOP, Order.QUIET, Order.RESUME),
        *(Order.NOTHING, Order.NOTHING, Order.STACKS),
    ),
    Phase.RUNNING: (Order.STOP, Order.STOP, Order.QUIET, Order.NOTHING, Order.ROLL, Order.RENEW, Order.STACKS),
    Phase.QUIET: (Order.STOP, Order.STOP, Order.NOTHING, Order.RESUME, Order.ROLL, Order.RENEW, Order.STACKS),
    Phase.STOPPING: (
        *(Order.STOP_NOW, Order.STOP_NOW, Order.NOTHING, Order.NOTHING),
        *(Order.NOTHING, Order.NOTHING, Order.STACKS),
    ),
    Phase.KILLING: (Order.NOTHING,) * 7,
}


def number_of(name: str) -> signal.Signals:
    return signal.Signals[f"SIG{name}"]


@pytest.mark.parametrize(("phase", "name"), list(itertools.product(Phase, SIGNALS)))
def test_each_signal_in_each_phase(phase: Phase, name: str) -> None:
    assert order(phase, number_of(name)) is EXPECTED[phase][SIGNALS.index(name)]


@pytest.mark.parametrize(("phase", "name"), list(itertools.product(Phase, SIGNALS)))
def test_without_its_terminal_only_hup_changes_and_is_as_term(phase: Phase, name: str) -> None:
    as_if = "TERM" if name == "HUP" else name
    assert order(phase, number_of(name), terminal_gone=True) is order(phase, number_of(as_if))


@pytest.mark.parametrize("phase", list(Phase))
def test_other_signals_ask_for_nothing(phase: Phase) -> None:
    for number in set(signal.Signals) - set(HANDLED):
        assert order(phase, number) is Order.NOTHING
        assert order(phase, number, terminal_gone=True) is Order.NOTHING


def test_every_phase_has_a_row_and_every_signal_in_it_is_handled() -> None:
    assert set(TABLE) == set(Phase)
    assert {number for row in TABLE.values() for number in row} == set(HANDLED)
    assert sorted(HANDLED) == sorted(number_of(name) for name in SIGNALS)


def test_a_stop_is_obeyed_in_every_phase_that_is_not_past_it() -> None:
    for phase in (Phase.BOOTING, Phase.RUNNING, Phase.QUIET):
        for name in ("TERM", "INT"):
            assert order(phase, number_of(name)) is Order.STOP
