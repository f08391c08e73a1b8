"""cogworkerd demo: what it prints is what a direct count says, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support import eventually


def start(*words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")}
    return subprocess.Popen(
        [sys.executable, "-m", "cogworkerd", "demo", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def left_behind(session: int) -> list[str]:
    """Processes of the demo that still run: its daemon carries the tag."""
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if re.search(r"cogworkerd:\S+ demo \[", " ".join(process.info["cmdline"] or []))
    ]


def make_files(folder: Path, count: int) -> tuple[int, int, int]:
    size = lines = words = 0
    for n in range(count):
        text = f"word {n}\n" * (n + 1)
        (folder / f"{n:03}.txt").write_text(text)
        size, lines, words = size + len(text), lines + n + 1, words + 2 * (n + 1)
    return size, lines, words


def test_the_table_agrees_with_a_direct_count(tmp_path: Path) -> None:
    size, lines, words = make_files(tmp_path, 120)
    process = start(str(tmp_path), "-c", "2")
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, output + errors
    found = dict(re.findall(r"^  (\S.*?)  +(\S+)$", output, re.MULTILINE))
    assert (found["files"], found["bytes"], found["lines"], found["words"]) == (
        "120",
        str(size),
        str(lines),
        str(words),
    )
    assert found["retries"] == "2"
    assert found["killed and came back"] == "yes"
    assert found["slots"] == "2"
    assert left_behind(process.pid) == []


def test_an_interrupt_ends_it_cleanly(tmp_path: Path) -> None:
    make_files(tmp_path, 120)
    process = start(str(tmp_path), "-c", "2")
    eventually(lambda: len(left_behind(process.pid)) == 3, 20, "the daemon runs")
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    assert "Traceback" not in output + errors
    eventually(lambda: left_behind(process.pid) == [])


def test_a_folder_without_files_is_said(tmp_path: Path) -> None:
    process = start(str(tmp_path))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "no readable file" in errors
