"""C47: arguments arrive as they were given, or are refused where they were given."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from cogworkerd import App
from tests.support import Client, Daemon, Server, eventually

Start = Callable[..., Daemon]

VALUES: list[Any] = [
    2**53 + 1,
    130775545883395173,
    -(10**30),
    1e16,
    0.1,
    -0.0,
    5e-324,
    "",
    "\u0000",
    "é\U0001f600",
    True,
    None,
    [],
    {"k": {"k": 1}},
]


def test_c47_values_survive_the_schedule_a_failure_and_a_retry(
    daemon: Start, server: Server, client: Client, witness: Client
) -> None:
    app = App(server.url)

    @app.job(name="numbers", retry=3)
    def numbers(*args: Any) -> None: ...

    running = daemon("-c", "2", target="case_jobs:app").ready()
    numbers.enqueue_in(1, *VALUES)
    assert client.zcard("cogworker:schedule") == 1
    assert eventually(lambda: witness.get("t:numbers"), 10) == repr(tuple(VALUES))
    app.client.close()
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "args[0]: nan"),
        ([math.inf], "args[0][0]: inf"),
        ({"when": datetime.now()}, 'args[0]["when"]: datetime'),
        (b"x", "args[0]: bytes"),
        ({1}, "args[0]: set"),
        ({1: "a"}, "args[0]: a dict's key"),
        ({None: 1}, "args[0]: a dict's key"),
        (Decimal("1"), "args[0]: Decimal"),
        (object(), "args[0]: object"),
        (10**5000, "args[0]: an integer"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_c47_what_is_not_json_is_refused_in_the_caller_and_leaves_nothing(
    value: Any, path: str, server: Server, client: Client
) -> None:
    app = App(server.url)

    @app.job(name="numbers")
    def numbers(*args: Any) -> None: ...

    for enqueue in (numbers.enqueue, lambda given: numbers.enqueue_in(1, given), numbers.call):
        with pytest.raises(TypeError) as refused:
            enqueue(value)
        assert path in str(refused.value)
    with pytest.raises(TypeError) as refused:
        app.push("numbers", [value])
    assert path in str(refused.value)
    assert client.keys("*") == []
