"""One run: a daemon behind the proxy, what the scenario does to it, the wait for rest, the stop, the judgement."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil
import redis

from cogworkerd.store.scripts import Script
from tests.support import Client

from . import jobs, places
from .daemon import Daemon, kill_and_wait
from .faults import CHILD, READ, REPORT, SUPERVISOR, Point
from .hooks import Plan
from .invariants import Evidence, wrong_at_a_moment, wrong_at_the_end
from .jobs import Job
from .proxy import Proxy, Step
from .record import Counter, Happening, Record

READY_WITHIN = 20.0
REST_WITHIN = 40.0
EXIT_WITHIN = 35.0
GONE_WITHIN = 10.0
_LOOK_EVERY = 0.02
_AFTER_VIOLATION = 5.0
_TAIL = 30


class Violated(Exception):
    """The run cannot go on; the text says what was wrong."""


@dataclass(frozen=True)
class Result:
    """What came of one run.

    Attributes:
        struck: the command or the report at the step of the fault; "" if the fault did not come.
        steps: what was counted, by role.
        wrong: the violations.
        tail: the end of the log.
    """

    point: Point
    struck: str
    steps: dict[str, list[Step]]
    wrong: list[str]
    tail: str
    seconds: float


class Stage:
    """Where a scenario plays. It is the proxy's hands, too.

    Args:
        port: of a server that nobody else uses; it is emptied.
        slots: of each daemon.
        flags: more of them.
    """

    def __init__(self, port: int, point: Point, slots: int, flags: tuple[str, ...]) -> None:
        self.client: Client = redis.Redis(port=port, decode_responses=True)
        self.client.flushall()
        self.client.script_flush()
        self._url = f"redis://127.0.0.1:{port}/0"
        self._slots = slots
        self._flags = ("-c", str(slots), "-q", jobs.QUEUE, *flags)
        self._strike = point.strike
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-")
        self._record = Record(Path(self._folder.name))
        in_proxy = self._strike is not None and self._strike.role in (CHILD, SUPERVISOR)
        self._proxy = Proxy(port, self, self._strike if in_proxy else None)
        self._tested: Daemon | None = None
        self._predecessor: Daemon | None = None
        self._successor: Daemon | None = None
        self._jobs: list[Job] = []
        self._wrong: dict[str, None] = {}
        self._give_up_at = math.inf
        self._blamed: set[str] = set()
        self._child_was_killed = self._strike is not None and self._strike.victim == CHILD

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in (self._tested, self._predecessor, self._successor):
            if daemon is not None:
                daemon.kill_all()
        self._proxy.close()
        self._record.close()
        self.client.close()
        self._folder.cleanup()

    # ---- for scenarios ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon under test, behind the proxy."""
        hooked = self._strike if self._strike is not None and self._strike.role in (REPORT, READ) else None
        self._tested = self._start(self._proxy.url, Plan(self._folder.name, hooked), "log")

    def start_ready(self) -> None:
        """Start it and wait until every slot has said hello."""
        self.start()
        self.until(self._is_ready, READY_WITHIN, "daemon.ready")

    def start_predecessor(self) -> None:
        """Start a daemon that has no fault, and wait until it is ready."""
        self._predecessor = self._start(self._url, Plan(self._folder.name), "log of the predecessor")
        self.until(self._predecessor.is_ready, READY_WITHIN, "daemon.ready of the predecessor")

    def kill_predecessor(self) -> None:
        """Kill all its processes."""
        assert self._predecessor is not None
        self._predecessor.kill_all()

    def push(self, *pushed: Job) -> None:
        jobs.push(self.client, *pushed)
        self._jobs += pushed

    def schedule(self, key: str, due: Job) -> None:
        """Put a job that is due into a sorted set."""
        jobs.schedule(self.client, key, due)
        self._jobs.append(due)

    def until_started(self) -> None:
        """Wait until the first run of some job starts."""
        self.until(lambda: any(told.what == "start" for told in self._record.all()), READY_WITHIN, "a job starts")

    def arm(self) -> None:
        """Count steps from now on."""
        self._record[Counter.ARMED] = 1
        self._proxy.arm()

    def arm_at(self, script: Script) -> None:
        """Count reports from now on, commands from the first run of this script on."""
        self._record[Counter.ARMED] = 1
        self._proxy.arm_at(script)

    def arm_between_waits(self) -> None:
        """Count from now on, and return when every child waits anew, so that its wait is counted."""
        self.arm()
        for child in self._waiting_children():
            self.client.client_unblock(child)
        self.until(
            lambda: bool(self._struck()) or self._proxy.counted_waits == self._slots, REST_WITHIN, "children wait"
        )

    def kill_running_child(self) -> None:
        """Kill a child that runs a job, as part of the situation."""
        self._child_was_killed = True
        self.kill_child(None)

    def let_children_die(self) -> None:
        """Children will die as part of the situation."""
        self._child_was_killed = True

    def until_exit(self) -> None:
        """Wait until the daemon under test has ended."""
        tested = self._tested
        assert tested is not None
        self.until(lambda: tested.exited, EXIT_WITHIN, "exit")

    def terminate(self) -> None:
        """Ask the daemon under test to stop."""
        assert self._tested is not None
        self._tested.terminate()

    def finish(self, stopping: bool) -> None:
        """Wait for rest and stop; a successor does what the daemon under test could not do.

        Args:
            stopping: it was told to stop already.
        """
        tested = self._tested
        assert tested is not None
        self.until(lambda: tested.exited or (not stopping and self._at_rest(tested)), REST_WITHIN, "rest")
        self._disarm()
        self.until(lambda: self._proxy.late == 0, REST_WITHIN, "late commands")
        if not tested.exited:
            tested.terminate()
            self.until(lambda: tested.exited, EXIT_WITHIN, "exit")
        if not self._all_over():
            self._succeed()
        self._expect_status(tested, -9 if self._supervisor_was_killed() else 0)
        self.until(lambda: not tested.left_behind(), GONE_WITHIN, "no process left behind")
        self._watch()

    # ---- its parts --------------------------------------------------------------------------------------

    def _start(self, url: str, plan: Plan, name: str) -> Daemon:
        self._record[Counter.BYTES_WRITTEN] = self._record[Counter.BYTES_READ] = 0
        return Daemon(url, plan, Path(self._folder.name) / name, *self._flags)

    def _is_ready(self) -> bool:
        assert self._tested is not None
        if self._tested.exited:
            raise Violated(f"the daemon has ended with {self._tested.status} before it was ready")
        return self._tested.is_ready()

    def _disarm(self) -> None:
        self._proxy.disarm()
        self._record[Counter.ARMED] = 0

    def _succeed(self) -> None:
        """A second daemon, straight at the server, brings every job to its end."""
        successor = self._successor = self._start(self._url, Plan(self._folder.name), "log of the successor")
        self.until(lambda: successor.exited or self._at_rest(successor), REST_WITHIN, "rest with the successor")
        successor.terminate()
        self.until(lambda: successor.exited, EXIT_WITHIN, "exit of the successor")
        self._expect_status(successor, 0)
        self.until(lambda: not successor.left_behind(), GONE_WITHIN, "no process of the successor left behind")

    def _expect_status(self, daemon: Daemon, expected: int) -> None:
        if daemon.status != expected:
            self._complain(f"exit status {daemon.status}, not {expected}")

    def _at_rest(self, daemon: Daemon) -> bool:
        """Every job is over, every slot waits for the next one, and nothing is under way."""
        if self._proxy.late or not self._all_over() or len(self._waiting_children()) < self._slots:
            return False
        return bool(self._struck()) or self._record.all_read

    def _all_over(self) -> bool:
        seen = places.look(self.client)
        happenings = self._record.all()
        return all(job.is_over(seen.where(job.jid), happenings) for job in self._jobs)

    def _waiting_children(self) -> list[int]:
        """The ids of children's connections that the server holds in a wait."""
        return [
            int(client["id"])
            for client in self.client.client_list()
            if client["name"].startswith("cogworkerd-slot-") and "b" in client["flags"]
        ]

    def _struck(self) -> str:
        """The step that the fault hit."""
        if self._proxy.struck:
            return self._proxy.struck
        return next((told.detail for told in self._record.all() if told.what == "struck"), "")

    def _supervisor_was_killed(self) -> bool:
        return self._strike is not None and self._strike.victim == SUPERVISOR and bool(self._struck())

    # ---- waiting and watching ---------------------------------------------------------------------------

    def until(self, look: Callable[[], bool], within: float, what: str) -> None:
        """Wait for a condition, watching what must hold at every moment.

        Raises:
            Violated: it did not come in time.
        """
        limit = time.monotonic() + within
        while not look():
            if time.monotonic() > limit:
                raise Violated(f"it did not come: {what}; {self._state()}")
            self._watch()
            time.sleep(_LOOK_EVERY)

    def _watch(self) -> None:
        seen = places.look(self.client)
        self._blamed.update(seen.blames)
        for sentence in wrong_at_a_moment(self._jobs, seen, self._record.all()):
            self._complain(sentence)

    def _state(self) -> str:
        seen = places.look(self.client)
        where = {job.jid: seen.where(job.jid) for job in self._jobs}
        return f"jobs: {where}; slots that wait: {len(self._waiting_children())}; late: {self._proxy.late}"

    def _complain(self, sentence: str) -> None:
        """Note a violation. What comes after it is of little worth: nobody waits long for it."""
        self._wrong.setdefault(sentence)
        self._give_up_at = min(self._give_up_at, time.monotonic() + _AFTER_VIOLATION)

    # ---- the proxy's hands ------------------------------------------------------------------------------

    def kill_supervisor(self) -> bool:
        assert self._tested is not None
        if self._tested.exited:
            return False
        self._tested.kill()
        return True

    def kill_child(self, port: int | None) -> bool:
        assert self._tested is not None
        pids = [child.pid for child in self._tested.children()]
        if port is not None and len(pids) > 1:
            pids = [pid for pid in pids if port in _local_ports(pid)]
        if not pids:
            return False
        busy = self._busy() if port is None else set()
        kill_and_wait(next((pid for pid in pids if pid in busy), pids[0]))
        return True

    def kill_other_child(self, port: int) -> bool:
        assert self._tested is not None
        pids = [child.pid for child in self._tested.children()]
        others = [pid for pid in pids if port not in _local_ports(pid)]
        if len(pids) < 2 or not others:
            return False
        kill_and_wait(others[0])
        return True

    def has_child(self) -> bool:
        return self._tested is not None and bool(self._tested.children())

    def _busy(self) -> set[int]:
        found: set[int] = set()
        for told in self._record.all():
            if told.what == "start":
                found.add(told.pid)
            elif told.what in ("end", "fail"):
                found.discard(told.pid)
        return found

    # ---- the judgement ----------------------------------------------------------------------------------

    def judge(self, point: Point, seconds: float, broken: str) -> Result:
        """What came of the run.

        Args:
            broken: why it could not go on; "" if it came to its end.
        """
        struck = self._struck()
        lines = [line for daemon in (self._tested, self._successor) if daemon is not None for line in daemon.lines()]
        happenings = self._record.all()
        evidence = Evidence(
            self._jobs,
            places.look(self.client),
            happenings,
            frozenset(self._blamed),
            lines,
            self._supervisor_was_killed(),
            self._predecessor is not None,
            self._child_was_killed,
        )
        wrong = [*self._wrong, *filter(None, (broken, self._proxy.broken)), *wrong_at_the_end(evidence)]
        return Result(point, struck, self._steps(happenings), wrong, self._tail() if wrong else "", seconds)

    def _steps(self, happenings: list[Happening]) -> dict[str, list[Step]]:
        counted = dict(self._proxy.steps)
        for role in (REPORT, READ):
            counted[role] = [Step(b"", told.detail) for told in happenings if told.what == role]
        return counted

    def _tail(self) -> str:
        parts = []
        for daemon in (self._predecessor, self._tested, self._successor):
            if daemon is not None:
                parts += [f"-- {daemon.log.name}", *daemon.text().splitlines()[-_TAIL:]]
        parts += ["-- happenings", *[str(told) for told in self._record.all()[-_TAIL:]]]
        return "\n".join(parts)


def _local_ports(pid: int) -> set[int]:
    with contextlib.suppress(psutil.Error):
        return {connection.laddr.port for connection in psutil.Process(pid).net_connections("tcp")}
    return set()
