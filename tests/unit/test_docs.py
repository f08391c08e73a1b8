"""The documentation names tests, files and commands that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TESTS = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text("utf-8")))
    missing = [name for name in named if f"def {name}(" not in TESTS]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    named = set(re.findall(r"`((?:cogworkerd|supervisor|tests|docs)/[\w./]*)`", text))
    named |= {f"{page.parent.relative_to(ROOT)}/{link}" for link in re.findall(r"\]\(([\w./]+\.md)\)", text)}
    named |= {f"{module.replace('.', '/')}" for module in re.findall(r"python -m (tests\.\w+)", text)}
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()]
    assert missing == []
