"""Whether the kernel's out-of-memory killer has struck: counters of our control group and of the machine."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_V2 = Path("/sys/fs/cgroup")
_V1 = Path("/sys/fs/cgroup/memory")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """Compares counters: one that has grown since the last look says that some process was killed meanwhile.

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

    def evidence(self) -> str:
        """What has happened since the last call, in words; "" for nothing. A counter of our group is proof, the
        machine's is a hint: it may have been somebody else's process."""
        before, self._seen = self._seen, self._read()
        if _grew(before[0], self._seen[0]):
            return "killed by the kernel for lack of memory in its control group"
        if _grew(before[1], self._seen[1]):
            return "probably killed by the kernel for lack of memory on the machine"
        return ""

    def _read(self) -> tuple[int | None, int | None]:
        return _count(self._group), _count(self._machine)


def _grew(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before


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
        _, controllers, group = line.split(":", 2)
        inside = group.lstrip("/")
        if controllers == "":
            candidates += [v2 / inside / "memory.events", v2 / "memory.events"]  # the second one in a container
        elif "memory" in controllers.split(","):
            candidates += [v1 / inside / "memory.oom_control", v1 / "memory.oom_control"]
    return next((path for path in candidates if _count(path) is not None), None)
