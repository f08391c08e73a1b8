"""The audit: what the record of a soak must show about each job.

The record is read once for each first digit of a job's id, so that memory holds a sixteenth of the jobs at a time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from tests.chaos.soak_findings import Findings, Violation
from tests.chaos.soak_fleet import MAX_ORPHANINGS, Past
from tests.chaos.soak_producer import DEAD, DIED, DONE, UNPARSEABLE
from tests.chaos.soak_record import NOBODY, Line, clock_text, read

_VERDICTS = ("acked", "unknown", "refused")
_ENDS = ("end", "fail")
_ERRORS = {DEAD: "SoakFailure", DIED: "ProcessDied", UNPARSEABLE: "Unparseable"}
_MOST_LINES = 120
_CLOCK_STEP = 0.001  # of the logs' times


@dataclass
class Tally:
    """Numbers for the summary.

    Attributes:
        again: runs of an attempt that had begun before.
        excused: runs after PERFORMED whose supervisor was killed, or stopped, with the outcome not settled.
        longest_wait: seconds from a push or a failure to the next run; waited: the job that had to wait so long.
    """

    jobs: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    again: int = 0
    performed: int = 0
    excused: int = 0
    longest_wait: float = 0.0
    waited: str = ""


@dataclass
class Context:
    """What a job's own lines do not tell.

    Attributes:
        dead: error classes of a job's entries in dead.
        killed: where in the record each supervisor was killed.
    """

    dead: dict[str, list[str]]
    past: Past
    killed: dict[str, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    def may_run_again(self, performed: Line, start: Line) -> bool:
        """Whether the knowledge of an outcome died with its supervisor before this start."""
        if self.killed.get(performed.daemon, start.at) < start.at:
            return not self._was_settled(performed)
        return performed.daemon in self.past.left_jobs

    def _was_settled(self, performed: Line) -> bool:
        """Whether the supervisor says that it has settled this outcome, while it lived."""
        return any(
            line.get("event") == "settle.done"
            and line.get("result") == "settled"
            and datetime.fromisoformat(str(line["timestamp"])).timestamp() > performed.time - _CLOCK_STEP
            for line in _log_lines(self.past.logs[performed.daemon], performed.jid)
        )


Story = list[Line]
Rule = Callable[[Story, Context], Iterator[str]]


def audit(record: Path, dead: Iterable[tuple[str, str]], past: Past, findings: Findings) -> Tally:
    """Check every job of the record.

    Args:
        dead: id and error class of every entry of dead.
    """
    entries: dict[str, list[str]] = defaultdict(list)
    for jid, error in dead:
        entries[jid].append(error)
    context = Context(dict(entries), past, _kills(record))
    seen: set[str] = set()
    for digit in "0123456789abcdef":
        for jid, story in _stories(record, digit).items():
            if jid in entries:
                seen.add(jid)
            _judge(jid, story, context, findings)
    for jid in entries.keys() - seen:
        findings.add("in dead, and nobody pushed it", f"{jid}: {entries[jid]}", jid)
    return context.tally


def _kills(record: Path) -> dict[str, int]:
    return {line.daemon: line.at for line in read(record) if line.what == "killed" and line.daemon != NOBODY}


def _stories(record: Path, digit: str) -> dict[str, Story]:
    found: dict[str, Story] = defaultdict(list)
    for line in read(record):
        if line.jid[0] == digit:
            found[line.jid].append(line)
    return found


def _judge(jid: str, story: Story, context: Context, findings: Findings) -> None:
    for name, rule in _RULES.items():
        for text in rule(story, context):
            findings.add(name, f"{jid}: {text}", jid)
    tally = context.tally
    runs = sum(line.what == "start" for line in story)
    tally.runs += runs
    tally.again += max(0, runs - len({line.attempt for line in story if line.what == "start"}))
    tally.performed += sum(line.what == "performed" for line in story)
    for before, line in pairwise(line for line in story if line.what in ("acked", "fail", "start")):
        if line.what == "start" and before.what != "start" and line.time - before.time > tally.longest_wait:
            tally.longest_wait, tally.waited = line.time - before.time, jid


# ---- rules ----------------------------------------------------------------------------------------------------------


def _right_end(story: Story, context: Context) -> Iterator[str]:
    """A job that was pushed ends as it should, one that was refused does not exist, and nothing else is there."""
    verdict = next((line for line in story if line.what in _VERDICTS), None)
    jid, traces = story[0].jid, [line for line in story if line.what not in _VERDICTS]
    errors = context.dead.get(jid, [])
    if verdict is None:
        yield f"nobody pushed it, but {traces[0]}"
        return
    context.tally.jobs[verdict.what] += 1
    if verdict.what == "refused":
        if traces or errors:
            yield f"the push was refused, and yet: {[str(line) for line in traces[:1]]}, in dead: {errors}"
    elif verdict.what == "acked" or traces or errors:
        yield from _end_as_expected(verdict.detail.split()[0], story, errors)


def _end_as_expected(expected: str, story: Story, errors: list[str]) -> Iterator[str]:
    ends = sum(line.what == "end" for line in story)
    if expected != DONE:
        if errors != [_ERRORS[expected]]:
            yield f"it should be in dead once with {_ERRORS[expected]}, and is there with {errors}"
        if ends:
            yield "it should fail, and has a success"
    elif errors == ["ProcessDied"] and _lost_runs(story) >= MAX_ORPHANINGS - 1:
        return  # by an odd chance this one was hit again and again
    elif errors:
        yield f"it should be done, and is in dead with {errors}"
    elif not ends:
        yield "it was never performed to a success"


def _lost_runs(story: Story) -> int:
    starts, ends = (sum(line.what in names for line in story) for names in (("start",), _ENDS))
    return starts - ends


def _not_again(story: Story, context: Context) -> Iterator[str]:
    """Nothing starts again once its PERFORMED was wholly written, while that run's supervisor lives; nor, whatever
    happens, once it is settled."""
    performed: dict[int, Line] = {}
    settled: dict[int, Line] = {}
    for line in story:
        if line.what == "performed":
            performed[line.attempt] = line
        elif line.what == "settled":
            settled[line.attempt] = line
        elif line.what == "start":
            yield from (f"[{line}] after [{settled[attempt]}]" for attempt in settled if attempt >= line.attempt)
            for attempt in [attempt for attempt in performed if attempt >= line.attempt]:
                before = performed.pop(attempt)
                if attempt in settled:
                    continue
                if context.may_run_again(before, line):
                    context.tally.excused += 1
                else:
                    yield f"[{line}] after [{before}], whose supervisor lived"


def _one_at_a_time(story: Story, context: Context) -> Iterator[str]:
    """Two runs of one job never overlap: no run says anything after another one has started, and none finds the
    process of another alive when it starts."""
    open_runs: dict[tuple[str, int], Line] = {}
    overtaken: dict[tuple[str, int], Line] = {}
    for line in story:
        run = (line.daemon, line.pid)
        if line.what == "start":
            if line.detail:
                yield f"[{line}]"
            overtaken.update({other: line for other in open_runs if other != run})
            open_runs[run] = line
            overtaken.pop(run, None)
        elif line.what in _ENDS and run in open_runs:
            del open_runs[run]
            if run in overtaken:
                yield f"[{line}] after [{overtaken.pop(run)}] had started"


def _forward(story: Story, context: Context) -> Iterator[str]:
    """Once a later attempt has started, no earlier one comes back."""
    highest = 0
    for line in story:
        if line.what == "start":
            if line.attempt < highest:
                yield f"[{line}] after attempt {highest} had started"
            highest = max(highest, line.attempt)


_RULES: dict[str, Rule] = {
    "the right end": _right_end,
    "not again once performed": _not_again,
    "one run at a time": _one_at_a_time,
    "attempts go forward": _forward,
}


# ---- stories --------------------------------------------------------------------------------------------------------


def tell(violation: Violation, record: Path, logs: dict[str, Path]) -> Iterator[str]:
    """A violation with all that is known about its job: the record's lines, the faults meanwhile, the logs' lines."""
    yield f"VIOLATION of '{violation.rule}': {violation.text}"
    if not violation.jid:
        return
    own = [line for line in read(record) if line.jid == violation.jid]
    told = [(line.time, f"record  {line}") for line in own]
    if own:
        first, last = own[0].time - 1.0, own[-1].time + 1.0
        faults = (line for line in read(record) if line.jid == NOBODY and first <= line.time <= last)
        told += [(line.time, f"        {line}") for line in faults]
    texts = [text for _, text in sorted(told)]
    for label, path in logs.items():
        texts += [f"log {label}  {json.dumps(line)[:600]}" for line in _log_lines(path, violation.jid)]
    yield from (f"    {text}" for text in texts[:_MOST_LINES])
    if own:
        yield f"    (the record from {clock_text(own[0].time)} on)"


def _log_lines(path: Path, jid: str) -> Iterator[dict[str, object]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if jid in text:
                try:
                    yield json.loads(text)
                except ValueError:
                    yield {"event": "not an event", "text": text}
