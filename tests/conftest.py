"""Servers and daemons for all tests. `--server` chooses what runs: redis, valkey; both must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import Client, Daemon, Server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--server", choices=("redis", "valkey"), default="valkey", help="what the tests run against")


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
