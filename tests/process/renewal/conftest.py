"""An application that is deployed again and again, and daemons of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.renewal.deploys import Folder, Start
from tests.process.test_service import Manager
from tests.support import Daemon, Server


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = tmp_path / "app"
    made.mkdir()
    return Folder(made)


@pytest.fixture
def deployed(daemon: Start, folder: Folder) -> Start:
    """Starts a daemon of the release that is there, or of release 1."""

    def start(*flags: str, **options: Any) -> Daemon:
        if not (folder.folder / "deployed.py").exists():
            folder.deploy(1)
        options.setdefault("app_dir", folder.folder)
        return daemon(*flags, target="deployed:app", **options).ready()

    return start


@pytest.fixture
def mortal(make_server: Callable[..., Server]) -> Server:
    """A server that the test may stop; it forgets nothing."""
    return make_server("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()
