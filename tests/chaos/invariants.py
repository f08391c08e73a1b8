"""What must hold at every moment of a run, and what must hold when it is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .jobs import Job
from .places import UNOWNED, Look
from .record import Happening

MOST_LINES = 120
MOST_WARNINGS = 20
_OWN_TRACEBACKS = ("job.failed", "job.dead")
_NEVER = frozenset(
    ["daemon.crashed", "daemon.registered_anew", "fetch.basic", "job.vanished", "key.quarantined", "parked.unusable"]
)
"""Events for which no scenario gives a reason."""

Lines = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Evidence:
    """What a run has left.

    Attributes:
        looks_blamed: ids of jobs that some look saw counted as orphaned.
        lines: of the logs of the daemons under test.
        supervisor_killed: the fault was its death.
        child_killed: a child's death was the fault, or a part of the scenario.
        predecessor_killed: a daemon's death was a part of the scenario.
    """

    jobs: Sequence[Job]
    last: Look
    happenings: Sequence[Happening]
    looks_blamed: frozenset[str]
    lines: Lines
    supervisor_killed: bool
    child_killed: bool
    predecessor_killed: bool


def wrong_at_a_moment(jobs: Sequence[Job], seen: Look, happenings: list[Happening]) -> list[str]:
    """What no moment may show.

    Args:
        happenings: read after the look.
    """
    wrong = []
    for job in jobs:
        where = seen.where(job.jid)
        waits = bool(where) and where != ["dead"]
        if len(where) > 1:
            wrong.append(f"{job.jid} is in {len(where)} places: {', '.join(where)}")
        if UNOWNED in where:
            wrong.append(f"{job.jid} is lost: it is on the list of an identity that is not registered")
        if not where and (job.dead or not job.has_ended(happenings)):
            wrong.append(f"{job.jid} is lost: it is nowhere, and no run has come to its end")
        if job.lock and waits and seen.locks.get(job.lock) != job.jid:
            wrong.append(f"{job.jid} is in {where[0]}, but its lock is {seen.locks.get(job.lock, 'free')}")
        if job.lock and not waits and seen.locks.get(job.lock) == job.jid:
            wrong.append(f"{job.jid} is over, but it holds its lock")
        if not waits and job.jid in seen.blames:
            wrong.append(f"{job.jid} is over, but its count of orphanings is left")
    return wrong


def wrong_at_the_end(evidence: Evidence) -> list[str]:
    """What the record of a whole run may not show."""
    checks = (_repeated, _overlapping, _miscounted, _left_over, _fired_twice, _wrongly_blamed, _wrong_in_the_log)
    return [sentence for check in checks for sentence in check(evidence)]


def _repeated(evidence: Evidence) -> list[str]:
    """A run that was reported as performed is the last one of its attempt, unless the supervisor was killed."""
    if evidence.supervisor_killed:
        return []
    wrong = []
    performed: set[tuple[str, int]] = set()
    attempt: dict[tuple[str, int], int] = {}
    for happening in evidence.happenings:
        run = (happening.jid, happening.pid)
        if happening.what == "start":
            attempt[run] = happening.attempt
            if (happening.jid, happening.attempt) in performed:
                wrong.append(f"attempt {happening.attempt} of {happening.jid} started again after its PERFORMED")
        elif happening.what == "performed" and run in attempt:
            performed.add((happening.jid, attempt[run]))
    return wrong


def _overlapping(evidence: Evidence) -> list[str]:
    """No run starts while another one of the job goes on."""
    wrong = []
    running: dict[str, set[int]] = defaultdict(set)
    overtaken: set[tuple[str, int]] = set()
    for happening in evidence.happenings:
        run = (happening.jid, happening.pid)
        if happening.what == "start":
            overtaken.update((happening.jid, pid) for pid in running[happening.jid] - {happening.pid})
            running[happening.jid].add(happening.pid)
        elif happening.what in ("end", "fail"):
            running[happening.jid].discard(happening.pid)
            if run in overtaken:
                wrong.append(f"{happening.jid} ended in process {happening.pid} after another run had started")
        elif happening.what == "overlap":
            wrong.append(f"{happening.jid} was started in process {happening.pid}, but {happening.detail}")
    return wrong


def _miscounted(evidence: Evidence) -> list[str]:
    last = evidence.last
    processed = sum(not job.dead for job in evidence.jobs)
    failed = sum(job.failed for job in evidence.jobs)
    wrong = []
    for name, counted, real in (("processed", last.processed, processed), ("failed", last.failed, failed)):
        if counted != real:
            wrong.append(f"stats:{name} is {counted} for {real} settled")
        if last.throughput[name] != counted:
            wrong.append(f"throughput has {last.throughput[name]} {name}, stats:{name} {counted}")
    for job in evidence.jobs:
        if job.lock and last.attempts.get(job.jid, 0) != job.failed:
            wrong.append(f"the log of {job.jid} holds {last.attempts.get(job.jid, 0)} failures of {job.failed}")
    return wrong


def _left_over(evidence: Evidence) -> list[str]:
    """At rest no entry is left but those of dead jobs, and no lock."""
    known = {job.jid for job in evidence.jobs}
    unknown = {jid: where for jid, where in evidence.last.places.items() if jid not in known}
    wrong = [f"{jid} is in {', '.join(where)}: a job of nobody" for jid, where in unknown.items()]
    return wrong + [f"the lock {key} is left, of {owner}" for key, owner in evidence.last.locks.items()]


def _fired_twice(evidence: Evidence) -> list[str]:
    """Each slot of a periodic entry is one job."""
    fired = defaultdict(set)
    for happening in evidence.happenings:
        if happening.what == "slot":
            fired[happening.detail].add(happening.jid)
    return [f"slot {slot} was fired {len(jids)} times" for slot, jids in fired.items() if len(jids) > 1]


def _wrongly_blamed(evidence: Evidence) -> list[str]:
    """Only a job whose own child died while it ran is counted; what a dead daemon leaves is, too: nobody knows more."""
    left = any(line["event"] == "recovery.done" for line in evidence.lines)
    if left or evidence.supervisor_killed or evidence.predecessor_killed:
        return []
    logged = {
        line.get("jid", "")
        for line in evidence.lines
        if line["event"] == "job.orphaned" and line.get("blame") and line.get("result") in ("requeued", "buried")
    }
    cut = _cut_short(evidence) if evidence.child_killed else set()
    return [f"{jid} was blamed, but its child did not die in it" for jid in (logged | evidence.looks_blamed) - cut]


def _cut_short(evidence: Evidence) -> set[str]:
    """Ids of jobs that a child has reported as started and not as performed."""
    open_runs: set[tuple[str, int]] = set()
    for happening in evidence.happenings:
        if happening.what == "started":
            open_runs.add((happening.jid, happening.pid))
        elif happening.what in ("performed", "requeued"):
            open_runs.discard((happening.jid, happening.pid))
    return {jid for jid, _ in open_runs}


def _wrong_in_the_log(evidence: Evidence) -> list[str]:
    wrong = []
    warnings = [line for line in evidence.lines if line.get("level") in ("warning", "error")]
    if len(evidence.lines) >= MOST_LINES:
        wrong.append(f"{len(evidence.lines)} lines in the log")
    if len(warnings) >= MOST_WARNINGS:
        wrong.append(f"{len(warnings)} warnings in the log")
    for line in evidence.lines:
        if line["event"] in _NEVER:
            wrong.append(f"{line['event']} in the log: {str(line)[:1000]}")
        elif line["event"] == "(text)":
            wrong.append(f"not a line of the log: {line['text'][:300]}")
        elif "exception" in line and line["event"] not in _OWN_TRACEBACKS:
            wrong.append(f"a traceback in {line['event']}: {line['exception'][-500:]}")
    return wrong
