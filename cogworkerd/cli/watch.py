"""`status --watch`: one screen that refreshes in place until Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from types import FrameType

import redis.exceptions

from cogworkerd.cli.screen import fitted, screen
from cogworkerd.errors import UsageError
from cogworkerd.jobsets import Store
from cogworkerd.overview import Watcher
from cogworkerd.text import printable

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _TO_END = "\x1b[H", "\x1b[2K", "\x1b[J"


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
    for number in (signal.SIGTERM, signal.SIGINT):  # INT may be ignored: a shell does that to what it puts behind
        signal.signal(number, _end)
    sys.stdout.write(_ENTER)
    try:
        while True:
            width, height = shutil.get_terminal_size((80, 24))
            try:
                lines = screen(watcher.look(), server, width, height)
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
                texts = (f"cogworkerd  {server}", "", f"the server is away: {printable(str(error), 500)}")
                lines = [fitted(text, width).rstrip() for text in texts][:height]
            _draw(lines, height)
            time.sleep(every)
    except KeyboardInterrupt:
        return 0
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _end(number: int, frame: FrameType | None) -> None:
    """It ends in order, so that the terminal is given back."""
    raise KeyboardInterrupt


def _draw(lines: list[str], height: int) -> None:
    """All at once, over what was there: a screen that is cleared first would flicker."""
    text = "\r\n".join(_CLEAR_LINE + line for line in lines)
    rest = "\r\n" + _TO_END if len(lines) < height else ""
    sys.stdout.write(_HOME + text + rest)
    sys.stdout.flush()
