"""Servers and daemons for all tests. `--server` chooses what runs: redis, valkey; both must pass."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import Client, Command, Daemon, Server

PROCESS = Path(__file__).parent / "process"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--server", choices=("redis", "valkey"), default="valkey", help="what the tests run against")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of one process test only the first is not slow: the short run has one of each kind. Files with long
    cases come first: none is then alone at the end of a parallel run."""
    seen = set()
    for item in items:
        if item.path.is_relative_to(PROCESS) and item.get_closest_marker("slow") is None:
            test = item.path, getattr(item, "originalname", item.name)
            if test in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(test)
    long = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(scope="session")
def _server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.config.getoption("--server"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def _witness(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.config.getoption("--server"))
    yield server
    server.close()


@pytest.fixture
def make_server(request: pytest.FixtureRequest) -> Iterator[Callable[..., Server]]:
    """Start a server with options of its own."""
    made: list[Server] = []

    def make(*options: str) -> Server:
        made.append(Server(request.config.getoption("--server"), *options))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def server(_server: Server) -> Server:
    """The server of this session, emptied."""
    with _server.client() as client:
        client.flushall()
    return _server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of the server, decoding."""
    with server.client() as found:
        yield found


@pytest.fixture
def witness(_witness: Server) -> Iterator[Client]:
    """A client of the server that jobs keep their own books on: no fault ever touches it."""
    with _witness.client() as found:
        found.flushall()
        yield found


@pytest.fixture
def daemon(server: Server, _witness: Server, witness: Client) -> Iterator[Callable[..., Daemon]]:
    """Start daemons: `daemon("-c", "4")`, with keyword arguments of `Daemon`; `url=` for another server."""
    started: list[Daemon] = []

    def start(*flags: str, url: str | None = None, **options: Any) -> Daemon:
        found = Daemon(server.url if url is None else url, _witness.url, *flags, **options)
        started.append(found)
        return found

    yield start
    for found in started:
        found.close()


@pytest.fixture
def command(server: Server, witness: Client, tmp_path: Path) -> Command:
    """Run a command against the session's server, from an empty folder."""
    port = witness.connection_pool.connection_kwargs["port"]

    def run(
        *words: str, url: str | None = None, text: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")}
        return subprocess.run(
            [sys.executable, "-m", "cogworkerd", *words],
            input=text,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={
                **clean,
                "COGWORKERD_REDIS_URL": url or server.url,
                "WITNESS_URL": f"redis://127.0.0.1:{port}/0",
                **environment,
            },
            check=False,
        )

    return run
