"""A real systemd runs the installed wheel, in a box that is thrown away: in_the_box.sh.

`pytest -m systemd -n 0 -s tests/systemd` builds the box (a Debian of its own, one to four minutes, kept in
COGWORKERD_BOX, by default /var/tmp/cogworkerd-box) and prints what an operator would see. Where a box cannot be had the
test is skipped with the reason, or fails if REQUIRE_SYSTEMD is set. The box has no limits on memory: what becomes of a
job that eats all of it is tests/process/test_out_of_memory.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PATIENCE, ROOT

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent
BOX = HERE / "systemd-in-a-box.sh"
CACHE = os.environ.get("COGWORKERD_BOX", "/var/tmp/cogworkerd-box")
PYTHON = "/usr/bin/python3"  # the box has the same


def unavailable(reason: str) -> None:
    if os.environ.get("REQUIRE_SYSTEMD"):
        pytest.fail(reason)
    pytest.skip(reason)


def run(*command: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=timeout
    )
    print(done.stdout)
    return done


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv of the system's Python that holds the wheel."""
    folder = tmp_path_factory.mktemp("box") / "venv"
    if os.geteuid() != 0:
        unavailable("a box needs root")
    if not os.path.exists(PYTHON) or run(PYTHON, "-m", "venv", "--without-pip", str(folder)).returncode:
        unavailable(f"{PYTHON} makes no venv")
    version = run(PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))")
    if version.returncode:
        unavailable(f"{PYTHON} is too old")
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q")
    installed = run(*pip, f"{ROOT}[speed]")
    assert installed.returncode == 0
    return folder


def box(venv: Path, script: str) -> subprocess.CompletedProcess[str]:
    built = run(str(BOX), "build", "--cache", CACHE)
    if built.returncode:
        unavailable(f"the box cannot be built: {built.stdout[-500:]}")
    mounts = ("--bind-ro", f"{venv}:/venv", "--bind-ro", f"{HERE}:/tests")
    patience = ("--env", f"PATIENCE={max(1, round(PATIENCE))}")
    options = ("--cache", CACHE, "--timeout", "500", *mounts, *patience)
    return run(str(BOX), "run", *options, "--", "bash", f"/tests/{script}")


def test_a_life_of_the_service(venv: Path) -> None:
    done = box(venv, "in_the_box.sh")
    if done.returncode == 125:
        unavailable(f"the box does not boot: {done.stdout[-500:]}")
    assert done.returncode == 0
    assert done.stdout.rstrip().endswith("== all is well")
