"""C64: the application cannot be imported: exit 78 with the reason, and the waiting job is untouched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import Client, Daemon, push_raw

Start = Callable[..., Daemon]

HEAD = """import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
from cogworkerd import App
"""
MODULES = {
    "fine.py": HEAD + "app = App()\n",
    "text.py": HEAD + "app = 'an app'\n",
    "broken.py": HEAD + "app = App(\n\n\ndef\n",
    "outer.py": HEAD + "import middle\napp = App()\n",
    "middle.py": "import inner\n",
    "inner.py": "\n\nraise ImportError('libfoo')\n",
    "leaves.py": HEAD + "import sys\nsys.exit(0)\n",
    "unset.py": HEAD + "os.environ['MISSING']\napp = App()\n",
    "twice.py": HEAD
    + """app = App()


@app.job(name="one")
def first(): ...


@app.job(name="one")
def second(): ...
""",
}
# What is asked for, then words that the last lines hold: the reason, and the place in the user's code.
TARGETS = {
    "nomod:app": ("nomod",),
    "fine:nope": ("fine", "nope"),
    "fine": ("fine", "MODULE:ATTRIBUTE"),
    "broken:app": ("SyntaxError", "broken.py:"),
    "outer:app": ("libfoo", "inner.py:3"),
    "leaves:app": ("SystemExit", "leaves.py:6"),
    "unset:app": ("MISSING", "unset.py:5"),
    "text:app": ("text:app", "str"),
    "twice:app": ("one", "twice.py:12"),
}


@pytest.mark.parametrize("preload", ["--preload", "--no-preload"])
@pytest.mark.parametrize("target", TARGETS)
def test_c64_an_app_that_cannot_be_imported_ends_the_daemon_with_the_reason(
    target: str, preload: str, daemon: Start, client: Client, tmp_path: Path
) -> None:
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    imports = tmp_path / "imports"
    push_raw(client, "book", 1)
    client.config_resetstat()
    env = {"IMPORTS": str(imports)}
    running = daemon("-c", "2", preload, target=target, app_dir=tmp_path, env=env)
    assert running.exited(within=5) == 78
    last = "\n".join(running.text().splitlines()[-12:])
    for word in TARGETS[target]:
        assert word in last
    assert "Traceback" not in running.text()
    assert client.llen("cogworker:queue:default") == 1
    asked = set(client.info("commandstats"))
    assert not asked & {"cmdstat_hset", "cmdstat_evalsha", "cmdstat_eval", "cmdstat_sadd", "cmdstat_lmove"}
    started = set(imports.read_text().split()) if imports.exists() else set()
    assert len(started) <= 2 + 1
    assert not any(psutil.pid_exists(int(pid)) for pid in started)


def test_c64_an_import_that_fails_only_in_the_children_ends_the_daemon_too(
    daemon: Start, client: Client, tmp_path: Path
) -> None:
    """With preload off the first process that tries the import may get it where the children do not."""
    imports = tmp_path / "imports"
    (tmp_path / "moody.py").write_text(
        HEAD
        + """
if len(open(os.environ["IMPORTS"]).readlines()) > 1:
    raise ImportError("libmood")
app = App()
"""
    )
    push_raw(client, "book", 1)
    env = {"IMPORTS": str(imports)}
    running = daemon("-c", "2", "--no-preload", target="moody:app", app_dir=tmp_path, env=env)
    assert running.exited(within=5) == 78
    assert "libmood" in running.text()
    assert "moody.py:7" in running.text()
    assert client.llen("cogworker:queue:default") == 1
    assert client.scard("cogworker:processes") == 0
    assert client.keys("cogworker:inprogress:*") == []
    assert len(set(imports.read_text().split())) <= 2 + 1
    assert not any(psutil.pid_exists(int(pid)) for pid in imports.read_text().split())
