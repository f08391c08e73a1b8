"""What the two type checkers make of the public API: right code passes, each planted error is found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

HERE = Path(__file__).parent


def _mypy(path: Path) -> set[int]:
    """The lines of a file that mypy --strict complains about."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        check=False,
    )
    found = re.findall(rf"{re.escape(path.name)}:(\d+): error", done.stdout)
    assert found or done.returncode == 0, done.stdout + done.stderr
    return {int(line) for line in found}


def _pyright(path: Path) -> set[int]:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(path)],
        capture_output=True,
        text=True,
        cwd=path.parent,
        check=False,
    )
    report = json.loads(done.stdout)
    return {
        entry["range"]["start"]["line"] + 1
        for entry in report["generalDiagnostics"]
        if entry["severity"] == "error" and Path(entry["file"]).name == path.name
    }


CHECKERS = {"mypy": _mypy, "pyright": _pyright}


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_code_passes(checker: str) -> None:
    assert CHECKERS[checker](HERE / "good.py") == set()


@pytest.mark.parametrize("checker", CHECKERS)
def test_each_planted_error_is_found(checker: str) -> None:
    path = HERE / "planted.py"
    planted = {n for n, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# planted")}
    assert CHECKERS[checker](path) == planted


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_snippets_of_the_readme_pass(checker: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    (tmp_path / "jobs.py").write_text(blocks[0])
    (tmp_path / "application.py").write_text(blocks[1])
    for name in ("jobs.py", "application.py"):
        assert CHECKERS[checker](tmp_path / name) == set()
