"""The child: fetch, report, run, report, settle, report; and its death at any of these."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.scenarios import DEAF
from tests.model.server import ServerSteps, Step
from tests.model.world import Bag, Slot, Sup, World, plus


class ChildSteps(ServerSteps):
    """What one child may do next."""

    def child_steps(self, frozen: Bag, s: int, i: int, slot: Slot, sup: Sup) -> Iterator[Step]:
        who = f"child {s}.{i}"

        def at(n: World) -> Slot:
            return n.sups[s].slots[i]

        def say_frame(n: World, *frame: str) -> None:
            if n.sups[s].alive and at(n).told != DEAF:
                at(n).pipe += (frame,)

        def become(n: World, child: str, p: str = "", o: str = "") -> None:
            c = at(n)
            c.child, c.p, c.o = child, p, o

        leaving = slot.told or not sup.alive or sup.mode == "stop"
        n = World(frozen)
        if slot.child == "boot":
            say_frame(n, "READY")
            become(n, "idle")
            yield f"{who} writes READY", False, n
        elif slot.child == "idle" and leaving:
            become(n, "dead")
            yield f"{who} exits", False, n
        elif slot.child == "idle" and not (self.r.fetch_under_lease and n.stale[s]):

            def fetched(n: World, p: str) -> None:
                if p:
                    become(n, "got", p)
                elif (at(n).pipe or ((),))[-1] != ("IDLE",):
                    say_frame(n, "IDLE")

            def no_answer(n: World) -> None:
                say_frame(n, "IDLE")

            if n.q or slot.awaited or self.may(n, "limbo"):
                yield from self.send(frozen, s, ("fetch", s), f"{who} fetches", fetched, no_answer)
        elif slot.child == "got" and leaving:
            if sup.alive and self.r.parent_gives_back:
                say_frame(n, "RETURNED", slot.p)
                become(n, "dead")
                yield f"{who} reports RETURNED({slot.p}) and exits", False, n
            else:

                def left(n: World, _: object = None) -> None:
                    become(n, "dead")

                yield from self.send(frozen, s, ("requeue", s, slot.p, False), f"{who} gives {slot.p} back", left, left)
        elif slot.child == "got":
            say_frame(n, "STARTED", slot.p)
            become(n, "run", slot.p)
            self.check_start(n, slot.p)
            yield f"{who} writes STARTED({slot.p}) and runs it", False, n
        elif slot.child == "run":
            outcomes = ("ok", "retry" if slot.p[1] == "0" else "dead") if self.sc.failing else ("ok",)
            for o in outcomes:
                n = World(frozen)
                say_frame(n, "PERFORMED", o)
                become(n, "perf", slot.p, o)
                if sup.alive and slot.told != DEAF:
                    n.performed = tuple(sorted({*n.performed, slot.p}))
                if o == "ok":
                    n.won = tuple(sorted({*n.won, slot.p[0]}))
                yield f"{who} ends {slot.p} ({o}) and writes PERFORMED", False, n
        elif slot.child == "perf":
            release: Bag = ()
            if not self.r.release_in_settle and slot.o in ("ok", "dead"):
                release = (slot.p[0],)

            def settled(n: World, reply: Bag) -> None:
                result, old = reply[0], at(n).taken
                if result == "gone" and old and self.r.number_registrations:
                    result = "taken"
                become(n, "fin", reply[1], result + ("!" + release[0] if release else ""))
                at(n).taken = False

            def settled_alone(n: World, _: object = None) -> None:
                become(n, "dead")

            def unknown(n: World) -> None:
                become(n, "fin", "", "unknown")
                self.excuse_deaf(n, slot)

            if not sup.alive:
                yield from self.send(
                    frozen,
                    s,
                    ("settle", s, slot.p, slot.o),
                    f"{who} settles {slot.p} alone",
                    settled_alone,
                    settled_alone,
                )
            elif leaving:
                yield from self.send(
                    frozen,
                    s,
                    ("settle", s, slot.p, slot.o),
                    f"{who} settles {slot.p}",
                    lambda n, reply: settled(n, (reply, "")),
                    unknown,
                )
            else:
                yield from self.send(
                    frozen,
                    s,
                    ("settle_fetch", s, slot.p, slot.o),
                    f"{who} settles {slot.p} and fetches",
                    settled,
                    unknown,
                )
        elif slot.child == "fin":
            result, _, release = slot.o.partition("!")
            if release:
                self.run(n, ("release", release))
            say_frame(n, "FINISHED", result)
            become(n, "got" if slot.p else "idle", slot.p)
            yield f"{who} writes FINISHED({result})", False, n

        if self.may(World(frozen), "kill"):
            yield from self.kill(frozen, s, i, slot, f"{who} is KILLED", fault=True)
        if self.may(World(frozen), "deaf") and sup.alive and slot.told != DEAF:
            n = World(frozen)
            n.faults += 1
            at(n).told = DEAF
            yield f"report pipe of {who} BREAKS", True, n
        if not sup.alive and slot.child == "run":
            n = World(frozen)
            become(n, "dead")
            yield f"orphaned {who} exits hard at its deadline", False, n

    def kill(self, frozen: Bag, s: int, i: int, slot: Slot, label: str, fault: bool) -> Iterator[Step]:
        """A child dies; the command it had sent may be carried out later."""
        flying = {"idle": ("fetch", s), "perf": ("settle_fetch", s, slot.p, slot.o)}.get(slot.child)
        for limbo in (None, flying) if flying else (None,):
            n = World(frozen)
            n.faults += fault
            c = n.sups[s].slots[i]
            c.ours = not fault
            c.o = "was running" if slot.child == "run" else ""
            c.child, c.p = "dead", slot.p
            if flying:
                n.sups[s].unclear = True
                self.excuse_deaf(n, slot)
            if limbo:
                n.limbo = plus(n.limbo, limbo)
            yield label + (" with its command under way" if limbo else ""), fault, n

    def excuse_deaf(self, n: World, slot: Slot) -> None:
        """A child that can neither report its outcome nor be sure of its settlement: nobody knows it."""
        if slot.child == "perf" and slot.told == DEAF:
            n.excused = tuple(sorted({*n.excused, "L" + slot.p[0]}))

    def check_start(self, n: World, p: str) -> None:
        job = p[0]
        running = sum(c.alive and c.child == "run" and c.p[0] == job for sup in n.sups for c in sup.slots)
        if running > self.copies[job] and not {"F" + job, "L" + job} & set(n.excused):
            n.fail(f"I3: {job} runs twice at the same time")
        if p in n.performed and self.copies[job] == 1 and not {"F" + job, "L" + job} & set(n.excused):
            n.fail(f"I2: {p} is run again after its PERFORMED was written")
