"""The faults: which there are, whom they hit, and what undoes them."""

from __future__ import annotations

import heapq
import itertools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from tests.chaos.soak_findings import Findings
from tests.chaos.soak_fleet import Fleet, Member, signal_to
from tests.chaos.soak_record import Record, clock_text
from tests.chaos.soak_server import KEYS, QUEUES, JobServer

Action = Callable[[], bool]

LONGEST = 8.0
"""Seconds; no suspension and no refusal lasts longer. A daemon that is cut off for its presence' 60 s is taken for dead
and its jobs run twice: that is no fault of its own."""

CRASH = "server crashed"
_TRY_AGAIN = 0.3
_CALM = 6.0
_MOST_TROUBLE = 20.0


class Agenda:
    """What is to be done later. An action that says False is tried again soon."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Action]] = []
        self._count = itertools.count()

    def later(self, seconds: float, action: Action) -> None:
        heapq.heappush(self._waiting, (time.monotonic() + seconds, next(self._count), action))

    def run_due(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, action = heapq.heappop(self._waiting)
            if not action():
                self.later(_TRY_AGAIN, action)

    def run_all(self, within: float) -> bool:
        """Do everything now, whatever its time.

        Returns:
            Whether all of it was done within so many seconds.
        """
        deadline = time.monotonic() + within
        self._waiting = sorted((0.0, number, action) for _, number, action in self._waiting)
        while self._waiting and time.monotonic() < deadline:
            self.run_due()
            time.sleep(0.05)
        return not self._waiting


class Faults:
    """Injects faults at random.

    Args:
        damage: `none`, `statistics` (keys without jobs) or `all` (queues, too).
        mean_pause: seconds between two faults, on the average.

    Attributes:
        counts: how many of each kind there were.
    """

    def __init__(
        self,
        server: JobServer,
        fleet: Fleet,
        record: Record,
        findings: Findings,
        chance: random.Random,
        damage: str,
        mean_pause: float,
    ) -> None:
        self.agenda = Agenda()
        self.counts: Counter[str] = Counter()
        self.damage_seconds = 0.0
        self._server = server
        self._fleet = fleet
        self._record = record
        self._findings = findings
        self._chance = chance
        self._damage = damage
        self._mean_pause = mean_pause
        self._next = time.monotonic() + mean_pause
        self._trouble_began = 0.0
        self._trouble_ends = 0.0

    def turn(self) -> None:
        """Do what is due; inject the next fault if its time has come."""
        self.tend()
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._chance.expovariate(1 / self._mean_pause)
        name = self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        hit = _KINDS[name](self)
        if hit:
            self._count(name, hit)

    def _count(self, name: str, what: str) -> None:
        self.counts[name] += 1
        self._fleet.troubles += name in _TROUBLES
        self._record.note(name.replace(" ", "-"), detail=what)

    def tend(self) -> None:
        """Do what is due. A server that has crashed of itself is started again, as its supervisor would: it loses
        nothing, but whoever brings a server down by his commands does harm to others, so that it counts."""
        self.agenda.run_due()
        if self._server.died:
            words = self._server.last_words()
            self._count(CRASH, words)
            self._findings.add("the server lives", f"{clock_text(time.time())} it has ended by itself: {words}")
            self._server.kill()
            self.agenda.later(1.0, self._server.restart)

    def undo_all(self) -> bool:
        """Mend everything."""
        self.agenda.later(0.0, self._server.resume)
        self.agenda.later(0.0, self._server.restart)
        self.agenda.later(0.0, self._fleet.resume_all)
        done = self.agenda.run_all(30.0)
        self.agenda.later(0.0, lambda: self._server.command("CLIENT", "UNPAUSE"))
        self.agenda.later(0.0, lambda: self._server.command("CONFIG", "SET", "maxmemory", "0"))
        self.agenda.later(0.0, self._server.mend_all)
        return self.agenda.run_all(30.0) and done

    # ---- processes --------------------------------------------------------------------------------------

    def _some_length(self) -> float:
        """Mostly short; every fourth one about as long as the 5 s after which a connection gives up, or longer."""
        if self._chance.random() < 0.25:
            return self._chance.uniform(4.0, LONGEST)
        return self._chance.uniform(0.1, 3.0)

    def _member(self) -> Member | None:
        there = [member for member in self._fleet.current if member.has_begun]
        return self._chance.choice(there) if there else None

    def _kill_child(self) -> str:
        pid = self._fleet.any_child()
        if pid is None:
            return ""
        self._record.note("killed", detail=f"child {pid}")
        signal_to(pid, signal.SIGKILL)
        return f"child {pid}"

    def _suspend_child(self) -> str:
        pid = self._fleet.any_child()
        return "" if pid is None else self._suspend(pid, "child")

    def _suspend_supervisor(self) -> str:
        member = self._member()
        return "" if member is None else self._suspend(member.process.pid, member.label)

    def _suspend(self, pid: int, who: str) -> str:
        seconds = self._some_length()

        def resume() -> bool:
            signal_to(pid, signal.SIGCONT)
            return True

        signal_to(pid, signal.SIGSTOP)
        self.agenda.later(seconds, resume)
        return f"{who} {pid} for {seconds:.1f} s"

    def _kill_supervisor(self) -> str:
        """Also one that has only just been started."""
        if not self._fleet.current:
            return ""
        member = self._chance.choice(self._fleet.current)
        self._fleet.kill(member)
        self.agenda.later(self._chance.uniform(0.0, 5.0), lambda: self._fleet.fill(member.place))
        return member.label

    def _wipe_daemon(self) -> str:
        """A supervisor and its children at once: nobody is left who knows what they did."""
        if not self._fleet.current:
            return ""
        member = self._chance.choice(self._fleet.current)
        children = member.children()
        self._fleet.kill(member)
        for pid in children:
            signal_to(pid, signal.SIGKILL)
        self.agenda.later(self._chance.uniform(0.0, 5.0), lambda: self._fleet.fill(member.place))
        return f"{member.label} with {len(children)} children"

    def _stop_daemon(self) -> str:
        member = self._member()
        return "" if member is None else f"{member.label}, {self._fleet.replace(member)} in its place"

    def _roll(self) -> str:
        member = self._member()
        if member is None:
            return ""
        member.process.send_signal(signal.SIGHUP)
        return member.label

    def _quiet(self) -> str:
        member = self._member()
        if member is None:
            return ""
        seconds = self._some_length()

        def wake() -> bool:
            if member.alive:
                member.process.send_signal(signal.SIGCONT)
            return True

        member.process.send_signal(signal.SIGTSTP)
        self.agenda.later(seconds, wake)
        return f"{member.label} for {seconds:.1f} s"

    # ---- the server -------------------------------------------------------------------------------------

    def _may_trouble(self, seconds: float) -> bool:
        """Whether the server may be in trouble for so long now: now and then beats must get through."""
        now = time.monotonic()
        if now - self._trouble_ends > _CALM:
            self._trouble_began = now
        if now + seconds - self._trouble_began > _MOST_TROUBLE or not self._server.up:
            return False
        self._trouble_ends = max(self._trouble_ends, now + seconds)
        return True

    def _kill_server(self) -> str:
        seconds = self._chance.uniform(0.0, 5.0)
        if not self._may_trouble(seconds):
            return ""
        self._server.kill()
        self.agenda.later(seconds, self._server.restart)
        return f"for {seconds:.1f} s"

    def _suspend_server(self) -> str:
        seconds = self._some_length()
        if not self._may_trouble(seconds):
            return ""
        self._server.suspend()
        self.agenda.later(seconds, self._server.resume)
        return f"for {seconds:.1f} s"

    def _cut_lines(self) -> str:
        return "done" if self._server.up and self._server.command("CLIENT", "KILL", "TYPE", "normal") else ""

    def _fill_memory(self) -> str:
        seconds = self._some_length()
        if not self._may_trouble(seconds):
            return ""
        self._server.command("CONFIG", "SET", "maxmemory", "1mb")
        self.agenda.later(seconds, lambda: self._server.command("CONFIG", "SET", "maxmemory", "0"))
        return f"for {seconds:.1f} s"

    def _forget_scripts(self) -> str:
        return "done" if self._server.up and self._server.command("SCRIPT", "FLUSH") else ""

    def _pause_writes(self) -> str:
        if not self._may_trouble(1.0):
            return ""
        return "for 1 s" if self._server.command("CLIENT", "PAUSE", 1000, "WRITE") else ""

    def _damage_key(self) -> str:
        target = self._damage_target() if self._server.up else None
        if target is None:
            return ""
        key, right_type = target
        seconds = self._some_length()
        self._server.damage(key, right_type)  # unanswered: perhaps done, so it is mended in any case
        self.damage_seconds += seconds
        self.agenda.later(seconds, lambda: self._server.mend(key, right_type))
        return f"{key} for {seconds:.1f} s"

    def _damage_target(self) -> tuple[str, str] | None:
        """A key and the type that it should have."""
        chosen = self._chance.choice(_DAMAGED[self._damage])
        if chosen == "job_attempts":
            return self._some_attempts()
        if chosen == "workers":
            identities = self._server.one(lambda client: sorted(client.smembers(KEYS.inprogress_identities)))
            return (KEYS.workers(self._chance.choice(identities)), "hash") if identities else None
        if chosen == "queue":
            return KEYS.queue(self._chance.choice(QUEUES)), "list"
        return {
            "stats": (KEYS.processed, "string"),
            "queues": (KEYS.queues, "set"),
            "live_queues": (KEYS.live_queues, "zset"),
            "last_beat": (KEYS.last_beat, "hash"),
            "processes": (KEYS.processes, "set"),
            "throughput": (KEYS.throughput(time.time()), "hash"),
        }.get(chosen)

    def _some_attempts(self) -> tuple[str, str] | None:
        """The attempts log of a job that waits for its retry."""
        found = self._server.one(lambda client: client.zrange(KEYS.retry, 0, 0))
        if not found:
            return None
        return KEYS.attempts(json.loads(found[0])["jid"]), "list"


_STATISTICS = ("stats", "queues", "live_queues", "last_beat", "workers", "processes", "throughput", "job_attempts")
_DAMAGED = {"none": ("nothing",), "statistics": _STATISTICS, "all": (*_STATISTICS, "queue", "queue")}

_KINDS: dict[str, Callable[[Faults], str]] = {
    "child killed": Faults._kill_child,
    "child suspended": Faults._suspend_child,
    "supervisor killed": Faults._kill_supervisor,
    "daemon wiped out": Faults._wipe_daemon,
    "supervisor suspended": Faults._suspend_supervisor,
    "daemon stopped": Faults._stop_daemon,
    "roll": Faults._roll,
    "quiet": Faults._quiet,
    "server killed": Faults._kill_server,
    "server suspended": Faults._suspend_server,
    "lines cut": Faults._cut_lines,
    "memory full": Faults._fill_memory,
    "scripts forgotten": Faults._forget_scripts,
    "writes paused": Faults._pause_writes,
    "key damaged": Faults._damage_key,
}
"""Each answers what it did, or "" where it could not be done now."""

_TROUBLES = ("server killed", "server suspended", "lines cut", "memory full", "writes paused", "key damaged", CRASH)

_WEIGHTS = {
    "child killed": 12,
    "child suspended": 6,
    "supervisor killed": 3,
    "daemon wiped out": 2,
    "supervisor suspended": 4,
    "daemon stopped": 3,
    "roll": 2,
    "quiet": 3,
    "server killed": 3,
    "server suspended": 3,
    "lines cut": 5,
    "memory full": 2,
    "scripts forgotten": 3,
    "writes paused": 3,
    "key damaged": 4,
}
