"""The crash dossier: all that is known of a child's death and of the job that it held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cogworkerd.status import progress_text
from cogworkerd.text import printable

from .slot import ChildExit

MOST_LINES = 40


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
        return "\n".join([self.headline, *(printable(line, 300) for line in self.stack[:MOST_LINES])])
