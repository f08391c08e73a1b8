"""The protocol holds in the model, and each of its rules is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.explore import explore
from tests.model.scenarios import DEEP, HOLES, SUITE, Rules, Scenario

KNOWN = {scenario.name: scenario for scenario in (*SUITE, *DEEP)}
QUICK = ("two jobs", "dead supervisor", "false death", "outage", "lossy failover")
QUICK_HOLES = ("wait_for_children", "second_look_at_dead", "release_only_if_removed", "keep_registered")


def all_of(names: tuple[str, ...], every: tuple[str, ...]) -> list[object]:
    """All names; those that are not quick are marked slow."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in every]


@pytest.mark.parametrize("name", all_of(QUICK, tuple(scenario.name for scenario in SUITE)))
def test_with_all_rules_no_interleaving_breaks_an_invariant(name: str) -> None:
    found = explore(KNOWN[name])
    assert found.violation == "", "\n".join(found.trace)
    assert found.complete


@pytest.mark.parametrize("rule", all_of(QUICK_HOLES, tuple(HOLES)))
def test_without_any_one_rule_some_interleaving_breaks_one(rule: str) -> None:
    scenario: Scenario = KNOWN[HOLES[rule]]
    assert explore(scenario, replace(Rules(), **{rule: False}), progress=False).violation
