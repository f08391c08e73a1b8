"""C37: a periodic entry whose expression cannot be used ends the daemon, and the check, before anything is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import Client, Daemon, Server, eventually, push_raw

Start = Callable[..., Daemon]

REFUSED = [
    "0 0 30 2 *",
    "0 0 31 4,6,9,11 *",
    "60 * * * *",
    "* * * *",
    "",
    "@reboot",
    "@every 5m",
    "*/0 * * * *",
    "0 0 * * 5L",
    "0 0 LW * *",
]
ON_THE_APP = """from cogworkerd import App
app = App()

@app.job(name="nightly")
def nightly() -> None: ...

app.periodic("* * * * * *", nightly)
app.periodic({cron!r}, nightly)
"""
IN_TOML = """[[periodic]]
cron = "* * * * * *"
job = "nightly"

[[periodic]]
cron = "{cron}"
job = "nightly"
"""
WROTE = {"cmdstat_hset", "cmdstat_evalsha", "cmdstat_eval", "cmdstat_sadd", "cmdstat_lmove"}


def write_app(folder: Path, cron: str, place: str) -> None:
    (folder / "entries.py").write_text(ON_THE_APP.format(cron=cron if place == "app" else "@daily"))
    if place == "toml":
        (folder / "cogworkerd.toml").write_text(IN_TOML.format(cron=cron))


def says_which(text: str, cron: str) -> None:
    (line,) = [line for line in text.splitlines() if "periodic entry 'nightly'" in line]
    assert f"({cron!r})" in line
    assert "Traceback" not in text


CASES = pytest.mark.parametrize(
    ("cron", "place"), [*((cron, "app") for cron in REFUSED), *((cron, "toml") for cron in (REFUSED[0], ""))]
)


@CASES
def test_c37_the_daemon_refuses_to_start_and_fetches_nothing(
    cron: str, place: str, daemon: Start, client: Client, tmp_path: Path
) -> None:
    write_app(tmp_path, cron, place)
    push_raw(client, "nightly")
    client.config_resetstat()
    running = daemon("-c", "2", target="entries:app", app_dir=tmp_path)
    assert running.exited(within=5) == 78
    says_which(running.text(), cron)
    assert client.llen("cogworker:queue:default") == 1
    assert not set(client.info("commandstats")) & WROTE


def test_c37_a_daemon_whose_children_import_the_app_refuses_too(daemon: Start, client: Client, tmp_path: Path) -> None:
    write_app(tmp_path, REFUSED[0], "app")
    push_raw(client, "nightly")
    running = daemon("-c", "2", "--no-preload", target="entries:app", app_dir=tmp_path)
    assert running.exited(within=5) == 78
    assert repr(REFUSED[0]) in running.text()
    assert client.llen("cogworker:queue:default") == 1
    assert client.scard("cogworker:processes") == 0


@CASES
def test_c37_check_refuses_it(cron: str, place: str, server: Server, tmp_path: Path) -> None:
    write_app(tmp_path, cron, place)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")}
    done = subprocess.run(
        [sys.executable, "-m", "cogworkerd", "check", "entries:app", "--app-dir", str(tmp_path)],
        env={**clean, "COGWORKERD_REDIS_URL": server.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 78
    says_which(done.stdout + done.stderr, cron)


def test_c37_an_entry_that_can_be_used_starts(daemon: Start, client: Client, tmp_path: Path) -> None:
    """What the refusals above are measured against: without the bad entry this very app fires."""
    write_app(tmp_path, "0 9 29 2 *", "app")
    running = daemon("-c", "1", target="entries:app", app_dir=tmp_path).ready()
    eventually(lambda: running.lines("cron.fired"))
    assert client.hlen("periodic:schedule") == 2
    assert running.stop() == 0
    running.clean_log()
