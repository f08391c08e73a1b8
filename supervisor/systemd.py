"""Talking to systemd: the notify protocol of sd_notify(3), which is datagrams of `NAME=value` lines.

Only the supervisor talks. Nothing here ever raises: a service manager that does not listen is no reason to stop.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_LONGEST_STATUS = 200


class Notifier:
    """Says nothing where nobody asked to be told.

    Args:
        address: of the manager's socket: a path, or `@` and an abstract name; "" for nobody.
        watchdog: seconds within which it wants to hear from us; 0.0: it does not watch.
    """

    def __init__(self, address: str = "", watchdog: float = 0.0) -> None:
        self.watchdog = watchdog
        self._socket: socket.socket | None = None
        self._status = ""
        if not address.startswith(("/", "@")):
            return
        # An abstract name begins with a null byte, which no variable of an environment can hold.
        self._address = address.replace("@", "\0", 1) if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] | None = None) -> Notifier:
        """What the manager asked for. The variables are taken out of the environment: a job, or a program that it
        starts, must not speak for the daemon, nor keep its watchdog quiet."""
        env = os.environ if environ is None else environ
        address, usec, pid = (env.pop(name, "") for name in VARIABLES)
        watched = usec.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(usec) / 1e6 if watched else 0.0)

    def ready(self) -> None:
        """The daemon works, or works again after `reloading`."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Children are being replaced; `ready` says that it is over."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The drain begins."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent if it has changed."""
        text = text.replace("\n", " ")[:_LONGEST_STATUS]
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def alive(self) -> None:
        """For the watchdog."""
        self._send("WATCHDOG=1")

    def hold_watchdog(self, seconds: float) -> None:
        """The loop is about to stand still, for so long at most."""
        if self.watchdog:
            self._send(f"WATCHDOG_USEC={int(max(seconds, self.watchdog) * 1e6)}\nWATCHDOG=1")

    def release_watchdog(self) -> None:
        """The loop turns again: it watches as it did at first."""
        if self.watchdog:
            self._send(f"WATCHDOG_USEC={int(self.watchdog * 1e6)}\nWATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """What is under way, the start or the stop, may take so long from now on."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(message.encode("utf-8", "replace"), self._address)
