"""The guard of a private server: a process of its own, run as a script.

Arguments: the read end of the life pipe, a folder to remove at the end or "", then the server's command line.
It starts the server, waits until the pipe ends or the server does, and leaves no server behind.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys

_LOOK_EVERY = 500  # ms
_TERM_TIMEOUT = 10.0


def main() -> int:
    life, remove, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: told.append(got))
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    poll = select.poll()
    poll.register(life, select.POLLIN)  # nobody writes: an event is the end of the last holder
    while not told and server.poll() is None and not poll.poll(_LOOK_EVERY):
        pass
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(_TERM_TIMEOUT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    if remove:
        shutil.rmtree(remove, ignore_errors=True)
    return server.returncode or 0


if __name__ == "__main__":
    os.chdir("/")
    sys.exit(main())
