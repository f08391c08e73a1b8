"""The crash dossier: all that is known of a child's death and of the job that it held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cogworkerd.status import progress_text
from cogworkerd.text import printable

from .slot import ChildExit

_MOST_LINES = 40


def excerpt(stack: Sequence[str], most: int = _MOST_LINES) -> list[str]:
    """At most so many lines of what faulthandler wrote: of the first thread the innermost frames and a few of the
    outermost, which tell where it was and how it came there; then the other threads."""
    stack = list(stack)
    if len(stack) <= most:
        return stack
    inside = [number for number, line in enumerate(stack) if line.startswith("  ")]
    first = inside[0] if inside else 0
    end = next((number for number in range(first, len(stack)) if not stack[number].startswith("  ")), len(stack))
    outer = most // 4
    if end <= most or not outer:
        return stack[:most]
    inner = most - outer - 1
    return [*stack[:inner], f"  ... {end - outer - inner} frames", *stack[end - outer : end]]


@dataclass(frozen=True)
class Dossier:
    """One death.

    Attributes:
        oom: what says that the kernel's out-of-memory killer did it; "" for nothing.
        notes: what the run last said of itself: `pct`, `message`.
        stack: what faulthandler wrote when the process crashed, or when it was asked before it was killed.
    """

    ended: ChildExit
    oom: str = ""
    notes: Mapping[str, str] | None = None
    stack: Sequence[str] = ()

    @property
    def progress(self) -> str:
        return progress_text(self.notes or {})

    @property
    def headline(self) -> str:
        """The death in one line."""
        parts = [self.ended.how]
        if self.oom:
            parts.append(self.oom)
        if self.ended.core:
            parts.append("core dumped")
        parts.append(f"peak RSS {self.ended.rss_kb // 1024} MiB")
        if self.progress:
            parts.append(f"last progress: {self.progress}")
        return ", ".join(parts)

    @property
    def text(self) -> str:
        """The headline, and below it the stack."""
        return "\n".join([self.headline, *(printable(line, 300) for line in excerpt(self.stack))])
