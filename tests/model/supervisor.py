"""The supervisor: reads reports, reaps, settles, requeues, looks, judges, beats, leaves."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.child import ChildSteps
from tests.model.scenarios import DEAF, TOLD
from tests.model.server import Step
from tests.model.world import Bag, Slot, Sup, World, minus, plus


class SupervisorSteps(ChildSteps):
    """What one supervisor may do next."""

    def slot_steps(self, frozen: Bag, s: int, i: int, slot: Slot, sup: Sup) -> Iterator[Step]:
        who = f"supervisor {s}"
        if slot.pipe:
            n = World(frozen)
            self.read(n.sups[s], n.sups[s].slots[i])
            yield f"{who} reads {'('.join(slot.pipe[0])}{')' if len(slot.pipe[0]) > 1 else ''} of slot {i}", False, n
        if slot.child == "dead" and not (slot.pipe and self.r.drain_pipe_first):
            n = World(frozen)
            self.reap(n, s, i)
            yield f"{who} reaps slot {i}", False, n
        if slot.child == "none" and sup.mode == "run":
            n = World(frozen)
            c = n.sups[s].slots[i]
            c.child, c.led = "boot", "fetch"
            yield f"{who} forks slot {i} anew", False, n
        if s == 0 and World(frozen).limits < self.sc.limits and sup.mode == "run" and slot.alive and slot.led == "run":
            for step, fault, n in self.kill(frozen, s, i, slot, f"{who} kills slot {i} for {slot.lp}", fault=False):
                n.limits += 1
                n.sups[s].slots[i].ours = slot.lp
                yield step, fault, n
        if sup.mode == "stop" and slot.alive:
            if not self.r.kill_before_requeue and slot.led == "run":
                n = World(frozen)
                self.run(n, ("requeue", s, slot.lp, False))
                yield f"{who} requeues the straggler's {slot.lp}", False, n
            yield from self.kill(frozen, s, i, slot, f"{who} kills the straggler in slot {i}", fault=False)
        if World(frozen).restarts < self.sc.restarts and sup.mode == "run" and slot.alive and not slot.told:
            n = World(frozen)
            n.restarts += 1
            n.sups[s].slots[i].told = TOLD
            yield f"{who} tells slot {i} to finish and exit", False, n

    def touch(self, sup: Sup, p: str) -> None:
        """A report or an action named this payload: whatever was known about it as a stray is void."""
        if self.r.forget_stray_on_report:
            sup.strays = tuple(q for q in sup.strays if q != p)
            sup.todo = tuple(q for q in sup.todo if q != p)
            for slot in sup.slots:
                slot.awaited = tuple(q for q in slot.awaited if q != p)
        if sup.snap is not None and self.r.ignore_touched_since_look:
            sup.touched = tuple(sorted({*sup.touched, p}))

    def read(self, sup: Sup, c: Slot) -> None:
        frame, c.pipe = c.pipe[0], c.pipe[1:]
        kind = frame[0]
        if kind == "READY":
            c.led = "fetch"
        elif kind == "IDLE":
            c.led, c.awaited = "fetch", ()
        elif kind == "STARTED":
            c.led, c.lp, c.awaited = "run", frame[1], ()
            self.touch(sup, frame[1])
            sup.orphans = tuple(o for o in sup.orphans if not (o[0] == frame[1] and o[2]))
        elif kind == "RETURNED":
            c.led, c.awaited = "fetch", ()
            self.touch(sup, frame[1])
            sup.orphans = plus(sup.orphans, (frame[1], False, False))
        elif kind == "PERFORMED":
            c.led, c.lo = "perf", frame[1]
        elif kind == "FINISHED":
            self.touch(sup, c.lp)
            if frame[1] == "unknown":
                self.remember(sup, c)
            elif frame[1] == "gone" and c.lo != "ok" and c.lp not in sup.doubted:
                sup.unsettled = plus(sup.unsettled, (c.lp, c.lo, "gone"))
            c.led, c.lp, c.lo = "fetch", "", ""
            if not self.r.finished_is_no_answer:
                c.awaited = ()

    def remember(self, sup: Sup, c: Slot) -> None:
        """This outcome may or may not be settled. With copies of these bytes about, nobody can tell whose it was."""
        sup.unsettled = plus(sup.unsettled, (c.lp, c.lo, "unknown"))
        if self.r.doubt_copies and self.copies[c.lp[0]] > 1:
            sup.doubted = tuple(sorted({*sup.doubted, c.lp}))

    def reap(self, n: World, s: int, i: int) -> None:
        sup, c = n.sups[s], n.sups[s].slots[i]
        sentenced = bool(c.ours) and c.ours is not True
        if c.led == "run" and sentenced and (c.ours == c.lp or not self.r.sentence_only_its_run):
            if c.ours != c.lp:
                n.fail(f"I6: {c.lp} pays for {c.ours}")
            self.touch(sup, c.lp)
            c.lo = "retry" if c.lp[1] == "0" else "dead"
            self.remember(sup, c)
        elif c.led == "run":
            self.touch(sup, c.lp)
            sup.orphans = plus(sup.orphans, (c.lp, not c.ours, False))
            if not c.ours and c.o != "was running" and c.told != DEAF:
                n.fail(f"I5: {c.lp} is blamed though its child had ended it")
        elif c.led == "perf":
            self.touch(sup, c.lp)
            self.remember(sup, c)
        sup.slots[i] = Slot(("none", "", "", 0, (), "none", "", "", (), False, False))

    def sup_steps(self, frozen: Bag, s: int, sup: Sup, w: World) -> Iterator[Step]:
        who = f"supervisor {s}"
        for item in dict.fromkeys(sup.unsettled):
            yield from self.settle(frozen, s, item)
        for item in dict.fromkeys(sup.orphans):
            if not item[2] or not self.r.retry_requeue_by_look:
                yield from self.requeue_orphan(frozen, s, item)
        yield from self.reconcile(frozen, s, sup, w)
        if w.stale[s] or not w.reg[s]:
            n = World(frozen)
            self.beat(n, s)
            yield f"{who} beats and registers anew", False, n
        if sup.mode == "run":
            for p in dict.fromkeys(w.retry):
                n = World(frozen)
                n.retry, n.q = minus(n.retry, p), (*n.q, p)
                yield f"{who} moves due {p} to its queue", False, n
            for item in dict.fromkeys(w.parked):
                n = World(frozen)
                n.parked = minus(n.parked, item)
                self.file(n, *item)
                if item[1] == "dead":
                    n.locks = tuple(j for j in n.locks if j != item[0][0])
                yield f"{who} files parked {item[0]}", False, n
            yield from self.recover(frozen, s, w)
            if s == 0 and w.stops < self.sc.stops:
                n = World(frozen)
                n.stops += 1
                n.sups[s].mode = "stop"
                yield f"{who} gets TERM", False, n
        elif all(slot.child == "none" for slot in sup.slots) and not any(o for o in sup.orphans if not o[2]):
            yield from self.farewell(frozen, s, sup)
        if self.may(w, "killsup"):
            n = World(frozen)
            n.faults += 1
            self.bury(n, s)
            yield f"{who} is KILLED", True, n
        if self.may(w, "cut") and not w.stale[s]:
            n = World(frozen)
            n.faults += 1
            n.stale[s] = n.sups[s].cut = True
            yield f"{who} is CUT OFF beyond the threshold", True, n

    def bury(self, n: World, s: int) -> None:
        """A supervisor is gone, and with it what only it knew."""
        sup = n.sups[s]
        n.performed = tuple(p for p in n.performed if p not in n.ip[s])
        sup.alive = False
        sup.unsettled = sup.orphans = sup.strays = sup.touched = sup.todo = sup.doubted = ()
        sup.snap = None
        for slot in sup.slots:
            slot.pipe, slot.led, slot.lp, slot.lo = (), "", "", ""
            slot.awaited, slot.taken, slot.ours = (), False, False
            if not slot.alive:
                slot.child, slot.p, slot.o = "none", "", ""

    def settle(self, frozen: Bag, s: int, item: Bag) -> Iterator[Step]:
        p, o, why = item
        force = why == "gone" and (self.r.fence_by_registration or not World(frozen).orph.count(p[0]))

        def done(n: World, reply: str) -> None:
            sup = n.sups[s]
            sup.unsettled = minus(sup.unsettled, item)
            self.touch(sup, p)
            if reply == "gone" and o != "ok" and why == "unknown" and not self.r.gone_after_unknown_is_settled:
                sup.unsettled = plus(sup.unsettled, (p, o, "gone"))

        label = f"supervisor {s} {'files vanished' if force else 'settles'} {p} ({o})"
        yield from self.send(frozen, s, ("settle", s, p, o, force), label, done, lambda n: None)
        w = World(frozen)
        if self.may(w, "refuse") and o != "ok" and w.sups[s].mode == "stop":
            n = World(frozen)
            n.faults += 1
            n.sups[s].unsettled = minus(n.sups[s].unsettled, item)
            self.run(n, ("park", s, p, o))
            yield f"supervisor {s}: filing {p} is REFUSED, it is parked", True, n

    def requeue_orphan(self, frozen: Bag, s: int, item: Bag) -> Iterator[Step]:
        p, blame, _ = item

        def done(n: World, _: object) -> None:
            n.sups[s].orphans = minus(n.sups[s].orphans, item)
            self.touch(n.sups[s], p)

        def lost(n: World) -> None:
            n.sups[s].orphans = plus(minus(n.sups[s].orphans, item), (p, blame, True))
            self.touch(n.sups[s], p)

        label = f"supervisor {s} requeues {p} of a dead child"
        yield from self.send(frozen, s, ("requeue", s, p, blame), label, done, lost)

    def reconcile(self, frozen: Bag, s: int, sup: Sup, w: World) -> Iterator[Step]:
        who = f"supervisor {s}"
        for p in sup.todo:
            blame = any(o[0] == p and o[1] for o in sup.orphans)

            def over(n: World, _: object = None, p: str = p) -> None:
                n.sups[s].todo = minus(n.sups[s].todo, p)
                n.sups[s].strays = tuple(q for q in n.sups[s].strays if q != p)

            def done(n: World, _: object = None, p: str = p) -> None:
                over(n, p=p)
                n.sups[s].orphans = tuple(o for o in n.sups[s].orphans if not (o[0] == p and o[2]))

            yield from self.send(
                frozen,
                s,
                ("requeue", s, p, blame),
                f"{who} requeues the stray {p}",
                done,
                over if self.r.look_voids_requeues else (lambda n: None),
            )
        if sup.snap is None:
            waiting = any(o[2] for o in sup.orphans)
            if sup.strays or waiting or any(w.ip[s].count(p) > sup.held(p) for p in set(w.ip[s])):
                n = World(frozen)
                n.sups[s].snap = n.ip[s]
                n.sups[s].touched = n.sups[s].todo = ()
                if self.r.look_voids_requeues:
                    n.limbo = tuple(c for c in n.limbo if not (c[0] == "requeue" and c[1] == s))
                if n.freeze() != frozen:
                    yield f"{who} looks at its list {list(w.ip[s])}", False, n
        elif not (self.r.drain_all_before_judging and any(slot.pipe for slot in sup.slots)):
            n = World(frozen)
            self.judge(n.sups[s])
            yield f"{who} judges what it saw", False, n

    def judge(self, sup: Sup) -> None:
        seen, touched = sup.snap, sup.touched
        sup.snap, sup.touched = None, ()
        extra = [
            p
            for p in sorted(set(seen))
            if p not in touched
            and seen.count(p) > sup.held(p)
            and not any(u[0] == p for u in sup.unsettled)
            and not any(o[0] == p and not o[2] for o in sup.orphans)
        ]
        gone = [p for p in sup.strays if p not in extra]
        for p in gone:
            sup.strays = minus(sup.strays, p)
            for slot in sup.slots:
                slot.awaited = tuple(q for q in slot.awaited if q != p)
        sup.orphans = tuple(o for o in sup.orphans if not o[2] or o[0] in seen)
        busy = ("run", "none") if self.r.performed_counts_as_fetching else ("run", "perf", "none")
        for p in extra:
            if p not in sup.strays:
                sup.strays = plus(sup.strays, p)
                for slot in sup.slots:
                    if slot.led not in busy:
                        slot.awaited = plus(slot.awaited, p)
            if not any(p in slot.awaited for slot in sup.slots):
                sup.todo = plus(sup.todo, p)

    def beat(self, n: World, s: int) -> None:
        """One script: was I registered, what is on my list; then registered and stamped anew."""
        sup = n.sups[s]
        if not n.reg[s] and self.r.fence_by_registration:
            mine = n.ip[s]
            sup.unsettled = tuple(u for u in sup.unsettled if u[0] in mine)
            sup.orphans = tuple(o for o in sup.orphans if o[0] in mine)
            sup.strays = sup.todo = sup.touched = ()
            sup.snap = None
            for slot in sup.slots:
                slot.awaited, slot.taken = (), bool(slot.p)
        n.reg[s], n.stale[s], sup.cut = True, False, False

    def farewell(self, frozen: Bag, s: int, sup: Sup) -> Iterator[Step]:
        filings = [u for u in sup.unsettled if u[1] != "ok"]
        if filings:
            return  # settle or park them first
        acks = tuple(u[0] for u in sup.unsettled)
        forget = not (sup.unclear and self.r.keep_registered)

        def done(n: World, _: object = None) -> None:
            self.bury(n, s)

        label = f"supervisor {s} requeues its list and leaves"
        yield from self.send(frozen, s, ("farewell", s, acks, forget), label, done, done)

    def recover(self, frozen: Bag, s: int, w: World) -> Iterator[Step]:
        for d, dead in enumerate(w.sups):
            if d == s or not w.reg[d]:
                continue
            if w.stale[d] and (not dead.alive or dead.cut or not self.r.second_look_at_dead):
                n = World(frozen)
                if dead.cut:  # a false death: unavoidable consequences are excused
                    n.excused = tuple(sorted({*n.excused, *("F" + p[0] for p in n.ip[d])}))
                n.performed = tuple(p for p in n.performed if p not in n.ip[d] or not dead.cut)
                self.run(n, ("recover", d, True))
                yield f"supervisor {s} recovers identity {d} by the threshold", False, n
            elif (
                self.sc.same_host
                and not dead.alive
                and w.ip[d]
                and not w.stale[d]
                and (dead.children_gone() or not self.r.wait_for_children)
            ):
                n = World(frozen)
                self.run(n, ("recover", d, not self.r.keep_registered))
                yield f"supervisor {s} recovers its predecessor {d} at once", False, n

    def afterlife(self, frozen: Bag, s: int, sup: Sup, w: World) -> Iterator[Step]:
        """The threshold passes: orphaned children are gone by then, and so is every command in limbo."""
        if not w.stale[s] and w.reg[s] and sup.children_gone():
            n = World(frozen)
            n.stale[s] = True
            n.limbo = tuple(c for c in n.limbo if c[1] != s)
            yield f"identity {s} passes the threshold", False, n
