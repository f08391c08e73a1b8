"""Reading a daemon's log while it grows, in bounded memory: what it says about itself, and what it must not say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

OF_JOBS = ("job.failed", "job.dead", "job.unparseable")
"""Lines that jobs of the soak cause by design, however calm the server is."""

_FATAL = ("daemon.crashed", "daemon.registered_anew", "child.boot_failed", "child.hook_failed", "job.hook_failed")
_OF_THE_SOAK = ("WRONGTYPE", "NoScriptError")
"""Errors that faults of ours cause: a damaged key; scripts that are forgotten between their loading and their call."""

_LOUD = ("warning", "error")
_OUTAGE_BEGINS = ("redis.away", "redis.refusing")
_CHUNK = 2**20


class LogReader:
    """Reads on where it stopped.

    Attributes:
        events: how often each event was logged.
        loud: how many lines were warnings or errors, those of jobs left out.
        outages: how many outages of the server each site has told.
        problems: lines that no daemon should write, with a word on why; they are handed out once.
        kept: jobs that the daemon left on its list when it stopped ("unknown": it could not tell); "" before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: Counter[str] = Counter()
        self.loud: Counter[str] = Counter()
        self.outages: Counter[str] = Counter()
        self.problems: list[tuple[str, str]] = []
        self.kept = ""
        self._offset = 0
        self._rest = b""

    def read_on(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while data := file.read(_CHUNK):
                self._offset += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._take(line.decode("utf-8", "replace"))

    def take_problems(self) -> list[tuple[str, str]]:
        found, self.problems = self.problems, []
        return found

    def _take(self, text: str) -> None:
        try:
            line = json.loads(text)
            event = str(line["event"])
        except (ValueError, TypeError, KeyError):
            self.problems.append(("a line that is no event", text))
            return
        self.events[event] += 1
        if line.get("level") in _LOUD and event not in OF_JOBS:
            self.loud[event] += 1
        if event in _OUTAGE_BEGINS:
            self.outages[str(line.get("site"))] += 1
        if event == "daemon.stopped":
            self.kept = str(line["kept"])
        reason = _strange(event, line)
        if reason:
            self.problems.append((reason, text))


def _strange(event: str, line: dict[str, Any]) -> str:
    """Why this line should not be there; "" for all is well."""
    trace = str(line.get("exception", ""))
    if event in _FATAL:
        return event
    if trace and not (event in OF_JOBS and trace.rstrip().rpartition("\n")[2].startswith("SoakFailure:")):
        return "a traceback that is not a job's own"
    if event == "redis.error" and not any(words in str(line.get("error")) for words in _OF_THE_SOAK):
        return "an error of the server that is not its trouble"
    if event == "job.stray" and line.get("result") not in ("requeued", "gone", "void", "buried"):
        return "a stray that was not placed"
    return ""
