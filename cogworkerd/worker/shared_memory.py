"""Memory that processes share: a memory file where there are such, which survives an exec; else an anonymous map."""

from __future__ import annotations

import mmap
import os


def shared_memory(name: str, size: int, fd: int | None = None) -> tuple[int | None, mmap.mmap]:
    """Memory for this process and those that it forks.

    Args:
        name: as /proc shows it.
        size: in bytes.
        fd: of a memory file that is there already.

    Returns:
        The descriptor of its file, or None, and the map.
    """
    if not hasattr(os, "memfd_create"):
        return None, mmap.mmap(-1, size)
    if fd is None:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
    return fd, mmap.mmap(fd, size)
