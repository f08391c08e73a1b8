"""The server: each command is one atomic step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.model.scenarios import MAX_ORPHANINGS, Rules, Scenario
from tests.model.world import Bag, World, following, minus, plus

Step = tuple[str, bool, World]
"""What happens, whether it is a fault, and the world afterwards."""


def say(cmd: Bag) -> str:
    return f"{cmd[0]}({', '.join(str(x) for x in cmd[1:])})"


class ServerSteps:
    """Commands, and sending them."""

    def __init__(self, sc: Scenario, rules: Rules) -> None:
        self.sc, self.r = sc, rules
        self.kinds = sc.kinds.split()
        self.copies = {j: sc.jobs.count(j) for j in sc.jobs}

    def run(self, w: World, cmd: Bag) -> object:
        """Carry a command out; its reply."""
        if "lossy" in self.kinds:
            w.before = w.redis()
        reply = getattr(self, "redis_" + cmd[0])(w, *cmd[1:])
        if "lossy" in self.kinds and w.before == w.redis():
            w.before = None
        return reply

    def redis_fetch(self, w: World, s: int) -> Any:
        """BLMOVE: no check is possible here."""
        if not w.q:
            return ""
        p, w.q = w.q[0], w.q[1:]
        w.ip[s] = plus(w.ip[s], p)
        return p

    def redis_settle(self, w: World, s: int, p: str, o: str, force: bool = False) -> str:
        """File if it failed, remove the entry, release the locks: only if the entry is there (or forced)."""
        there = p in w.ip[s]
        if there or force:
            if there:
                w.ip[s] = minus(w.ip[s], p)
            self.file(w, p, o)
            if o == "ok":
                w.settled = tuple(sorted({*w.settled, p[0]}))
            w.orph = tuple(j for j in w.orph if j != p[0])
        may_release = there or force or not self.r.release_only_if_removed
        if o in ("ok", "dead") and self.r.release_in_settle and may_release:
            w.locks = tuple(j for j in w.locks if j != p[0])
        if there:
            return "settled"
        return "gone" if w.reg[s] or not self.r.fence_by_registration else "taken"

    def redis_settle_fetch(self, w: World, s: int, p: str, o: str) -> Bag:
        result = self.redis_settle(w, s, p, o)
        may = w.reg[s] or not self.r.fetch_under_lease
        return result, self.redis_fetch(w, s) if may else ""

    def redis_requeue(self, w: World, s: int, p: str, blame: bool) -> None:
        if p not in w.ip[s]:
            return
        w.ip[s] = minus(w.ip[s], p)
        self.put_back(w, p, blame)

    def redis_release(self, w: World, job: str) -> None:
        w.locks = tuple(j for j in w.locks if j != job)

    def redis_park(self, w: World, s: int, p: str, o: str) -> None:
        if p in w.ip[s]:
            w.ip[s] = minus(w.ip[s], p)
            w.parked = plus(w.parked, (p, o))

    def redis_farewell(self, w: World, s: int, acks: Bag, forget: bool) -> None:
        """The last script of a stop: drop what only lacks its ack, requeue the rest, forget the identity."""
        for p in acks:
            self.redis_settle(w, s, p, "ok")
        for p in w.ip[s]:
            self.put_back(w, p, False)
        w.ip[s] = ()
        if forget:
            w.reg[s] = False

    def redis_recover(self, w: World, s: int, forget: bool) -> None:
        for p in w.ip[s]:
            self.put_back(w, p, True)
        w.ip[s] = ()
        if forget:
            w.reg[s] = False

    def put_back(self, w: World, p: str, blame: bool) -> None:
        if blame:
            w.orph = plus(w.orph, p[0])
        if w.orph.count(p[0]) > MAX_ORPHANINGS:
            w.dead = plus(w.dead, p)
            w.locks = tuple(j for j in w.locks if j != p[0])
            w.orph = tuple(j for j in w.orph if j != p[0])
        else:
            w.q = (p, *w.q)

    def file(self, w: World, p: str, o: str) -> None:
        if o == "retry" and following(p) not in w.retry:
            w.retry = plus(w.retry, following(p))
        elif o == "dead" and p not in w.dead:
            w.dead = plus(w.dead, p)

    def may(self, w: World, kind: str) -> bool:
        return kind in self.kinds and w.faults < self.sc.faults

    def send(
        self, frozen: Bag, s: int, cmd: Bag, label: str, done: Callable[..., None], lost: Callable[..., None]
    ) -> Iterator[Step]:
        """One command: carried out and answered, or (a fault) sent into limbo."""
        n = World(frozen)
        done(n, self.run(n, cmd))
        yield label, False, n
        n = World(frozen)
        if self.may(n, "limbo"):
            n.faults += 1
            n.limbo = plus(n.limbo, cmd)
            n.sups[s].unclear = True
            lost(n)
            yield f"{label}: connection LOST", True, n
