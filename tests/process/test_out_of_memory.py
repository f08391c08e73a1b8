"""A job that eats all memory, in a control group of the test's own: it loses its process, the daemon goes on."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]
GROUPS = Path("/sys/fs/cgroup/memory")
WALL = 200 * 2**20
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@pytest.fixture
def wall() -> Iterator[Path]:
    """A group whose processes have 200 MiB together."""
    group = GROUPS / f"cogworkerd-test-{secrets.token_hex(4)}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(WALL))
    except OSError as error:
        pytest.skip(f"no memory group can be made here: {error}")
    yield group
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        with contextlib.suppress(OSError):
            group.rmdir()
            break
        time.sleep(0.1)  # its last process is on its way out


def test_out_of_memory_the_kernel_takes_the_job_and_not_the_supervisor(
    daemon: Start, client: Client, wall: Path
) -> None:
    running = daemon(
        "-c", "2", "--max-orphanings", "1", target="service_jobs:app", wrap=("sh", "-c", ENTER, str(wall))
    ).ready()
    push_raw(client, "eats", jid="e" * 24)
    eventually(lambda: client.zcard("cogworker:dead") == 1, 30)
    (entry,) = client.zrange("cogworker:dead", 0, -1)
    assert "ProcessDied" in entry
    assert "SIGKILL" in entry
    assert os.path.exists(f"/proc/{running.pid}")
    push_raw(client, "told")
    eventually(lambda: client.get("cogworker:stats:processed") == "1", 10)
    assert all(line["reason"].startswith("signal 9") for line in running.lines("child.died"))
    assert running.stop() == 0
