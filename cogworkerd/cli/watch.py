"""`status --watch`: one screen that refreshes in place until Ctrl-C."""

from __future__ import annotations

import shutil
import sys
import time

import redis.exceptions

from cogworkerd.cli.screen import screen
from cogworkerd.errors import UsageError
from cogworkerd.jobsets import Store
from cogworkerd.overview import Watcher

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(store: Store, server: str, every: float) -> int:
    """Show the fleet until told to end. Returns 0.

    Args:
        server: its address, as it may be shown.
        every: seconds between two looks.

    Raises:
        UsageError: the output is no terminal.
    """
    if not sys.stdout.isatty():
        raise UsageError("--watch draws on a terminal, and the output is none; for scripts there is --json")
    watcher = Watcher(store)
    sys.stdout.write(_ENTER)
    try:
        while True:
            width, height = shutil.get_terminal_size((80, 24))
            try:
                lines = screen(watcher.look(), server, width, height)
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
                lines = [f"cogworkerd  {server}", "", f"the server is away: {error}"[:width]]
            _draw(lines)
            time.sleep(every)
    except KeyboardInterrupt:
        return 0
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _draw(lines: list[str]) -> None:
    """All at once, over what was there: a screen that is cleared first would flicker."""
    text = "\r\n".join(line + _TO_END_OF_LINE for line in lines)
    sys.stdout.write(_HOME + text + _TO_END)
    sys.stdout.flush()
