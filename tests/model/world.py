"""One state of everything: queue, children, pipes, ledgers, server. Frozen into tuples, so that it can be a key."""

from __future__ import annotations

from typing import Any

from tests.model.scenarios import Scenario

Bag = tuple[Any, ...]


class Slot:
    """A slot: the child, its pipe, and what the ledger believes about it."""

    __slots__ = ("awaited", "child", "led", "lo", "lp", "o", "ours", "p", "pipe", "taken", "told")

    def __init__(self, frozen: Bag = ("idle", "", "", 0, (), "fetch", "", "", (), False, False)) -> None:
        (
            self.child,
            self.p,
            self.o,
            self.told,
            self.pipe,
            self.led,
            self.lp,
            self.lo,
            self.awaited,
            self.taken,
            self.ours,
        ) = frozen

    def freeze(self) -> Bag:
        return (
            self.child,
            self.p,
            self.o,
            self.told,
            self.pipe,
            self.led,
            self.lp,
            self.lo,
            self.awaited,
            self.taken,
            self.ours,
        )

    @property
    def alive(self) -> bool:
        return self.child not in ("dead", "none")


class Sup:
    """A supervisor: its phase and its ledger's tables."""

    __slots__ = (
        "alive",
        "cut",
        "doubted",
        "mode",
        "orphans",
        "slots",
        "snap",
        "strays",
        "todo",
        "touched",
        "unclear",
        "unsettled",
    )

    def __init__(self, frozen: Bag) -> None:
        (
            self.alive,
            self.mode,
            self.cut,
            self.unclear,
            self.unsettled,
            self.orphans,
            self.strays,
            self.snap,
            self.touched,
            self.todo,
            self.doubted,
            slots,
        ) = frozen
        self.slots = [Slot(s) for s in slots]

    def freeze(self) -> Bag:
        return (
            self.alive,
            self.mode,
            self.cut,
            self.unclear,
            self.unsettled,
            self.orphans,
            self.strays,
            self.snap,
            self.touched,
            self.todo,
            self.doubted,
            tuple(sorted(s.freeze() for s in self.slots)),
        )

    def held(self, p: str) -> int:
        return sum(s.led in ("run", "perf") and s.lp == p for s in self.slots)

    def children_gone(self) -> bool:
        return not any(s.alive for s in self.slots)


def plus(bag: Bag, item: object) -> Bag:
    return tuple(sorted((*bag, item)))


def minus(bag: Bag, item: object) -> Bag:
    i = bag.index(item)
    return bag[:i] + bag[i + 1 :]


class World:
    """One state. Payloads are written "a0": job a, no failure so far; its bytes change when it is filed.

    Redis: q (next one first), retry, dead, parked, orph, locks, ip and reg and stale by supervisor.
    For the invariants: performed (PERFORMED written, parent alive), won (some run succeeded), settled (a
    success took its entry off), excused ("Fa": false death of a's owner, "La": a's state was lost).
    """

    __slots__ = (
        "bad",
        "before",
        "dead",
        "excused",
        "faults",
        "ip",
        "limbo",
        "limits",
        "locks",
        "orph",
        "parked",
        "performed",
        "q",
        "reg",
        "restarts",
        "retry",
        "settled",
        "stale",
        "stops",
        "sups",
        "won",
    )

    def __init__(self, frozen: Bag) -> None:
        (
            redis,
            sups,
            self.limbo,
            self.faults,
            self.stops,
            self.restarts,
            self.limits,
            self.performed,
            self.won,
            self.settled,
            self.excused,
            self.before,
        ) = frozen
        self.load(redis)
        self.sups = [Sup(s) for s in sups]
        self.bad = ""

    def load(self, redis: Bag) -> None:
        self.q, self.retry, self.dead, self.parked, self.orph, self.locks, ip, reg, stale = redis
        self.ip, self.reg, self.stale = list(ip), list(reg), list(stale)

    def redis(self) -> Bag:
        return (
            self.q,
            self.retry,
            self.dead,
            self.parked,
            self.orph,
            self.locks,
            tuple(self.ip),
            tuple(self.reg),
            tuple(self.stale),
        )

    def freeze(self) -> Bag:
        return (
            self.redis(),
            tuple(s.freeze() for s in self.sups),
            self.limbo,
            self.faults,
            self.stops,
            self.restarts,
            self.limits,
            self.performed,
            self.won,
            self.settled,
            self.excused,
            self.before,
        )

    def entries(self, job: str) -> int:
        lists = [self.q, self.retry, self.dead, [p for p, _ in self.parked], *self.ip]
        return sum(p[0] == job for entries in lists for p in entries)

    def fail(self, why: str) -> None:
        self.bad = self.bad or why


def initial(sc: Scenario) -> World:
    slot = Slot().freeze()
    sup = (True, "run", False, False, (), (), (), None, (), (), (), (slot,) * sc.slots)
    n = sc.supervisors
    redis = (
        tuple(j + "0" for j in sc.jobs),
        (),
        (),
        (),
        (),
        tuple(sorted(set(sc.jobs))),
        ((),) * n,
        (True,) * n,
        (False,) * n,
    )
    return World((redis, (sup,) * n, (), 0, 0, 0, 0, (), (), (), (), None))


def following(p: str) -> str:
    return p[0] + str(int(p[1]) + 1)
