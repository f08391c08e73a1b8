"""Plain tables for terminals and logs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cogworkerd.text import printable


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "none") -> str:
    """A titled table; columns as wide as they need, numbers to the right."""
    if not rows:
        return f"{title}: {empty}"
    cells = [[printable(str(cell), 60) for cell in row] for row in rows]
    widths = [max(len(head[i]), *(len(row[i]) for row in cells)) for i in range(len(head))]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = [cell.rjust(w) if n else cell.ljust(w) for cell, w, n in zip(row, widths, numeric, strict=True)]
        return "  " + "  ".join(padded).rstrip()

    return "\n".join([title, line(head), *(line(row) for row in cells)])


def size(kb: int | None) -> str:
    """KiB in the unit that reads best."""
    if kb is None:
        return "unknown"
    return f"{kb / 1024:.0f} MiB" if kb < 2**20 else f"{kb / 2**20:.1f} GiB"


def duration(seconds: float) -> str:
    """A time span in at most two units."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
