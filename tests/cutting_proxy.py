"""A proxy in front of a server that ends a line at a chosen command: before the server sees it, or after."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttingProxy:
    """Passes bytes to a server and back until a command comes by that it was told to cut the line at.

    Attributes:
        sent: everything that clients have sent, in order of arrival.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.sent = b""
        self._marker = b""
        self._times = 0
        self._reaches_server = False
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut_before(self, marker: bytes, times: int = 1) -> None:
        """End the line instead of passing on a packet that holds this marker."""
        self._marker, self._times, self._reaches_server = marker, times, False

    def cut_after(self, marker: bytes, times: int = 1) -> None:
        """Pass the packet that holds this marker on, and end the line instead of passing its answer back."""
        self._marker, self._times, self._reaches_server = marker, times, True

    @property
    def cuts_left(self) -> int:
        return self._times

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                deaf = threading.Event()
                self._start(self._pump_commands, near, far, deaf)
                self._start(self._pump_answers, near, far, deaf)

    def _pump_commands(self, near: socket.socket, far: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(2**20):
                self.sent += data
                if self._times and self._marker in data:
                    self._times -= 1
                    if not self._reaches_server:
                        break
                    deaf.set()
                far.sendall(data)
        _end(far)
        _end(near)

    def _pump_answers(self, near: socket.socket, far: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(2**20):
                if deaf.is_set():
                    break
                near.sendall(data)
        _end(near)
        _end(far)

    def close(self) -> None:
        for held in self._sockets:
            _end(held)
        for thread in self._threads:
            thread.join(5)
        for held in self._sockets:
            held.close()


def _end(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
