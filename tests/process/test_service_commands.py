"""cogworkerd systemd and cogworkerd healthcheck, as an operator types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import APPS, ROOT, Client, Daemon, Server, eventually

Start = Callable[..., Daemon]


def cogworkerd(*words: str, home: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    full = {**os.environ, "WITNESS_URL": "redis://127.0.0.1:1", **({"HOME": str(home)} if home else {}), **env}
    command = [sys.executable, "-m", "cogworkerd", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=full, cwd=ROOT, timeout=60)


INSTALL = ("systemd", "install", "jobs:app", "--app-dir", str(APPS))


def test_a_service_of_a_user_is_written_kept_overwritten_when_told_and_taken_away(tmp_path: Path) -> None:
    done = cogworkerd(*INSTALL, "--user", home=tmp_path)
    assert done.returncode == 0, done.stderr
    unit = tmp_path / ".config" / "systemd" / "user" / "cogworkerd.service"
    env = tmp_path / ".config" / "cogworkerd" / "cogworkerd.env"
    assert f"EnvironmentFile={env}" in unit.read_text()
    assert f"APP_DIR={APPS}" in env.read_text()
    assert env.stat().st_mode & 0o077 == 0
    assert "systemctl --user daemon-reload" in done.stdout
    env.write_text("mine")
    again = cogworkerd(*INSTALL, "--user", home=tmp_path)
    assert (again.returncode, env.read_text()) == (1, "mine")
    assert "--force overwrites" in again.stderr
    assert cogworkerd(*INSTALL, "--user", "--force", home=tmp_path).returncode == 0
    assert env.read_text() != "mine"
    assert cogworkerd("systemd", "uninstall", "--user", home=tmp_path).returncode == 0
    assert not unit.exists()
    assert not env.exists()
    gone = cogworkerd("systemd", "uninstall", "--user", home=tmp_path)
    assert (gone.returncode, "is there" in gone.stderr) == (1, True)


def test_printing_writes_nothing(tmp_path: Path) -> None:
    done = cogworkerd(*INSTALL, "--user", "--print", "--name", "shop", home=tmp_path)
    assert done.returncode == 0
    assert "Type=notify" in done.stdout
    assert "shop.env" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_unit_has_the_drain_of_the_settings(tmp_path: Path) -> None:
    done = cogworkerd(*INSTALL, "--print", home=tmp_path, COGWORKERD_SHUTDOWN_TIMEOUT="100")
    assert "TimeoutStopSec=115" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("systemd", "install", "nowhere:app", "--user"), 78, "no module 'nowhere'"),
        ((*INSTALL, "--name", "a b"), 78, "--name = 'a b'"),
        (("systemd",), 2, "VERB"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    words: tuple[str, ...], status: int, says: str, tmp_path: Path
) -> None:
    done = cogworkerd(*words, home=tmp_path)
    assert done.returncode == status
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


# ---- healthcheck ----------------------------------------------------------------------------------------


def health(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    return cogworkerd("healthcheck", *words, COGWORKERD_REDIS_URL=server.url)


def test_a_daemon_that_is_well(daemon: Start, server: Server) -> None:
    running = daemon("-c", "2", "--tag", "shop").ready()
    done = health(server, "--tag", "shop")
    assert (done.returncode, done.stderr) == (0, "")
    assert "well, 0/2 busy" in done.stdout
    assert health(server, "--tag", "other").returncode == 1
    assert running.stop() == 0
    stopped = health(server)
    assert (stopped.returncode, "no daemon of this host" in stopped.stderr) == (1, True)


def test_a_supervisor_that_hangs_is_not_well(daemon: Start, server: Server) -> None:
    running = daemon("-c", "1").ready()
    running.signal(signal.SIGSTOP)
    eventually(lambda: health(server, "--within", "2").returncode == 1, 10)
    assert "its last beat is" in health(server, "--within", "2").stderr
    running.signal(signal.SIGCONT)
    assert running.stop() == 0


def test_a_daemon_whose_children_are_just_replaced_is_well(daemon: Start, server: Server) -> None:
    """What it last told of its slots is then of processes that are gone."""
    running = daemon("-c", "2").ready()
    for _ in range(3):
        for child in running.child_pids():
            os.kill(child, signal.SIGTERM)
        done = health(server)
        assert (done.returncode, done.stderr) == (0, "")
    assert running.stop() == 0


def test_a_slot_without_a_process_is_not_well(daemon: Start, server: Server, client: Client) -> None:
    """As its supervisor last told it: the supervisor is suspended before it can notice."""
    running = daemon("-c", "1").ready()
    (child,) = running.child_pids()
    running.signal(signal.SIGSTOP)
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{child}/exe").exists() or _zombie(child))
    done = health(server, "--within", "60")
    assert (done.returncode, "1 of 1 slots" in done.stderr) == (1, True)
    running.signal(signal.SIGCONT)
    assert running.stop() == 0


def _zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_server_that_is_away_is_told_by_another_status(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.stop()
    assert health(server).returncode == 69
