"""Who this daemon is: its identity, its machine, and a name that is taken as long as one of its processes lives."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from pathlib import Path

_NAMESPACES = ("pid", "net")


def new_identity() -> str:
    """`<hostname>:<pid>:<12 hex>`."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"


def machine() -> dict[str, str] | None:
    """What tells two machines, or two containers of one name, apart; None where the system does not say.

    Processes see each other's sign of life only if all of these are equal.
    """
    try:
        found = {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
        for name in _NAMESPACES:
            found[name] = os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return None
    return found


class SignOfLife:
    """An abstract socket named after an identity. Supervisor and children hold it: the name is free once all are gone,
    by evidence that is older than any fetch of theirs.

    Args:
        fd: of the socket, where this process holds it already.
    """

    def __init__(self, identity: str, fd: int | None = None) -> None:
        self._socket: socket.socket | None = None
        if fd is not None:
            self._socket = socket.socket(fileno=fd)
            return
        with contextlib.suppress(OSError):
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            held.bind(_address(identity))
            self._socket = held

    @property
    def fd(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def leave_open(self) -> int | None:
        """Forget the socket without closing it.

        Returns:
            Its descriptor.
        """
        held, self._socket = self._socket, None
        return None if held is None else held.detach()

    def close(self) -> None:
        """Let go of the name, at the very end."""
        if self._socket is not None:
            self._socket.close()

    @staticmethod
    def gone(identity: str) -> bool:
        """Whether nobody on this machine holds the name of this identity."""
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            probe.bind(_address(identity))
        except OSError:
            return False
        finally:
            probe.close()
        return True


def catches(pid: int | None, number: int) -> bool:
    """Whether a process has a handler for a signal; True where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)
    except (OSError, ValueError, StopIteration, IndexError):
        return True


def _address(identity: str) -> bytes:
    return b"\0cogworkerd-" + identity.encode()[-90:]
