"""Which descriptors are the supervisor's own, and how a fresh child lets go of them."""

from __future__ import annotations

import contextlib
import os

_MOST_WITHOUT_A_LISTING = 4096


def open_descriptors() -> set[int]:
    """The open descriptors of this process."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return {int(name) for name in os.listdir(folder)}
        except OSError:
            continue
    found = set()
    for fd in range(_MOST_WITHOUT_A_LISTING):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.add(fd)
    return found


def forget(first: int, keep: set[int]) -> None:
    """In a child: put the null device in the place of every descriptor that is not to be kept.

    The epoll descriptor goes first: it is shared with the parent, and whatever a child then did to one of the parent's
    sockets or objects would make the parent deaf. Replacing, not closing: the number stays taken, so that a late
    destructor cannot close somebody else's.

    Args:
        first: the epoll descriptor of the parent's event loop.
        keep: descriptors that stay.
    """
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, first, inheritable=False)
    for fd in open_descriptors() - keep - {null, first, 0, 1, 2}:
        with contextlib.suppress(OSError):
            os.dup2(null, fd, inheritable=False)
    os.close(null)
