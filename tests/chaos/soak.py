"""A random soak: jobs are pushed all the time while processes and the server are killed, suspended and disturbed.

    python -m tests.chaos.soak --minutes N [--seed S] [--server redis|valkey] [--daemons 3]

At the end the faults stop, everything comes to rest, and each job's whole life is held against docs/protocol.md.
The exit status is 1 if anything was violated; then the record and the logs stay, and their folder is named. The seed
fixes which faults come and when; what they hit depends on the machine's timing, too.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.soak_audit import Tally, audit, tell
from tests.chaos.soak_faults import CRASH, Faults
from tests.chaos.soak_findings import Findings
from tests.chaos.soak_fleet import Fleet
from tests.chaos.soak_producer import Producer
from tests.chaos.soak_record import Record
from tests.chaos.soak_server import JobServer
from tests.support import PATIENCE

TURN = 0.03
WATCH_EVERY = 1.0
TELL_EVERY = 30.0
_AFTERGLOW = 3.0
_DEAD_SHOWN = 60.0

REST_WITHIN = 150.0
"""Seconds from the last fault to rest. The longest wait is that for a daemon's death to be believed without a look at
its processes: 60 s of presence, 60 s of threshold; all else takes seconds."""


class Soak:
    """One soak, from its first process to its summary."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="cwsoak-"))
        (self._folder / "marks").mkdir()
        self._findings = Findings()
        self._record = Record(self._folder / "record")
        self._server = JobServer(options.server, self._folder / "server.log")
        seed = options.seed
        self._fleet = Fleet(
            options.daemons,
            self._folder,
            self._server.url,
            self._record,
            self._findings,
            random.Random(f"{seed} fleet"),
            options.log_level,
        )
        self._faults = Faults(
            self._server,
            self._fleet,
            self._record,
            self._findings,
            random.Random(f"{seed} faults"),
            options.damage,
            options.pause,
        )
        self._producer = Producer(self._server, self._record, options.rate, random.Random(f"{seed} producer"))
        self._doubles: set[str] = set()
        self._looks = 0
        self._next_watch = 0.0
        self._next_tell = time.monotonic() + TELL_EVERY
        self._began = time.monotonic()
        self._tally = Tally()

    def run(self) -> int:
        """Soak, and say what was found.

        Returns:
            The exit status.
        """
        try:
            self._torment()
            self._come_to_rest()
            self._end_daemons()
            self._check_the_end()
            self._tell_violations()
            self._tell_summary()
            if self._findings.total == 0 and not self._options.keep:
                shutil.rmtree(self._folder)
        finally:
            self._fleet.close()
            self._server.close()
            if self._folder.exists():
                print(f"record and logs: {self._folder}", flush=True)
        return 1 if self._findings.total else 0

    # ---- the three parts --------------------------------------------------------------------------------

    def _torment(self) -> None:
        for place in range(self._fleet.size):
            self._fleet.fill(place)
        self._until(lambda: self._fleet.complete, 30.0, "every daemon is ready")
        self._producer.start()
        end = time.monotonic() + self._options.minutes * 60
        while time.monotonic() < end and self._producer.fault is None:
            self._faults.turn()
            self._watch()
            time.sleep(TURN)

    def _come_to_rest(self) -> None:
        """The faults stop; jobs go on for a moment, so that some meet a fleet that has just been through them."""
        if not self._faults.undo_all():
            self._findings.add("harness", "not everything could be undone")
        for place in range(self._fleet.size):
            self._fleet.fill(place)
        self._until(lambda: False, _AFTERGLOW)
        self._producer.stop()
        if self._producer.fault is not None:
            self._findings.add("harness", f"the producer failed: {self._producer.fault!r}")
        self._until(lambda: self._fleet.complete, 60.0, "every slot is filled")
        if not self._until(self._rests, REST_WITHIN):
            for jid, places in (self._server.entries(time.time()) or {}).items():
                self._findings.add("rest", f"{jid} is still in {places}", jid)

    def _end_daemons(self) -> None:
        self._fleet.stop_all()
        self._until(lambda: not self._fleet.members, 90.0, "every daemon has ended")
        self._until(lambda: not self._fleet.processes(), 10.0, "no process is left")

    def _check_the_end(self) -> None:
        for key in self._server.leftovers():
            self._findings.add("left over on the server", key, key.rpartition(":")[2])
        self._tally = audit(self._record.path, self._server.dead(), self._fleet.past, self._findings)
        self._check_log()

    def _check_log(self) -> None:
        """A storm of lines is a fault, too: each trouble may be told by each site of each daemon, and not more."""
        past = self._fleet.past
        loud, allowed = sum(past.loud.values()), self._lines_allowed()
        if loud > allowed:
            self._findings.add("log: too many lines", f"{loud} instead of {allowed}: {past.loud.most_common(12)}")

    def _lines_allowed(self) -> int:
        counts = self._faults.counts
        of_server = sum(counts[name] for name in ("server killed", "server suspended", "memory full", CRASH))
        of_lines = counts["lines cut"] + counts["writes paused"]
        others = sum(counts.values()) - of_server - of_lines
        doomed = self._producer.kinds["doomed"]
        daemons = self._fleet.size
        return int(
            100
            + 12 * daemons * of_server
            + 8 * daemons * of_lines
            + 5 * others
            + 15 * doomed
            + 6 * self._fleet.started
            + daemons * self._faults.damage_seconds
        )

    # ---- while it goes on -------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = time.monotonic()
        if now < self._next_watch:
            return
        self._next_watch = now + WATCH_EVERY
        self._fleet.watch()
        if self._server.up:
            self._producer.backlog = self._server.backlog() or 0
            self._look_for_doubles()
        if now >= self._next_tell:
            self._next_tell = now + TELL_EVERY
            self._tell_progress()

    def _look_for_doubles(self) -> None:
        """In one instant no job lies in two places."""
        found = self._server.entries(time.time() - _DEAD_SHOWN)
        self._looks += found is not None
        for jid, places in (found or {}).items():
            if len(places) > 1 and jid not in self._doubles:
                self._doubles.add(jid)
                self._findings.add("one place at a time", f"{jid} is in {places}", jid)

    def _rests(self) -> bool:
        """Nothing waits, nothing runs."""
        return self._server.entries(time.time()) == {}

    def _until(self, done: Callable[[], bool], within: float, what: str = "") -> bool:
        """Go on watching until something is so.

        Args:
            what: if it is not so in time, this is a violation in these words; "" for none.
        """
        deadline = time.monotonic() + within * PATIENCE
        while not done():
            if time.monotonic() > deadline:
                if what:
                    self._findings.add("in time", f"not within {within:g} s: {what}")
                return False
            self._faults.tend()
            self._watch()
            time.sleep(TURN)
        return True

    # ---- what it says -----------------------------------------------------------------------------------

    def _tell_progress(self) -> None:
        minutes = (time.monotonic() - self._began) / 60
        print(
            f"{minutes:5.1f} min  pushes {dict(self._producer.verdicts)}  waiting {self._producer.backlog}"
            f"  faults {sum(self._faults.counts.values())}  daemons {self._fleet.started}"
            f"  violations {self._findings.total}",
            flush=True,
        )

    def _tell_violations(self) -> None:
        for violation in self._findings.told:
            print()
            for line in tell(violation, self._record.path, self._fleet.past.logs):
                print(line)

    def _tell_summary(self) -> None:
        print()
        for name, value in self._summary():
            print(f"{name:<29}{value}")

    def _summary(self) -> Iterator[tuple[str, object]]:
        tally, past = self._tally, self._fleet.past
        yield "seed", self._options.seed
        yield "server", self._options.server
        yield "minutes", f"{(time.monotonic() - self._began) / 60:.1f}"
        yield "jobs", ", ".join(f"{count} {name}" for name, count in sorted(tally.jobs.items()))
        yield "jobs by kind", ", ".join(f"{count} {name}" for name, count in self._producer.kinds.most_common())
        yield "runs", f"{tally.runs}, {tally.again} of them repeat an attempt"
        yield "performed", f"{tally.performed}, {tally.excused} excused to run again"
        yield "longest wait for a run", f"{tally.longest_wait:.1f} s ({tally.waited})"
        yield "looks at all places", self._looks
        for name, count in self._faults.counts.most_common():
            yield f"fault: {name}", count
        yield "daemons", f"{self._fleet.started} started, {past.stopped} stopped with 0"
        yield "memory of supervisors", _memory(past.weights)
        yield "memory of the soak", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} KiB at most"
        yield "loud log lines", f"{sum(past.loud.values())} of {self._lines_allowed()} allowed"
        for event, count in past.loud.most_common(8):
            yield f"log: {event}", count
        yield "violations", f"{self._findings.total} {dict(self._findings.counts) or ''}"


def _memory(weights: list[tuple[int, int]]) -> str:
    """The resident sets of all supervisors, in words."""
    if not weights:
        return "none lived long enough"
    first, last = zip(*weights, strict=True)
    grown = max(after - before for before, after in weights)
    at_first, at_last = f"{min(first)} to {max(first)} KiB when ready", f"{min(last)} to {max(last)} at the end"
    return f"{at_first}, {at_last}; the largest growth is {grown}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description="A random soak of cogworkerd.")
    parser.add_argument("--minutes", type=float, required=True, help="how long faults come")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the faults (default: any)")
    parser.add_argument("--server", choices=("redis", "valkey"), default="valkey")
    parser.add_argument("--daemons", type=int, default=3)
    parser.add_argument("--rate", type=float, default=30.0, help="jobs a second")
    parser.add_argument("--pause", type=float, default=1.2, help="mean seconds between two faults")
    parser.add_argument(
        "--damage",
        choices=("none", "statistics", "all"),
        default="statistics",
        help="keys that get a wrong type for a while; all: queues, too",
    )
    parser.add_argument("--log-level", choices=("debug", "info"), default="info", help="of the daemons")
    parser.add_argument("--keep", action="store_true", help="keep record and logs also when all is well")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # the daemons must not outlive it
    print(f"seed {options.seed}", flush=True)
    return Soak(options).run()


if __name__ == "__main__":
    sys.exit(main())
