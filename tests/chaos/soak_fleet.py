"""The daemons of a soak: each place has one at a time; those that were told to stop finish beside their successors."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.chaos.soak_findings import Findings
from tests.chaos.soak_logs import LogReader
from tests.chaos.soak_record import Record
from tests.chaos.soak_server import QUEUES
from tests.support import PATIENCE, ROOT

LEAVES_WITHIN = 60.0
"""Seconds from TERM to the end: the longest drain, then 7 s at most to kill and to say farewell, and time to spare for
a suspension and a busy machine."""

SHUTDOWN_TIMEOUTS = (25, 10, 1, 1)
MOST_GROWTH_KB = 30 * 1024
MAX_ORPHANINGS = 5
"""So many that no job reaches it by chance, and few enough that a doomed one is soon there."""


@dataclass
class Member:
    """One daemon, from its start to its end.

    Attributes:
        label: `d<number>`: what the record calls it; pids come again.
        place: the place in the fleet that it fills.
        slots: how many children it keeps.
        told: monotonic second of its TERM; 0 before.
        killed: the soak has killed its supervisor.
        first_rss, last_rss: of the supervisor, in KiB, once it was ready and as last seen.
        troubles_before: how many troubles the server had had when it was started.
    """

    label: str
    place: int
    slots: int
    process: subprocess.Popen[bytes]
    log: LogReader
    troubles_before: int
    told: float = 0.0
    killed: bool = False
    first_rss: int = 0
    last_rss: int = 0

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def has_begun(self) -> bool:
        """It has logged something, so it handles signals."""
        return bool(self.log.events)

    @property
    def ready(self) -> bool:
        return self.log.events["daemon.ready"] > 0

    def children(self) -> list[int]:
        """The pids of its living slots."""
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(self.process.pid).children() if _is_slot(child.pid)]
        return []

    def weigh(self) -> None:
        with contextlib.suppress(psutil.Error):
            self.last_rss = psutil.Process(self.process.pid).memory_info().rss // 1024
            self.first_rss = self.first_rss or self.last_rss


@dataclass
class Past:
    """What is kept of daemons that have ended.

    Attributes:
        logs: label and log of each.
        left_jobs: labels of those that stopped and could not settle or hand back everything.
        weights: of each supervisor the KiB when it was ready and at the end.
    """

    logs: dict[str, Path] = field(default_factory=dict)
    left_jobs: set[str] = field(default_factory=set)
    weights: list[tuple[int, int]] = field(default_factory=list)
    loud: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    stopped: int = 0


class Fleet:
    """All daemons.

    Args:
        folder: for logs, record and marks.
        url: of the server.
        chance: chooses options, and who is hit.

    Attributes:
        started: how many daemons there have been.
        troubles: how many troubles the server has had so far; the faults count them.
    """

    def __init__(
        self, size: int, folder: Path, url: str, record: Record, findings: Findings, chance: random.Random, level: str
    ) -> None:
        self.size = size
        self.past = Past()
        self.members: list[Member] = []
        self.started = 0
        self.troubles = 0
        self._folder = folder
        self._url = url
        self._record = record
        self._findings = findings
        self._chance = chance
        self._level = level
        self._sessions: set[int] = set()
        self._next_weighing = 0.0

    # ---- who is there -----------------------------------------------------------------------------------

    @property
    def current(self) -> list[Member]:
        """Those that fill a place: alive and not told to stop."""
        return [member for member in self.members if member.alive and not member.told and not member.killed]

    @property
    def complete(self) -> bool:
        """Every place has a daemon, and every slot of these a child."""
        there = self.current
        return len(there) == self.size and all(
            member.ready and len(member.children()) == member.slots for member in there
        )

    def any_child(self) -> int | None:
        """Some child, perhaps one whose supervisor is dead already."""
        pids = [pid for pid in self.processes() if _is_slot(pid)]
        return self._chance.choice(pids) if pids else None

    # ---- orders -----------------------------------------------------------------------------------------

    def fill(self, place: int) -> bool:
        """Start a daemon in a place that has none."""
        if not any(member.place == place for member in self.current):
            self._start(place)
        return True

    def _start(self, place: int) -> None:
        self.started += 1
        label, slots = f"d{self.started}", self._chance.choice((2, 3))
        log = self._folder / f"{label}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._command(slots),
                env=self._environment(label),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.past.logs[label] = log
        self._sessions.add(process.pid)
        self.members.append(Member(label, place, slots, process, LogReader(log), self.troubles))
        self._record.note("daemon", daemon=label, detail=f"pid {process.pid}, {slots} slots")

    def _command(self, slots: int) -> list[str]:
        chance = self._chance
        queues = [option for queue in QUEUES for option in ("-q", f"{queue},{chance.randint(1, 3)}")]
        replaced = ["--max-jobs-per-child", "50"] if chance.random() < 0.3 else []
        return [
            *(sys.executable, "-W", "always", "-m", "cogworkerd", "run", "tests.chaos.soak_app:app"),
            *("--app-dir", str(ROOT), "-c", str(slots), *queues, *replaced),
            *("--shutdown-timeout", str(chance.choice(SHUTDOWN_TIMEOUTS)), "--max-orphanings", str(MAX_ORPHANINGS)),
            *("--orphan-threshold", "60", "--log-format", "json", "--log-level", self._level),
        ]

    def _environment(self, label: str) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")},
            "COGWORKERD_REDIS_URL": self._url,
            "SOAK_RECORD": str(self._record.path),
            "SOAK_MARKS": str(self._folder / "marks"),
            "SOAK_DAEMON": label,
        }

    def kill(self, member: Member) -> None:
        """End a supervisor at once. The record knows it before it happens: what follows from it stands behind."""
        self._record.note("killed", daemon=member.label, detail="the supervisor")
        member.killed = True
        member.process.kill()
        member.process.wait()

    def stop(self, member: Member) -> None:
        if member.alive:
            self._record.note("stopped", daemon=member.label)
            member.told = time.monotonic()
            member.process.send_signal(signal.SIGTERM)

    def replace(self, member: Member) -> str:
        """Tell a daemon to stop and start its successor at once.

        Returns:
            The successor's label.
        """
        self.stop(member)
        self.fill(member.place)
        return self.members[-1].label

    def stop_all(self) -> None:
        for member in self.current:
            self.stop(member)

    def resume_all(self) -> bool:
        """Let every suspended process go on."""
        for pid in self.processes():
            signal_to(pid, signal.SIGCONT)
        return True

    # ---- watching ---------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Read the logs on, weigh the supervisors, take in those that have ended."""
        weighing = time.monotonic() >= self._next_weighing
        for member in list(self.members):
            ended = not member.alive
            member.log.read_on()
            self._report_problems(member)
            if ended:
                self._bury(member)
            elif weighing and member.ready:
                member.weigh()
            if not ended and member.told and time.monotonic() - member.told > LEAVES_WITHIN * PATIENCE:
                self._findings.add("exit", f"{member.label} has not ended {LEAVES_WITHIN:g} s after TERM")
                self.kill(member)
        if weighing:
            self._next_weighing = time.monotonic() + 5.0
        self._forget_empty_sessions()

    def _report_problems(self, member: Member) -> None:
        for reason, text in member.log.take_problems():
            self._findings.add(f"log: {reason}", f"{member.label}: {text[:3000]}")

    def _bury(self, member: Member) -> None:
        self.members.remove(member)
        past = self.past
        if not member.killed:
            self._judge_exit(member)
        if member.first_rss:
            past.weights.append((member.first_rss, member.last_rss))
            if member.last_rss - member.first_rss > MOST_GROWTH_KB:
                self._findings.add("memory", f"{member.label} grew from {member.first_rss} to {member.last_rss} KiB")
        self._judge_outages(member)
        past.loud += member.log.loud
        past.events += member.log.events

    def _judge_exit(self, member: Member) -> None:
        code = member.process.returncode
        if not member.told:
            self._findings.add("exit", f"{member.label} ended by itself with {code}")
            self.fill(member.place)
        elif code != 0:
            self._findings.add("exit", f"{member.label} was told to stop and ended with {code}")
        else:
            self.past.stopped += 1
            if member.log.kept not in ("", "0"):
                self.past.left_jobs.add(member.label)

    def _judge_outages(self, member: Member) -> None:
        """One trouble is one outage for each site, or a few: a slot's next child tells it anew, and a suspended process
        sees its end and its echo apart."""
        allowed = 3 + 3 * (self.troubles - member.troubles_before)
        for site, count in member.log.outages.items():
            if count > allowed:
                self._findings.add(
                    "log: one outage told again and again", f"{member.label}: {count} by {site!r} instead of {allowed}"
                )

    def processes(self) -> list[int]:
        """Every living process that some daemon of this soak has started, itself included: each daemon has a session of
        its own, which its children share for good."""
        found = []
        for pid, session in _sessions():
            with contextlib.suppress(psutil.Error):
                if session in self._sessions and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    found.append(pid)
        return found

    def _forget_empty_sessions(self) -> None:
        """Numbers come again: a session that nobody is in any more may soon be somebody else's."""
        self._sessions &= {session for _, session in _sessions()}

    def close(self) -> None:
        """Leave nothing behind, whatever has happened."""
        for pid in self.processes():
            signal_to(pid, signal.SIGKILL)
        for member in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(10)


def _sessions() -> Iterator[tuple[int, int]]:
    """Every process with its session."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            yield pid, os.getsid(pid)


def signal_to(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_slot(pid: int) -> bool:
    """Whether it is a living child of a daemon, by its title."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "cogworkerd:slot" in " ".join(process.cmdline())
    except psutil.Error:
        return False
