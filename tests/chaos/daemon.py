"""A daemon of a run: started from the command line, its log, its processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support import ROOT

from .hooks import PLAN, Plan

APP = "tests.chaos.chaos_app:app"
_DEAD_WITHIN = 5.0


class Daemon:
    """Starts at once; its working directory is the repository's root.

    Args:
        url: the server, or the proxy before it.
        plan: what its hooks are to do.
        log: the file that its output goes to.
        flags: for `cogworkerd run`.
        env: more variables of the environment.
    """

    def __init__(self, url: str, plan: Plan, log: Path, *flags: str, env: Mapping[str, str]) -> None:
        self.log = log
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "cogworkerd", "run", APP, "--redis-url", url, "--preload"),
                    *("--tag", "chaos", "--log-format", "json", *flags),
                ],
                cwd=ROOT,
                env={**inherited, **env, PLAN: plan.encode()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self.process.pid

    @property
    def exited(self) -> bool:
        return self.process.poll() is not None

    @property
    def status(self) -> int | None:
        """The exit status; minus the signal's number; None while it runs."""
        return self.process.poll()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def lines(self) -> list[dict[str, Any]]:
        """The log's lines; one that is no JSON as `{"event": "(text)", "text": ...}`."""
        return [_line(text) for text in self.text().splitlines() if text]

    def is_ready(self) -> bool:
        return '"event":"daemon.ready"' in self.text()

    # ---- processes --------------------------------------------------------------------------------------

    def children(self) -> list[psutil.Process]:
        """Living processes right below the supervisor."""
        try:
            found = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child for child in found if is_alive(child.pid)]

    def left_behind(self) -> list[int]:
        """Living processes of this daemon's session, whoever their parent is now; the supervisor apart."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if os.getsid(pid) == self.pid and pid != self.pid and is_alive(pid):
                    found.append(pid)
        return found

    def kill(self) -> None:
        """SIGKILL for the supervisor; returns when it is dead."""
        if not self.exited:
            self.process.kill()
            # Another thread may have taken the exit status already.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def kill_all(self) -> None:
        """SIGKILL for every process of it."""
        self.kill()
        self.process.wait()
        for pid in self.left_behind():
            kill_and_wait(pid)


def kill_and_wait(pid: int) -> None:
    """SIGKILL for a process that is not our child; returns when it is dead."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    limit = time.monotonic() + _DEAD_WITHIN
    while is_alive(pid) and time.monotonic() < limit:
        time.sleep(0.001)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _line(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {"event": "(text)", "level": "error", "text": text}
