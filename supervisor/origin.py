"""How this program was started: enough to start it again, in the same process or beside it, with new code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

# The second underscore keeps these variables apart from settings.
PRELOAD_OFF = "COGWORKERD__PRELOAD_OFF"
"""Set across the one exec that turns preload off; its value names the threads."""

HANDOVER = "COGWORKERD__HANDOVER"
"""The number of the descriptor that holds what a supervisor hands to the next program of its process."""

CHECK = "COGWORKERD__CHECK"
"""Set for a process that only tells whether it could take over from the supervisor that started it."""

WARD = "COGWORKERD__WARD"
"""Set for a daemon that runs suspects, one at a time; its value says which."""

OURS = (PRELOAD_OFF, HANDOVER, CHECK, WARD)


@dataclass(frozen=True)
class Origin:
    """What the process was started with, before the application could change it.

    Attributes:
        command: the interpreter and its words.
        environment: all variables but our own.
        folder: the working directory as it was named, which may lead through a link to the newest release.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    umask: int

    @classmethod
    def capture(cls) -> Origin:
        """Of this process; to be called before anything of the application is imported."""
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        umask = os.umask(0o077)
        os.umask(umask)
        return cls((sys.executable, *sys.orig_argv[1:]), environment, _folder(environment.get("PWD", "")), umask)

    def start_beside(self, ours: Mapping[str, str], but: Collection[str] = (), **popen: Any) -> subprocess.Popen[bytes]:
        """Start that program in a process of its own, in a group of its own.

        Args:
            ours: further variables; but: names of variables that it is not to have.
            popen: further arguments of `subprocess.Popen`.

        Raises:
            OSError: it could not be started.
        """
        environment = {name: value for name, value in self.environment.items() if name not in but}
        return subprocess.Popen(
            self.command,
            env={**environment, **ours},
            cwd=self.folder,
            umask=self.umask,
            stdin=subprocess.DEVNULL,
            process_group=0,
            **popen,
        )

    def reason(self, error: OSError) -> str:
        """Why it could not be started, in words."""
        return f"{error.filename or self.command[0]}: {error.strerror}"

    def start_again(self, **ours: str) -> None:
        """Become that program anew. Signals should be blocked: they then wait for the new one.

        Args:
            ours: further variables.

        Raises:
            OSError: the folder or the interpreter is gone. Nothing has changed.
        """
        os.chdir(self.folder)
        os.umask(self.umask)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.command[0], self.command, {**self.environment, **ours})


def _folder(named: str) -> str:
    try:
        if named and os.path.samefile(named, "."):
            return named
    except OSError:
        pass
    try:
        return os.getcwd()
    except OSError:
        return "/"
