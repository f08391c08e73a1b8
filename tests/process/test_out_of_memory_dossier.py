"""The kernel's out-of-memory killer in dossiers: named for those that it has killed, in a group of the test's own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cogworkerd import App
from cogworkerd.inspect import History, Store
from cogworkerd.supervisor.oom import JUST_NOW
from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]
V2, V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
WALL = 200 * 2**20
KILLED = "signal 9 (SIGKILL), killed by the kernel for lack of memory in its control group"
ENTER = 'ulimit -c 0 && echo $$ > "$0/cgroup.procs" && exec "$@"'


@dataclass(frozen=True)
class Group:
    """A control group of version 1 or 2."""

    path: Path

    @property
    def wrap(self) -> tuple[str, ...]:
        """Before a command that is to run in it."""
        return ("sh", "-c", ENTER, str(self.path))

    @property
    def kills(self) -> int:
        name = "memory.events" if (self.path / "memory.events").exists() else "memory.oom_control"
        fields = dict(line.split() for line in (self.path / name).read_text().splitlines())
        if "oom_kill" not in fields:
            pytest.skip("this kernel does not count kills by group")
        return int(fields["oom_kill"])


@pytest.fixture
def group() -> Iterator[Group]:
    """A group whose processes have 200 MiB together."""
    v1 = (V1 / "memory.limit_in_bytes").exists()
    made = Group((V1 if v1 else V2) / f"cogworkerd-test-{secrets.token_hex(4)}")
    try:
        made.path.mkdir()
        (made.path / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(WALL))
        with contextlib.suppress(OSError):
            (made.path / "memory.swap.max").write_text("0")
    except OSError as error:
        with contextlib.suppress(OSError):
            made.path.rmdir()
        pytest.skip(f"no memory group can be made here: {error}")
    yield made
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        with contextlib.suppress(OSError):
            made.path.rmdir()
            break
        time.sleep(0.1)  # its last process is on its way out


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    """A client that knows the jobs by their names."""
    made = App(server.url)
    yield made
    made.client.close()


def start(daemon: Start, group: Group, tmp_path: Path, slots: int = 2) -> Daemon:
    limits = ("-c", str(slots), "--max-orphanings", "1")
    return daemon(*limits, target="crashing_jobs:app", wrap=group.wrap, cwd=tmp_path).ready()


def begun(witness: Client, jid: str, run: int = 1) -> int:
    """Wait until the job has begun so often; the pid of its process."""
    found = eventually(
        lambda: [mark for mark in witness.lrange(f"t:marks:{jid}", 0, -1) if mark.startswith("began")][run - 1 :], 10
    )
    return int(found[0].split()[1])


def test_the_dossier_of_a_job_that_ran_out_of_memory_names_the_kernels_killer(
    group: Group, daemon: Start, app: App, client: Client, witness: Client, tmp_path: Path
) -> None:
    running = start(daemon, group, tmp_path)
    jid = push_raw(client, "eat", retry=5)
    (raw,) = eventually(lambda: client.zrange("cogworker:dead", 0, -1), 30)
    entry = json.loads(raw)
    assert (entry["jid"], entry["error_class"]) == (jid, "ProcessDied")
    assert entry["error_message"].startswith(f"the process that ran it died 2 times; last by {KILLED}, peak RSS ")
    assert entry["error_message"].endswith(" MiB, last progress: 40 % half way")
    history = History(Store.of(app))
    eventually(lambda: len(history.of_job(jid, "failed")) == 2)
    runs = history.of_job(jid, "failed")
    lines = running.lines("child.died")
    assert len(lines) == group.kills == 2
    for told in (*(run.error_message for run in runs), *(line["reason"] for line in lines)):
        assert told.startswith(KILLED)
    assert all(50 * 1024 < line["rss_kb"] <= WALL // 1024 + 50 * 1024 for line in lines)
    other = push_raw(client, "note")
    eventually(lambda: witness.exists(f"t:marks:{other}"))
    eventually(lambda: len(running.children()) == 2)
    assert running.stop() == 0
    running.clean_log()


def test_a_job_that_somebody_kills_is_not_said_to_have_been_killed_for_lack_of_memory(
    group: Group, daemon: Start, client: Client, witness: Client, tmp_path: Path
) -> None:
    running = start(daemon, group, tmp_path)
    jid = push_raw(client, "crash", "waits")
    for run in (1, 2):
        os.kill(begun(witness, jid, run), signal.SIGKILL)
    eventually(lambda: len(running.lines("child.died")) == 2)
    assert all(line["reason"].startswith("signal 9 (SIGKILL), peak RSS ") for line in running.lines("child.died"))
    assert group.kills == 0
    assert running.stop() == 0


def test_what_the_kernel_has_killed_before_is_not_laid_to_a_job_that_somebody_kills(
    group: Group, daemon: Start, client: Client, witness: Client, tmp_path: Path
) -> None:
    """A program of an earlier job ran out of memory; its job and its child went on. A kill within two seconds of that
    would be taken for the kernel's: its counter names no process."""
    running = start(daemon, group, tmp_path, slots=1)
    earlier = push_raw(client, "eat_in_a_program")
    (mark,) = eventually(lambda: witness.lrange(f"t:marks:{earlier}", 0, -1), 30)
    assert mark.startswith("program ended by 9 ")
    assert group.kills == 1
    over = time.monotonic() + JUST_NOW + 1.5  # and the sweep, which comes once a second
    jid = push_raw(client, "crash", "waits")
    pid = begun(witness, jid)
    eventually(lambda: time.monotonic() > over)
    assert pid == int(mark.split()[-1])
    os.kill(pid, signal.SIGKILL)
    (line,) = eventually(lambda: running.lines("child.died"))
    assert line["reason"].startswith("signal 9 (SIGKILL), peak RSS ")
