"""All points: which there are, several runs at once, and the table at the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support import Server

from .faults import CLIENT, FAULTS, Point, Strike, fits
from .proxy import Step
from .scenarios import SCENARIOS, run
from .stage import Result

MOST_BEYOND = 2
"""How many steps more than were counted are tried: a run with a fault may have more of them. The second one only where
the fault came at the first."""

_server = Path()


@dataclass(frozen=True)
class Choice:
    """What is to be tried; None is everything.

    Attributes:
        at: the number of one step; then nothing is counted first.
        every: only each K-th step.
        count_only: try nothing.
    """

    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    role: str | None = None
    fault: str | None = None
    at: int | None = None
    every: int = 1
    count_only: bool = False

    def kinds(self) -> Iterator[tuple[str, str]]:
        for role, faults in FAULTS.items():
            for fault in faults:
                if self.role in (None, role) and self.fault in (None, fault):
                    yield role, fault


@dataclass
class Row:
    """One line of the table."""

    tried: int = 0
    struck: int = 0
    violations: int = 0
    seconds: float = 0.0


@dataclass
class Campaign:
    """Runs points and tells what came of them.

    Args:
        workers: how many runs at once; each has a server of its own.
        keep_going: go on after a violation.
    """

    choice: Choice
    workers: int
    kind: str
    keep_going: bool
    rows: dict[str, Row] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _counted: dict[str, dict[str, int]] = field(default_factory=dict)

    def run(self) -> bool:
        """Returns: whether there was no violation."""
        context = multiprocessing.get_context("spawn")
        with contextlib.ExitStack() as stack:
            _cache_bytecode(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-pyc-")))
            sockets: Any = context.SimpleQueue()
            for _ in range(self.workers):
                server = Server(self.kind)
                stack.callback(server.close)
                sockets.put(server.socket)
            pool = ProcessPoolExecutor(self.workers, context, _take_server, (sockets,))
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            self._run_all(pool)
        self._tell_table()
        return not any(row.violations for row in self.rows.values())

    def _run_all(self, pool: ProcessPoolExecutor) -> None:
        first = self._counted_points(pool) if self.choice.at is None else self._chosen()
        pending = {pool.submit(_run_here, point) for point in first}
        expected = len(pending)
        done = 0
        while pending:
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                more = self._note(future.result())
                pending |= {pool.submit(_run_here, point) for point in more}
                expected += len(more)
                done += 1
            self._tell_progress(done, expected)
            if not self.keep_going and any(row.violations for row in self.rows.values()):
                return

    def _counted_points(self, pool: ProcessPoolExecutor) -> list[Point]:
        """What counting leads to. One scenario after the other: a busy machine makes runs longer, and so the steps
        that only time brings (polls, beats) more."""
        found = []
        for name in self.choice.scenarios:
            result = pool.submit(_run_here, Point(name)).result()
            found += self._note(result)
        return [] if self.choice.count_only else found

    def _chosen(self) -> list[Point]:
        assert self.choice.at is not None
        return [
            Point(name, Strike(role, fault, self.choice.at))
            for name in self.choice.scenarios
            for role, fault in self.choice.kinds()
        ]

    def _note(self, result: Result) -> list[Point]:
        """Note a result; returns the points that follow from it."""
        row = self.rows.setdefault(result.point.scenario, Row())
        row.seconds += result.seconds
        row.tried += result.point.strike is not None
        row.struck += bool(result.struck)
        if result.wrong:
            row.violations += 1
            _say(told(result))
        strike, name = result.point.strike, result.point.scenario
        if strike is None:
            self._counted[name] = {role: len(steps) for role, steps in result.steps.items()}
            _say(f"{name}: {', '.join(f'{count} {role}' for role, count in self._counted[name].items())}")
            return points_of(result, self.choice)
        beyond = strike.at - self._counted.get(name, {}).get(strike.role, strike.at)
        if result.struck and 0 < beyond < MOST_BEYOND:
            return [Point(name, replace(strike, at=strike.at + 1))]
        return []

    def _tell_progress(self, done: int, expected: int) -> None:
        violations = sum(row.violations for row in self.rows.values())
        passed = time.monotonic() - self.began
        line = f"{done} of {expected} runs, {violations} with violations, {passed:.0f} s"
        if sys.stdout.isatty():
            print(f"\r{line}\033[K", end="", flush=True)
        elif done % 100 == 0:
            _say(line)

    def _tell_table(self) -> None:
        _say(f"\n{'scenario':20} {'points':>7} {'struck':>7} {'violations':>11} {'seconds':>8}")
        total = Row()
        for name, row in self.rows.items():
            _say(_row(name, row))
            total.tried += row.tried
            total.struck += row.struck
            total.violations += row.violations
            total.seconds += row.seconds
        _say(_row("all", total))
        _say(f"{time.monotonic() - self.began:.0f} s in all")


def points_of(counted: Result, choice: Choice) -> list[Point]:
    """Every point that a run without a fault has shown, and the first one beyond its end."""
    return [
        Point(counted.point.scenario, Strike(role, fault, number))
        for role, fault in choice.kinds()
        if fault != "kill-child-other" or SCENARIOS[counted.point.scenario].slots > 1
        if role != CLIENT or counted.steps[role]
        for number in _numbers(counted.steps[role], fault, choice.every)
    ]


def _numbers(steps: list[Step], fault: str, every: int) -> Iterable[int]:
    """The steps that the fault can hit: only a write is refused, and a child can only be killed while there is one."""
    for number, step in list(enumerate(steps, 1))[::every]:
        if step.name and not fits(fault, step.name, step.transaction):
            continue
        if step.child or not fault.startswith("kill-child"):
            yield number
    yield len(steps) + 1


def told(result: Result) -> str:
    """A violation, with everything that is needed to look for its cause."""
    lines = [f"\nVIOLATION: {result.point}", f"at: {result.struck or '(the fault did not come)'}"]
    lines += [f"wrong: {sentence}" for sentence in result.wrong]
    return "\n".join([*lines, result.tail, f"again: {result.point.repeat}"])


def _row(name: str, row: Row) -> str:
    return f"{name:20} {row.tried:7} {row.struck:7} {row.violations:11} {row.seconds:8.0f}"


def _say(text: str) -> None:
    print(f"\r\033[K{text}" if sys.stdout.isatty() else text, flush=True)


def _cache_bytecode(folder: str) -> None:
    """Some thousand daemons are started: none is to compile its modules again, even where the environment says so."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = folder


def _take_server(sockets: Any) -> None:
    """In a worker: the server that is its own."""
    global _server
    _server = sockets.get()


def _run_here(point: Point) -> Result:
    return run(_server, point)
