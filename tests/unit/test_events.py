"""The list of events and the code that emits them say the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogworkerd import events
from cogworkerd.events import Event
from cogworkerd.log import LEVELS

ROOT = Path(events.__file__).parent.parent
FILES = sorted([*ROOT.glob("cogworkerd/**/*.py"), *ROOT.glob("supervisor/**/*.py")])
NAMED: dict[str, Event] = {name: value for name, value in vars(events).items() if isinstance(value, Event)}


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in FILES:
        if path.name != "events.py" and "cogworkerd/supervisor" not in str(path):
            yield path, ast.parse(path.read_text("utf-8"), str(path))


def event_of(node: ast.expr) -> str | None:
    """X, where the expression is `events.X`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "events":
        return node.attr
    return None


def calls() -> Iterator[tuple[str, str, list[str]]]:
    """Where an event is emitted: the place, the event's constant, the names of the fields."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                name = event_of(node.args[0])
                if name is not None:
                    given = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", name, given


CALLS = list(calls())
USED = {event_of(node) for _, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.expr)}


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 30
    assert len(CALLS) > 30
    assert {path.parent.name for path in FILES} >= {"cogworkerd", "supervisor", "worker", "store", "cli"}


@pytest.mark.parametrize(("place", "name", "given"), CALLS, ids=[f"{place} {name}" for place, name, _ in CALLS])
def test_each_call_passes_fields_of_its_event_and_no_others(place: str, name: str, given: list[str]) -> None:
    assert name in NAMED, f"{place}: there is no events.{name}"
    assert set(given) <= {*NAMED[name].fields, "exc_info"}, f"{place}: {name}"


@pytest.mark.parametrize("name", sorted(NAMED))
def test_each_event_is_used_somewhere(name: str) -> None:
    assert name in USED


def test_each_field_of_an_event_is_passed_somewhere() -> None:
    """Where a call passes fields by `**`, what it passes cannot be told from here."""
    open_ended = {"JOB_DONE", "JOB_FAILED", "JOB_DEAD", "JOB_DISCARDED", "JOB_REQUEUED", "DAEMON_START", "REDIS_AWAY"}
    open_ended |= {"REDIS_REFUSING", "REDIS_STILL", "REDIS_BACK"}
    passed: dict[str, set[str]] = {}
    for _, name, given in CALLS:
        passed.setdefault(name, set()).update(given)
    missing = {
        name: sorted(set(event.fields) - passed.get(name, set()))
        for name, event in NAMED.items()
        if name not in open_ended and set(event.fields) - passed.get(name, set())
    }
    assert missing == {}


def test_names_are_unique_and_well_formed() -> None:
    assert sorted(event.name for event in NAMED.values()) == sorted(events.ALL)
    for name, event in events.ALL.items():
        assert event.name == name
        assert name.replace(".", "").replace("_", "").isalpha()
        assert name == name.lower()
        assert event.level in LEVELS
        assert event.meaning
        assert len(set(event.fields)) == len(event.fields)
        # What the log itself puts into a line.
        assert not {"event", "level", "timestamp", "exception", "exc_info", "logger", "stack"} & set(event.fields)


def test_the_fields_of_the_job_in_its_context_are_not_those_of_its_own_events() -> None:
    for name in ("JOB_START", "JOB_DONE", "JOB_FAILED", "JOB_DEAD", "JOB_DISCARDED"):
        assert not set(NAMED[name].fields) & set(events.JOB_FIELDS)
