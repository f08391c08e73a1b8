"""The model as a whole: all steps of a scenario, and the invariants."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.server import Step, say
from tests.model.supervisor import SupervisorSteps
from tests.model.world import Bag, World, minus


class Model(SupervisorSteps):
    """All steps of one scenario under one set of rules."""

    def steps(self, frozen: Bag) -> Iterator[Step]:
        """(label, is it a fault, next world) for every step that is possible."""
        w = World(frozen)
        for s, sup in enumerate(w.sups):
            for i, slot in enumerate(sup.slots):
                if slot.alive:
                    yield from self.child_steps(frozen, s, i, slot, sup)
                if sup.alive:
                    yield from self.slot_steps(frozen, s, i, slot, sup)
            if sup.alive:
                yield from self.sup_steps(frozen, s, sup, w)
            else:
                yield from self.afterlife(frozen, s, sup, w)
        for cmd in dict.fromkeys(w.limbo):
            n = World(frozen)
            n.limbo = minus(n.limbo, cmd)
            self.run(n, cmd)
            yield f"server carries out the late {say(cmd)}", False, n
        if self.may(w, "lossy") and w.before:
            n = World(frozen)
            n.faults += 1
            n.excused = tuple(sorted({*n.excused, *("L" + j for j in self.copies)}))
            n.load(w.before)
            n.before = None
            yield "server LOSES its last write", True, n
        if self.may(w, "outage"):
            n = World(frozen)
            n.faults += 1
            n.stale = [True] * len(n.sups)
            yield "server AWAY for longer than the threshold: all stamps are old", True, n

    def check(self, w: World) -> str:
        if w.bad:
            return w.bad
        for job, copies in self.copies.items():
            lossy = "L" + job in w.excused
            reachable = [w.q, w.retry, w.dead, [p for p, _ in w.parked]]
            reachable += [w.ip[s] for s, sup in enumerate(w.sups) if w.reg[s] or sup.alive]
            here = sum(p[0] == job for entries in reachable for p in entries)
            forced = any(u[0][0] == job and u[2] == "gone" for sup in w.sups for u in sup.unsettled)
            if not here and job not in w.won and not forced and not lossy:
                return f"I1: {job} is lost"
            if w.entries(job) > copies and not lossy:
                return f"I4: {job} has {w.entries(job)} entries"
            if w.entries(job) and job in w.settled and copies == 1 and not lossy:
                return f"I4: {job} is back although its success was settled"
            alive = w.entries(job) > sum(p[0] == job for p in w.dead)
            if alive and job not in w.locks and copies == 1 and not lossy:
                return f"I6: {job} is alive but its lock is free"
        if self.rests(w):
            return self.check_rest(w)
        return ""

    def check_rest(self, w: World) -> str:
        for job in self.copies:
            if not w.entries(job) and job not in w.won:
                return f"I1: {job} is lost (at rest)"
            over = not any(p[0] == job for p in (*w.q, *w.retry, *(p for ip in w.ip for p in ip)))
            if over and job in w.locks and not any(p[0] == job for p, _ in w.parked):
                return f"I6: {job} is over but its lock is held"
        return ""

    def rests(self, w: World) -> bool:
        """Nothing is left to do for anybody who lives."""
        running = [s for s, sup in enumerate(w.sups) if sup.alive]
        for s, sup in enumerate(w.sups):
            if sup.alive and (
                sup.mode == "stop" or sup.unsettled or sup.orphans or w.ip[s] or w.stale[s] or not w.reg[s]
            ):
                return False
            quiet = ("idle",) if sup.alive else ("none", "dead")
            if any(slot.pipe or slot.child not in quiet for slot in sup.slots):
                return False
            if not sup.alive and running and w.ip[s] and w.reg[s]:
                return False
        return not running or not (w.q or w.retry or w.parked)
