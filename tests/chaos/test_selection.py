"""A few points of the enumeration that `python -m tests.chaos` makes: most faults and each role, in a short time."""

from __future__ import annotations

import pytest

from tests.chaos.campaign import told
from tests.chaos.faults import CHILD, CLIENT, READ, REPORT, SUPERVISOR, Point, Strike
from tests.chaos.scenarios import run
from tests.support import Server

POINTS = (
    # Around the settlement of a job: the numbers are those of the scenario's steps, which `--count` tells.
    Point("success", Strike(CHILD, "lost", 5)),
    Point("dead", Strike(CHILD, "unanswered", 7)),
    Point("retry", Strike(CHILD, "later", 7)),
    Point("unparseable", Strike(CHILD, "readonly", 5)),
    Point("two-slots", Strike(CHILD, "kill-child-other", 9)),
    Point("success", Strike(REPORT, "kill-child-after", 4)),
    Point("success", Strike(REPORT, "kill-child-half", 4)),
    Point("dead", Strike(REPORT, "deaf", 4)),
    Point("orphan", Strike(READ, "kill-child-before", 4)),
    Point("unsettled", Strike(READ, "kill-supervisor-after", 3)),
    # The supervisor: moving a due job, recovering, requeueing, leaving, starting.
    Point("schedule", Strike(SUPERVISOR, "late", 4)),
    Point("recovery", Strike(SUPERVISOR, "oom", 5)),
    Point("orphan", Strike(SUPERVISOR, "kill-supervisor-before", 3)),
    Point("stop-in-time", Strike(SUPERVISOR, "unanswered", 3)),
    Point("boot", Strike(SUPERVISOR, "lost", 40)),
    # A slot whose errand dies, one whose run dies; a unique job whose push is not answered, or comes late.
    Point("periodic-middleware", Strike(CLIENT, "kill-client-after", 2)),
    Point("periodic", Strike(REPORT, "kill-child-after", 4)),
    Point("unique", Strike(CLIENT, "unanswered", 1)),
    Point("unique", Strike(CLIENT, "late", 1)),
)


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_one_fault_at_one_step_breaks_nothing(server: Server, point: Point) -> None:
    result = run(server.socket, point)
    assert result.struck, "the fault did not come: the scenario has fewer steps"
    assert not result.wrong, told(result)
