"""Looking names up without a thread at rest."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cogworkerd.supervisor import resolver
from cogworkerd.supervisor.resolver import ResolvingLoop


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResolvingLoop]:
    """A loop of the supervisor's kind; the environment as it was afterwards."""
    monkeypatch.delenv("RES_OPTIONS", raising=False)
    found = ResolvingLoop()
    yield found
    found.close()
    os.environ.pop("RES_OPTIONS", None)


def ask(loop: ResolvingLoop, host: str = "localhost") -> list[Any]:
    return loop.run_until_complete(loop.getaddrinfo(host, 80, type=socket.SOCK_STREAM))


def test_the_thread_of_a_look_up_ends_with_it(loop: ResolvingLoop) -> None:
    assert ask(loop) == socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
    for thread in threading.enumerate():
        if thread.name == "cogworkerd-lookup":
            thread.join(5)
    assert loop.fork_is_safe


def test_a_literal_address_needs_no_look_up(loop: ResolvingLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a look-up")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        async def connect() -> None:
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            await writer.wait_closed()

        loop.run_until_complete(connect())


def test_the_last_good_answer_serves_when_the_name_server_fails(
    loop: ResolvingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ask(loop)

    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "temporary failure")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert ask(loop) == good
    with pytest.raises(socket.gaierror):
        ask(loop, "elsewhere.invalid")


def test_a_name_server_that_never_answers_blocks_nothing_and_no_fork_is_made(
    loop: ResolvingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def wait(*_: Any, **__: Any) -> list[Any]:
        answer.wait(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    monkeypatch.setattr(resolver, "LOOKUP_TIMEOUT", 0.05)
    with pytest.raises(OSError, match="did not answer for 'silent'"):
        ask(loop, "silent")
    assert not loop.fork_is_safe
    answer.set()
    for thread in threading.enumerate():
        if thread.name == "cogworkerd-lookup":
            thread.join(5)
    assert loop.fork_is_safe


def test_jobs_look_names_up_as_the_system_says(loop: ResolvingLoop) -> None:
    assert os.environ["RES_OPTIONS"] == "timeout:1 attempts:1"
    loop.restore_environment()
    assert "RES_OPTIONS" not in os.environ
