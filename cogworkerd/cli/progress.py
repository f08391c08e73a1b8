"""A line that shows how far bulk work is, on a terminal only."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

_EVERY = 0.1
_WIDTH = 20
_USUAL = 80


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _USUAL
    except OSError:
        return _USUAL


@contextlib.contextmanager
def progress_line(title: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    """Gives what is to be called with the numbers of entries seen and changed; None where nobody looks.

    Args:
        total: how many there were at the beginning; there may be more by now.
    """
    if not sys.stderr.isatty():
        yield None
        return
    shown = 0.0

    def show(seen: int, changed: int) -> None:
        nonlocal shown
        if time.monotonic() - shown < _EVERY:
            return
        shown = time.monotonic()
        share = min(seen / max(total, 1), 1.0)
        bar = "#" * round(_WIDTH * share)
        line = f"{title} [{bar:.<{_WIDTH}}] {share:4.0%} {seen:,} seen, {changed:,} done"
        sys.stderr.write(f"\r{line[: _columns() - 1]}\x1b[K")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
