"""Whether the kernel's out-of-memory killer has struck: counters of our control group and of the machine."""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from pathlib import Path

_V2 = Path("/sys/fs/cgroup")
_V1 = Path("/sys/fs/cgroup/memory")
IN_THE_GROUP = "killed by the kernel for lack of memory in its control group"
ON_THE_MACHINE = "probably killed by the kernel for lack of memory on the machine"
JUST_NOW = 2.0
"""Seconds for which a kill may explain a death."""

_MOST = 100
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """Compares counters: each step of one says that some process was killed just then.

    Args:
        membership: the file that names our control groups.
        v2, v1: where the files of the groups are.
        machine: the file that has the machine's counter.
    """

    def __init__(
        self,
        membership: Path = Path("/proc/self/cgroup"),
        v2: Path = _V2,
        v1: Path = _V1,
        machine: Path = Path("/proc/vmstat"),
    ) -> None:
        self._group = _counter_file(membership, v2, v1)
        self._machine = machine
        self._seen = self._read()
        self._kills: deque[tuple[float, str]] = deque()

    def look(self) -> None:
        """Look at the counters, every second or so: what has happened long before a death has nothing to do with it."""
        before, self._seen = self._seen, self._read()
        now = time.monotonic()
        ours = _growth(before[0], self._seen[0])
        theirs = max(0, _growth(before[1], self._seen[1]) - ours)
        self._kills.extend([(now, IN_THE_GROUP)] * min(ours, _MOST) + [(now, ON_THE_MACHINE)] * min(theirs, _MOST))
        while self._kills and now - self._kills[0][0] > JUST_NOW:
            self._kills.popleft()

    def evidence(self) -> str:
        """Whether the process that has just died of SIGKILL was killed by the kernel, in words; "" for no sign of it.

        A counter of our group is proof that one of our processes was, the machine's is a hint. Each kill explains one
        death.
        """
        self.look()
        for found in sorted(self._kills, key=lambda kill: kill[1] != IN_THE_GROUP):
            self._kills.remove(found)
            return found[1]
        return ""

    def _read(self) -> tuple[int | None, int | None]:
        return _count(self._group), _count(self._machine)


def _growth(before: int | None, now: int | None) -> int:
    return max(0, now - before) if before is not None and now is not None else 0


def _count(path: Path | None) -> int | None:
    if path is None:
        return None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        match = _COUNT.search(path.read_text())
        return int(match[1]) if match else None
    return None


def _counter_file(membership: Path, v2: Path, v1: Path) -> Path | None:
    """The file of our own control group that counts kills; None where there is none to be seen."""
    try:
        lines = membership.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    candidates = []
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, group = line.split(":", 2)
        inside = group.lstrip("/")
        if controllers == "":
            candidates += [v2 / inside / "memory.events", v2 / "memory.events"]  # the second one in a container
        elif "memory" in controllers.split(","):
            candidates += [v1 / inside / "memory.oom_control", v1 / "memory.oom_control"]
    return next((path for path in candidates if _count(path) is not None), None)
