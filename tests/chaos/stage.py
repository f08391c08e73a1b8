"""One run: a daemon behind the proxy, what a scenario does to it, the wait for rest, the stop, the judgement."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import redis

from cogworkerd.store.scripts import Script
from cogworkerd.unique import periodic_id, unique_digest
from tests.support import ROOT, Client

from . import chaos_env, jobs, places, unique_client
from .daemon import Daemon
from .faults import CHILD, CLIENT, READ, REPORT, SUPERVISOR, Point, Strike
from .hands import DaemonHands
from .hooks import Plan
from .invariants import Evidence, wrong_at_the_end
from .jobs import Job
from .proxy import Proxy, Step
from .record import Counter, Record
from .watch import Watch

READY_WITHIN = 20.0
REST_WITHIN = 40.0
EXIT_WITHIN = 35.0
GONE_WITHIN = 10.0
_SLOTS_AFTER = 7
_SLOTS_SOON = 0.4
_TAIL = 30


@dataclass(frozen=True)
class Result:
    """What came of one run.

    Attributes:
        struck: the command or the report at the step of the fault; "" if the fault did not come.
        steps: what was counted, by role.
        wrong: the violations.
        tail: the end of the logs and of the record, if something was wrong.
    """

    point: Point
    struck: str
    steps: dict[str, list[Step]]
    wrong: list[str]
    tail: str
    seconds: float


class Stage:
    """Where a scenario plays.

    Sockets in the file system, here and for the proxy, since a port that is free again may soon be another program's.

    Args:
        server: the unix socket of a server that nobody else uses; it is emptied.
        slots: of each daemon.
        flags: more of them.
    """

    def __init__(self, server: Path, point: Point, slots: int, flags: tuple[str, ...]) -> None:
        self._client: Client = redis.Redis(unix_socket_path=str(server), decode_responses=True)
        self._client.flushall()
        self._client.script_flush()
        self._url = f"unix://{server}?db=0"
        self._slots = slots
        self._flags = ("-c", str(slots), "-q", jobs.QUEUE, *flags)
        self._strike = point.strike
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-")
        self._record = Record(Path(self._folder.name))
        self._watch = Watch(self._client, self._record)
        self._hands = DaemonHands(self._record.all)
        strike = self._strike_of(CHILD, SUPERVISOR, CLIENT)
        self._proxy = Proxy(server, Path(self._folder.name) / "proxy", self._hands, strike)
        self._predecessor: Daemon | None = None
        self._successor: Daemon | None = None
        self._child_was_killed = self._strike is not None and self._strike.victim == CHILD
        self._env: dict[str, str] = {}
        self._client_process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self._daemons():
            daemon.kill_all()
        if self._client_process is not None:
            self._client_process.kill()
            self._client_process.wait()
        self._proxy.close()
        self._record.close()
        self._client.close()
        self._folder.cleanup()

    # ---- for scenarios: daemons -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon under test, behind the proxy."""
        self._hands.daemon = self._start(self._proxy.url, Plan(self._folder.name, self._strike_of(REPORT, READ)), "log")

    def start_ready(self) -> None:
        """Start it and wait until every slot has said hello."""
        self.start()
        self._watch.until(self._tested.is_ready, READY_WITHIN, "daemon.ready")

    def start_predecessor(self) -> None:
        """Start a daemon that has no fault, and wait until it is ready."""
        self._predecessor = self._start(self._url, Plan(self._folder.name), "log of the predecessor")
        self._watch.until(self._predecessor.is_ready, READY_WITHIN, "daemon.ready of the predecessor")

    def kill_predecessor(self) -> None:
        """Kill all its processes."""
        assert self._predecessor is not None
        self._predecessor.kill_all()

    def kill_running_child(self) -> None:
        """Kill a child that runs a job, as part of the situation."""
        self.let_children_die()
        self._hands.kill_child(None)

    def let_children_die(self) -> None:
        """Children will die as part of the situation."""
        self._child_was_killed = True

    def terminate(self) -> None:
        """Ask the daemon under test to stop."""
        self._tested.terminate()

    def until_exit(self) -> None:
        """Wait until the daemon under test has ended."""
        self._watch.until(lambda: self._tested.exited, EXIT_WITHIN, "exit")

    # ---- for scenarios: jobs ----------------------------------------------------------------------------

    def push(self, *pushed: Job) -> None:
        """To the queue, all at once."""
        jobs.push(self._client, *pushed)
        self._watch.jobs += pushed

    def schedule(self, key: str, due: Job) -> None:
        """Put a job that is due into a sorted set."""
        jobs.schedule(self._client, key, due)
        self._watch.jobs.append(due)

    def declare_slots(self, middleware: bool) -> None:
        """Two slots of a periodic entry, soon, that the server remembers to have seen before.

        Args:
            middleware: the application has client middleware, so that an errand pushes.
        """
        second = int(time.time()) + _SLOTS_AFTER
        if second % 60 > 57:
            second += 60 - second % 60  # both in one minute
        when = time.gmtime(second)
        cron = f"{when.tm_min} {when.tm_hour} {when.tm_mday} {when.tm_mon} * {when.tm_sec},{when.tm_sec + 1}"
        self._env = {chaos_env.CRON: cron, **({chaos_env.MIDDLEWARE: "yes"} if middleware else {})}
        pjid = periodic_id(cron, chaos_env.IN_SLOT, [chaos_env.SLOT_SECONDS])
        self._client.set(jobs.KEYS.periodic_seen(pjid), second - 1)
        self._watch.unnamed = jobs.KEYS.periodic_running(pjid)
        self._watch.last_slot = second + 1
        self._watch.least = 1
        self._slot = second

    def until_slots(self) -> None:
        """Wait until shortly before the slots."""
        self._watch.until(lambda: time.time() > self._slot - _SLOTS_SOON, REST_WITHIN, "the slot comes")

    def push_unique(self) -> None:
        """Let an application push a unique job, through the proxy; one that was killed is started anew without it."""
        args = [unique_client.SECONDS]
        digest = unique_digest({"class": unique_client.NAME, "args": args}, jobs.QUEUE)
        self._watch.unnamed = jobs.KEYS.unique(digest)
        self._watch.least = 1
        if not self._pushes_all(self._proxy.url):
            self._watch.until(lambda: self._proxy.late == 0, REST_WITHIN, "late commands")
            if not self._pushes_all(self._url):
                self._watch.complain("the application does not come to its end")

    def _pushes_all(self, url: str) -> bool:
        command = [sys.executable, "-m", "tests.chaos.unique_client", url]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        self._client_process = process
        self._watch.until(lambda: process.poll() is not None, REST_WITHIN, "the application has pushed")
        return process.returncode == 0

    def until_started(self) -> None:
        """Wait until the first run of some job starts."""
        self._watch.until(lambda: any(told.what == "start" for told in self._record.all()), READY_WITHIN, "a start")

    # ---- for scenarios: steps ---------------------------------------------------------------------------

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
        for child in self._watch.waiting_children():
            self._client.client_unblock(child)
        self._watch.until(
            lambda: bool(self._struck()) or self._proxy.counted_waits == self._slots, REST_WITHIN, "children wait"
        )

    # ---- the end ----------------------------------------------------------------------------------------

    def finish(self, stopping: bool) -> None:
        """Wait for rest and stop; a successor does what the daemon under test could not do.

        Args:
            stopping: it was told to stop already.
        """
        tested = self._tested
        self._watch.until(lambda: tested.exited or (not stopping and self._at_rest()), REST_WITHIN, "rest")
        self._proxy.disarm()
        self._record[Counter.ARMED] = 0
        self._watch.until(lambda: self._proxy.late == 0, REST_WITHIN, "late commands")
        if not tested.exited:
            tested.terminate()
            self.until_exit()
        self._watch.look()
        if not self._watch.all_over():
            self._succeed()
        killed = self._strike is not None and self._strike.victim == SUPERVISOR and bool(self._struck())
        # A ward has a supervisor of its own, which may have been the one that was struck.
        in_ward = killed and tested.status == 0 and '"event":"ward.opened"' in tested.text()
        self._check_end(tested, -9 if killed and not in_ward else 0)
        self._watch.look()

    def _succeed(self) -> None:
        """A second daemon, straight at the server, brings every job to its end."""
        if self._tested.status == 0:
            self._let_time_pass()
        successor = self._successor = self._start(self._url, Plan(self._folder.name), "log of the successor")
        self._watch.until(lambda: successor.exited or successor.is_ready(), READY_WITHIN, "the successor is ready")
        self._watch.until(lambda: successor.exited or self._at_rest(), REST_WITHIN, "rest with the successor")
        successor.terminate()
        self._watch.until(lambda: successor.exited, EXIT_WITHIN, "exit of the successor")
        self._check_end(successor, 0)

    def _let_time_pass(self) -> None:
        """What a daemon that left in order did not empty is looked at when its last beat is old, and when its lease for
        looking at the fleet has run out: both are so at once."""
        for identity in self._client.hkeys(jobs.KEYS.last_beat):
            self._client.hset(jobs.KEYS.last_beat, identity, 1)
        self._client.delete(jobs.KEYS.recovery_lease)

    def _check_end(self, daemon: Daemon, expected: int) -> None:
        if daemon.status != expected:
            self._watch.complain(f"exit status {daemon.status}, not {expected}")
        self._watch.until(lambda: not daemon.left_behind(), GONE_WITHIN, "no process left behind")

    # ---- its parts --------------------------------------------------------------------------------------

    @property
    def _tested(self) -> Daemon:
        assert self._hands.daemon is not None
        return self._hands.daemon

    def _daemons(self) -> list[Daemon]:
        return [daemon for daemon in (self._predecessor, self._hands.daemon, self._successor) if daemon is not None]

    def _strike_of(self, *roles: str) -> Strike | None:
        return self._strike if self._strike is not None and self._strike.role in roles else None

    def _start(self, url: str, plan: Plan, name: str) -> Daemon:
        self._record[Counter.BYTES_WRITTEN] = self._record[Counter.BYTES_READ] = 0
        return Daemon(url, plan, Path(self._folder.name) / name, *self._flags, env=self._env)

    def _at_rest(self) -> bool:
        """Every job is over, every slot waits for the next one, and nothing is under way."""
        if self._proxy.late or not self._watch.all_over() or len(self._watch.waiting_children()) < self._slots:
            return False
        return bool(self._struck()) or self._record.all_read

    def _struck(self) -> str:
        """The step that the fault hit."""
        return self._proxy.struck or next((told.detail for told in self._record.all() if told.what == "struck"), "")

    # ---- the judgement ----------------------------------------------------------------------------------

    def judge(self, point: Point, seconds: float, broken: str) -> Result:
        """What came of the run.

        Args:
            broken: why it could not go on; "" if it came to its end.
        """
        struck = self._struck()
        evidence = Evidence(
            self._watch.jobs,
            places.look(self._client),
            self._record.all(),
            frozenset(self._watch.blamed),
            [line for daemon in self._daemons() if daemon is not self._predecessor for line in daemon.lines()],
            bool(struck) and point.strike is not None and point.strike.victim == SUPERVISOR,
            self._child_was_killed,
            self._predecessor is not None,
        )
        wrong = [*self._watch.wrong, *filter(None, (broken, self._proxy.broken)), *wrong_at_the_end(evidence)]
        return Result(point, struck, self._steps(), wrong, self._tail() if wrong else "", seconds)

    def _steps(self) -> dict[str, list[Step]]:
        counted = dict(self._proxy.steps)
        for role in (REPORT, READ):
            counted[role] = [Step(b"", told.detail) for told in self._record.all() if told.what == role]
        return counted

    def _tail(self) -> str:
        parts = []
        for daemon in self._daemons():
            parts += [f"-- {daemon.log.name}", *daemon.text().splitlines()[-_TAIL:]]
        return "\n".join([*parts, "-- record", *[str(told) for told in self._record.all()[-_TAIL:]]])
