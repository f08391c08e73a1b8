"""The files in which the kernel tells a process of itself."""

from __future__ import annotations

import os


def open_proc_self(name: str, flags: int) -> int | None:
    """A descriptor for /proc/self/<name>, to be kept: to open it costs more than to read it. None: there is none."""
    try:
        return os.open(f"/proc/self/{name}", flags | os.O_CLOEXEC)
    except OSError:
        return None
