"""The unit files: what they say, what systemd thinks of them, and that the files in systemd/ are the ones we write."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cogworkerd.settings import Settings
from cogworkerd.systemd_units import Service, check_name, environment_file, unit
from tests.support import ROOT

PROGRAM = "/opt/cogworkerd/bin/cogworkerd"
EXPOSURE = 20
"""Of 100, by `systemd-analyze security`: all that is open is what jobs need, the network and a file system to read."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
WRITTEN = {
    "cogworkerd.service": unit(Service(PROGRAM, "/etc/cogworkerd/cogworkerd.env")),
    "cogworkerd@.service": unit(Service(PROGRAM, "/etc/cogworkerd/%i.env", "cogworkerd@")),
    "cogworkerd.env": environment_file("shop.jobs:app", "/srv/shop"),
}
KINDS = {
    "own user": Service(sys.executable, "/etc/x.env"),
    "account": Service(sys.executable, "/etc/x.env", account="daemon", shutdown_timeout=100.0),
    "user's manager": Service(sys.executable, "/home/x/x.env", user_manager=True),
}


def values(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_files_of_the_repository_are_what_the_functions_write(name: str) -> None:
    assert (ROOT / "systemd" / name).read_text() == WRITTEN[name]


@pytest.mark.parametrize("kind", KINDS)
def test_c61_what_a_unit_must_say(kind: str) -> None:
    text = unit(KINDS[kind])
    wanted = {
        "Type": "notify",
        "NotifyAccess": "main",
        "ExecReload": "/bin/kill -USR2 $MAINPID",
        "KillMode": "mixed",
        "OOMPolicy": "continue",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "78",
    }
    assert {name: values(text, name) for name in wanted} == {name: [value] for name, value in wanted.items()}
    (stop,) = values(text, "TimeoutStopSec")
    assert int(stop) > KINDS[kind].shutdown_timeout + 10
    assert values(text, "ExecStop") == []
    assert "PRELOAD" not in text
    assert values(text, "User") in ([], ["daemon"])


def test_the_units_timeout_is_that_of_the_default_drain() -> None:
    assert Service(PROGRAM, "").shutdown_timeout == Settings().shutdown_timeout


@needs_systemd
@pytest.mark.parametrize("kind", KINDS)
def test_c61_systemd_has_nothing_to_say_against_a_unit(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cogworkerd.service"
    path.write_text(unit(KINDS[kind]))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("kind", ["own user", "account"])
def test_what_a_unit_leaves_open_is_little(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cogworkerd.service"
    path.write_text(unit(KINDS[kind]))
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["cogworkerd", "cogworkerd@", "shop-jobs_2.x"])
def test_a_units_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "@", "a b", "../x", "x/y", "é", "a@b@"])
def test_what_is_no_units_name(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 100 letters"):
        check_name(name)
