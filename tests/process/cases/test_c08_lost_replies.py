"""C08: the reply to a push is lost on its way: the push is never sent again behind the caller's back."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis.exceptions

from cogworkerd import App
from cogworkerd.errors import PushUnknown
from tests.support import Client, Server, eventually

PUSHES = (b"LPUSH", b"ZADD")
LOST = 2


class LosingProxy:
    """Passes every request on, but throws the replies to the first two that push away.

    Attributes:
        pushes: how many packets that push came by.
        closes: instead of staying silent it closes the line.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.pushes = 0
        self.closes = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        deaf = threading.Event()
        threading.Thread(target=self._bring_back, args=(server, client, deaf), daemon=True).start()
        try:
            while data := client.recv(2**16):
                if any(word in data for word in PUSHES):
                    self.pushes += 1
                    if self.pushes <= LOST:
                        deaf.set()
                server.sendall(data)
        except OSError:
            pass
        _hang_up(server)

    def _bring_back(self, server: socket.socket, client: socket.socket, deaf: threading.Event) -> None:
        try:
            while data := server.recv(2**16):
                if not deaf.is_set():
                    client.sendall(data)
                elif self.closes:
                    break
        except OSError:
            pass
        _hang_up(client)

    def close(self) -> None:
        for held in (self._listener, *self._sockets):
            _hang_up(held)  # a close alone does not end what a thread waits for
            held.close()


def _hang_up(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


@pytest.fixture
def proxy(server: Server) -> Iterator[LosingProxy]:
    made = LosingProxy(server.port)
    yield made
    made.close()


def _entries(client: Client) -> Counter[str]:
    """How many entries each jid has, now and later."""
    raws = [*client.lrange("cogworker:queue:default", 0, -1), *client.zrange("cogworker:schedule", 0, -1)]
    return Counter(json.loads(raw)["jid"] for raw in raws)


@pytest.fixture
def app(proxy: LosingProxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("COGWORKERD_REDIS_URL", f"redis://127.0.0.1:{proxy.port}/0{request.param}")
    app = App()

    @app.job(name="book")
    def book(n: int) -> None:
        pass

    return app


def _calls(app: App) -> dict[str, Callable[[], str | list[str | None] | None]]:
    book = app.jobs["book"]
    return {
        "enqueue": lambda: book.enqueue(1),
        "enqueue_in": lambda: book.enqueue_in(3600, 2),
        "enqueue_many": lambda: book.enqueue_many([(3,), (4,), (5,)]),
        "aenqueue": lambda: asyncio.run(book.aenqueue(6)),
    }


URLS = pytest.mark.parametrize(
    "app", ["?socket_timeout=1", pytest.param("", marks=pytest.mark.slow, id="the usual time-out")], indirect=True
)


@URLS
@pytest.mark.parametrize("closes", [False, True], ids=["silent", "closed"])
@pytest.mark.parametrize("way", ["enqueue", "enqueue_in", "enqueue_many", "aenqueue"])
@pytest.mark.timeout(30)
def test_c08_a_push_without_an_answer_is_sent_once_and_raises(
    way: str, closes: bool, app: App, proxy: LosingProxy, client: Client
) -> None:
    """R1, R4."""
    proxy.closes = closes
    count = 3 if way == "enqueue_many" else 1
    for turn in (1, 2):  # both replies that get lost
        with pytest.raises(redis.exceptions.RedisError) as caught:
            _calls(app)[way]()
        assert isinstance(caught.value, PushUnknown)
        assert proxy.pushes == turn
        entries = _entries(client)
        assert len(entries) == turn * count
        assert set(entries.values()) == {1}
        assert set(caught.value.jids) <= set(entries)
        assert len(caught.value.jids) == count

    told = _calls(app)[way]()
    jids = told if isinstance(told, list) else [told]
    assert len(jids) == count
    entries = _entries(client)
    assert len(entries) == 3 * count
    assert set(entries.values()) == {1}
    assert {str(jid) for jid in jids} <= set(entries)


@pytest.mark.parametrize("app", ["?socket_timeout=1"], indirect=True)
def test_c08_a_push_that_was_never_sent_is_no_unknown(app: App, proxy: LosingProxy, client: Client) -> None:
    proxy.close()
    with pytest.raises(redis.exceptions.ConnectionError) as caught:
        app.jobs["book"].enqueue(1)
    assert not isinstance(caught.value, PushUnknown)
    eventually(lambda: not _entries(client))
