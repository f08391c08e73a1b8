"""What is built and installed: one top-level name, the supervisor inside, nothing of anybody else's overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import cogworkerd
from tests.support import ROOT

SHOW_BOTH = """
import supervisor.options, cogworkerd.supervisor.supervisor, sys
assert "site-packages" in cogworkerd.__file__, cogworkerd.__file__
assert not hasattr(sys.modules["supervisor"], "ledger")
from cogworkerd.store.scripts import SETTLE
assert "LREM" in SETTLE.text
print(cogworkerd.__version__)
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    # Whatever the tests' own environment says must not reach a fresh one.
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=clean, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def test_the_wheel_has_one_top_level_name_and_all_parts(built: Path) -> None:
    wheel = next(built.glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"cogworkerd"}
    for part in ("supervisor/supervisor.py", "store/lua/settle_and_fetch.lua", "py.typed", "embedded_guard.py"):
        assert f"cogworkerd/{part}" in names


def test_the_sdist_holds_plain_files(built: Path) -> None:
    sdist = next(built.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        members = {member.name.split("/", 1)[1]: member for member in archive.getmembers() if "/" in member.name}
    assert members["cogworkerd/supervisor/supervisor.py"].isfile()
    assert not any(member.issym() for member in members.values())


def test_the_wheel_works_beside_the_project_supervisor(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "v", with_pip=True)
    python = tmp_path / "v" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", next(built.glob("*.whl")), "supervisor")
    assert run(python, "-c", SHOW_BOTH, cwd=tmp_path).strip() == cogworkerd.__version__
    assert run(tmp_path / "v" / "bin" / "cogworkerd", "--version").strip() == f"cogworkerd {cogworkerd.__version__}"
    assert run(tmp_path / "v" / "bin" / "supervisord", "--version").strip()
    run(python, "-m", "pip", "uninstall", "-q", "-y", "cogworkerd")
    run(python, "-c", "import supervisor.options", cwd=tmp_path)


def test_the_folder_is_one_link_in_git() -> None:
    assert run("git", "ls-files", "-s", "cogworkerd/supervisor").startswith("120000 ")
    assert os.readlink(ROOT / "cogworkerd" / "supervisor") == "../supervisor"


def test_sources_that_lost_the_link_give_a_sentence_and_no_wheel(tmp_path: Path) -> None:
    archive = tmp_path / "sources.zip"
    run("git", "archive", "--format=zip", "-o", archive, "HEAD")
    folder = tmp_path / "sources"
    zipfile.ZipFile(archive).extractall(folder)  # writes a link as a file with its target's name
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "lost a symbolic link" in done.stdout + done.stderr
    assert not list(folder.rglob("*.whl"))


def test_no_module_is_loaded_under_the_other_projects_name() -> None:
    code = (
        "import cogworkerd.supervisor.supervisor, sys;"
        "print([name for name in sys.modules if name.split('.')[0] == 'supervisor'])"
    )
    assert run(sys.executable, "-c", code).strip() == "[]"


def test_clients_and_the_command_line_load_where_nothing_forks(tmp_path: Path) -> None:
    """Windows: no fork, no fcntl, fewer signals. Clients work; `run` is one sentence and exit 78."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, signal\n"
        "sys.modules['fcntl'] = None\n"
        "for name in ('fork', 'register_at_fork', 'sched_getaffinity', 'memfd_create'): delattr(os, name)\n"
        "for name in ('SIGTSTP', 'SIGCONT', 'SIGHUP', 'SIGUSR2', 'SIGTTIN'): delattr(signal, name)\n"
    )
    (tmp_path / "jobs.py").write_text(
        "from cogworkerd import App\napp = App()\n@app.job\ndef f(n: int) -> None: ...\nprint(f.call(1).args)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )

    assert python("-c", "import jobs").stdout == "[1]\n"
    refused = python("-m", "cogworkerd", "run", "jobs:app")
    assert refused.returncode == 78
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
