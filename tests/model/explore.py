"""Breadth-first search over every interleaving."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from tests.model.model import Model
from tests.model.scenarios import Rules, Scenario
from tests.model.world import World, initial


@dataclass
class Result:
    states: int
    steps: int
    seconds: float
    complete: bool
    violation: str = ""
    trace: tuple[str, ...] = ()


ALL_ON = Rules()


def explore(sc: Scenario, rules: Rules = ALL_ON, limit: int = 2_000_000, progress: bool = True) -> Result:
    """Breadth-first search; the first violation found is a shortest one. Then I7 on the whole graph."""
    model, began = Model(sc, rules), time.monotonic()
    start = initial(sc).freeze()
    number = {start: 0}
    parent: list[tuple[int, str]] = [(-1, "")]
    back: list[list[int]] = [[]]  # who leads here without a fault
    resting = [model.rests(World(start))]
    todo, steps = deque([start]), 0

    def result(complete: bool, violation: str = "", trace: tuple[str, ...] = ()) -> Result:
        return Result(len(number), steps, time.monotonic() - began, complete, violation, trace)

    def trace(k: int) -> list[str]:
        lines = []
        while k > 0:
            k, label = parent[k]
            lines.append(label)
        return lines[::-1]

    while todo:
        state = todo.popleft()
        here = number[state]
        for label, fault, world in model.steps(state):
            steps += 1
            key = world.freeze()
            k = number.get(key)
            if k is None:
                bad = model.check(world)
                if bad:
                    return result(False, bad, (*trace(here), label))
                k = number[key] = len(number)
                parent.append((here, label))
                back.append([])
                resting.append(model.rests(world))
                todo.append(key)
            elif world.bad:
                return result(False, world.bad, (*trace(here), label))
            if progress and not fault:
                back[k].append(here)
        if len(number) > limit:
            return result(False)
    if progress:
        good, fringe = list(resting), [k for k, rest in enumerate(resting) if rest]
        while fringe:
            for k in back[fringe.pop()]:
                if not good[k]:
                    good[k] = True
                    fringe.append(k)
        if not all(good):
            return result(True, "I7: it never comes to rest from here", tuple(trace(good.index(False))))
    return result(True)
