"""The situations that faults are tried in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cogworkerd.store import scripts

from .faults import Point
from .jobs import KEYS, Job, failed_before, job, unparseable
from .stage import Result, Stage
from .watch import Violated


@dataclass(frozen=True)
class Scenario:
    """One situation.

    Attributes:
        play: starts the daemon, arms, and makes the situation; the end of it is the same for all.
        stops: the daemon is told to stop as part of it.
    """

    name: str
    play: Callable[[Stage], None]
    slots: int = 1
    stops: bool = False
    shutdown_timeout: float = 5.0


def run(server: Path, point: Point) -> Result:
    """Play a scenario with one fault, or none, on the server of this socket."""
    scenario = SCENARIOS[point.scenario]
    began = time.monotonic()
    with Stage(server, point, scenario.slots, _flags(scenario)) as stage:
        broken = ""
        try:
            scenario.play(stage)
            stage.finish(scenario.stops)
        except Violated as violated:
            broken = str(violated)
        return stage.judge(point, time.monotonic() - began, broken)


def _pushed(*makes: Callable[[], Job]) -> Callable[[Stage], None]:
    """Jobs that come while every child waits."""

    def play(stage: Stage) -> None:
        stage.start_ready()
        stage.arm_between_waits()
        stage.push(*[make() for make in makes])

    return play


def _due(key: str, make: Callable[[], Job]) -> Callable[[Stage], None]:
    """A job that the supervisor has to move to its queue."""

    def play(stage: Stage) -> None:
        stage.start_ready()
        stage.arm_between_waits()
        stage.schedule(key, make())

    return play


def _orphan(stage: Stage) -> None:
    """A child dies in the middle of its job."""
    stage.start_ready()
    stage.push(_long_once())
    stage.until_started()
    stage.arm()
    stage.kill_running_child()


def _doomed(make: Callable[[], Job]) -> Callable[[Stage], None]:
    """A child dies with an outcome that is reported and not settled."""

    def play(stage: Stage) -> None:
        stage.let_children_die()
        stage.start_ready()
        stage.arm_between_waits()
        stage.push(make())

    return play


def _recover(stage: Stage) -> None:
    """A daemon of this machine is dead, with a job; the daemon under test takes it over."""
    stage.start_predecessor()
    stage.push(_long_once())
    stage.until_started()
    stage.kill_predecessor()
    stage.arm_at(scripts.BEAT)
    stage.start()


def _stop(make: Callable[[], Job]) -> Callable[[Stage], None]:
    """The order to stop comes while a job runs."""

    def play(stage: Stage) -> None:
        stage.start_ready()
        stage.push(make())
        stage.until_started()
        stage.arm()
        stage.terminate()

    return play


def _stop_waiting(stage: Stage) -> None:
    """The order to stop comes while every child waits, and a job when the daemon has left."""
    stage.start_ready()
    stage.arm_between_waits()
    stage.terminate()
    stage.until_exit()
    stage.push(_short())


def _boot(stage: Stage) -> None:
    """Every step from the first connection on, with a job that waits already."""
    stage.push(_short())
    stage.arm()
    stage.start()


def _periodic(middleware: bool) -> Callable[[Stage], None]:
    """Two slots of an until_executed entry come; the second one while the run of the first is at work."""

    def play(stage: Stage) -> None:
        stage.declare_slots(middleware)
        stage.start_ready()
        stage.until_slots()
        stage.arm()

    return play


def _unique(stage: Stage) -> None:
    """An application pushes a unique job, and once more while it runs."""
    stage.start_ready()
    stage.arm_between_waits()
    stage.push_unique()


def _short(seconds: float = 0.1) -> Job:
    return job("short", seconds)


def _longer() -> Job:
    """Long enough for a stop to find it at work."""
    return _short(0.3)


def _instant() -> Job:
    """Over before the supervisor reads that it has started."""
    return _short(0.0)


def _shown() -> Job:
    """Long enough for the supervisor to poll and to publish what runs."""
    return _short(1.2)


def _shown_too() -> Job:
    """As `_shown`, with a lock of its own."""
    return _short(1.25)


def _slow() -> Job:
    """Still at work when a command in limbo is carried out."""
    return _short(0.5)


def _slow_too() -> Job:
    """As `_slow`, with a lock of its own."""
    return _short(0.55)


def _flaky() -> Job:
    return job("flaky", failed=1)


def _fatal() -> Job:
    return job("fatal", retry=False, dead=True, failed=1)


def _flags(scenario: Scenario) -> tuple[str, ...]:
    return "--shutdown-timeout", str(scenario.shutdown_timeout), "--timeout-grace", "0.2"


def _overdue() -> Job:
    return job("overdue", retry=False, dead=True, failed=1, timeout=0.2)


def _long_once() -> Job:
    return job("long_once")


_ALL = (
    Scenario("success", _pushed(_instant)),
    Scenario("backlog", _pushed(_slow, _slow_too, _short)),
    Scenario("retry", _pushed(_flaky)),
    Scenario("dead", _pushed(_fatal)),
    Scenario("unparseable", _pushed(unparseable)),
    Scenario("schedule", _due(KEYS.schedule, _short)),
    Scenario("due-retry", _due(KEYS.retry, lambda: failed_before("short", 0.1))),
    Scenario("orphan", _orphan),
    Scenario("unsettled", _doomed(lambda: job("doomed"))),
    Scenario("unsettled-retry", _doomed(lambda: job("flaky", True, failed=1))),
    Scenario("recovery", _recover),
    Scenario("stop-interrupted", _stop(_long_once), stops=True, shutdown_timeout=0.3),
    Scenario("stop-killed", _stop(lambda: job("stubborn_once")), stops=True, shutdown_timeout=0.3),
    Scenario("timeout", _pushed(_overdue)),
    Scenario("stop-in-time", _stop(_longer), stops=True),
    Scenario("stop-waiting", _stop_waiting, stops=True),
    Scenario("boot", _boot),
    Scenario("periodic", _periodic(middleware=False)),
    Scenario("periodic-middleware", _periodic(middleware=True)),
    Scenario("unique", _unique),
    Scenario("two-slots", _pushed(_shown, _shown_too), slots=2),
)
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
