"""What of a stack is kept where only so many lines fit."""

from __future__ import annotations

import json

import pytest

from cogworkerd.history import backtrace_of
from cogworkerd.supervisor.dossier import excerpt

HEAD = ["Fatal Python error: Segmentation fault", "Current thread 0x1 (most recent call first):"]
OTHER = ["Thread 0x2 (most recent call first):", *(f"  other {number}" for number in range(30))]


def frames(count: int) -> list[str]:
    return [f"  frame {number}" for number in range(count)]


@pytest.mark.parametrize("stack", [[], ["no stack"], HEAD, [*HEAD, *frames(38)], frames(40)])
def test_a_stack_that_fits_is_kept_as_it_is(stack: list[str]) -> None:
    assert excerpt(stack) == stack


@pytest.mark.parametrize("head", [[], HEAD[1:], HEAD])
@pytest.mark.parametrize("others", [[], OTHER])
def test_of_a_deep_stack_both_ends_are_kept(head: list[str], others: list[str]) -> None:
    found = excerpt([*head, *frames(100), *others])
    assert len(found) == 40
    assert found[: len(head) + 1] == [*head, "  frame 0"]
    assert found[-10:] == frames(100)[-10:]
    left_out = 100 + len(head) - 39
    assert found[29] == f"  ... {left_out} frames"


def test_other_threads_are_left_out_first() -> None:
    assert excerpt([*HEAD, *frames(20), *OTHER]) == [*HEAD, *frames(20), *OTHER[:18]]


@pytest.mark.parametrize("most", range(1, 12))
def test_the_innermost_lines_are_the_last_to_go(most: int) -> None:
    found = excerpt([*HEAD, *frames(50)], most)
    assert len(found) == most
    assert found[:1] == HEAD[:1]
    assert (found[-1] == "  frame 49") == (most >= 4)


@pytest.mark.parametrize("room", [2, 60, 200, 1000, 4096])
def test_an_excerpt_keeps_to_its_room(room: int) -> None:
    stack = [*HEAD, *frames(100)]
    raw = backtrace_of(stack, room, excerpt)
    assert len(raw) <= room
    lines = json.loads(raw)
    assert lines[:1] == (HEAD[:1] if room >= 60 else [])
    assert room < 1000 or lines[-1] == stack[-1]
