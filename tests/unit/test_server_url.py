"""C19: URLs of the server, read once and strictly. A password is in no text that anybody sees."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from cogworkerd.errors import SettingsError
from cogworkerd.settings import Layer, combine
from cogworkerd.store.connection import Server, URLError

PASSWORD = "p@ss/w#rd"
ENCODED = "p%40ss%2Fw%23rd"


def arguments_of(url: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """What redis-py's connections get."""
    return dict(Server.parse(url, options).pool().connection_kwargs)


def refusal(url: str, options: dict[str, Any] | None = None) -> str:
    with pytest.raises(URLError) as caught:
        Server.parse(url, options)
    return str(caught.value)


# ---- the case's forms ----------------------------------------------------------------------------------


def test_c19_1_an_encoded_password_with_a_database() -> None:
    found = arguments_of(f"redis://:{ENCODED}@127.0.0.1:7000/3")
    assert (found["host"], found["port"], found["db"], found["password"]) == ("127.0.0.1", 7000, 3, PASSWORD)


def test_c19_2_a_raw_password_with_odd_characters_says_to_encode_it() -> None:
    assert "percent-encode the password" in refusal(f"redis://:{PASSWORD}@127.0.0.1:7000/3")


def test_c19_3_a_database_is_a_number() -> None:
    assert "notadb" in refusal("redis://127.0.0.1:7000/notadb")


def test_c19_4_an_unknown_option_is_named() -> None:
    assert "'foo'" in refusal("redis://127.0.0.1:7000/0?foo=bar")


def test_c19_5_a_unix_socket_with_a_database() -> None:
    found = arguments_of(f"unix://:{ENCODED}@/run/redis.sock?db=2")
    assert (found["path"], found["db"], found["password"]) == ("/run/redis.sock", 2, PASSWORD)


def test_c19_6_another_scheme_is_named_with_those_allowed() -> None:
    text = refusal("http://127.0.0.1")
    assert "'http'" in text
    for scheme in ("redis://", "rediss://", "unix://", "redis+sentinel://"):
        assert scheme in text


@pytest.mark.parametrize("url", ["", "  ", "\n"])
def test_c19_7_an_empty_url(url: str) -> None:
    assert "empty" in refusal(url)


def test_c19_8_sentinels_with_a_master_and_a_database() -> None:
    pool = Server.parse("redis+sentinel://127.0.0.1:1,[::1]:2/mymaster/4").pool()
    assert isinstance(pool, redis.sentinel.SentinelConnectionPool)
    assert pool.service_name == "mymaster"
    assert pool.connection_kwargs["db"] == 4
    hosts = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in hosts] == [("127.0.0.1", 1), ("::1", 2)]


# ---- what is read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", {"host": "h", "db": 0, "port": 6379}),
        ("redis://h/", {"host": "h", "db": 0}),
        ("redis://h?", {"host": "h", "db": 0}),
        ("redis://h:1/15/", {"host": "h", "port": 1, "db": 15}),
        ("redis://h?db=5", {"host": "h", "db": 5}),
        ("redis://user@h", {"username": "user"}),
        ("redis://us%40er:p%25@h", {"username": "us@er", "password": "p%"}),
        ("redis://[::1]:7000/2", {"host": "::1", "port": 7000, "db": 2}),
        ("rediss://h:7", {"host": "h", "port": 7}),
        ("unix:///run/s", {"path": "/run/s", "db": 0}),
        ("redis://h/0?socket_timeout=9&max_connections=4", {"socket_timeout": 9.0}),
    ],
)
def test_urls_that_mean_something(url: str, expected: dict[str, Any]) -> None:
    found = {"db": 0, "port": 6379, **arguments_of(url)}
    assert {name: found[name] for name in expected} == expected


def test_the_scheme_chooses_the_kind_of_connection() -> None:
    for url, kind, asynchronous in (
        ("redis://h", redis.Connection, redis.asyncio.Connection),
        ("rediss://h", redis.SSLConnection, redis.asyncio.SSLConnection),
        ("unix:///run/s", redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection),
    ):
        assert Server.parse(url).pool().connection_class is kind
        assert Server.parse(url).async_pool().connection_class is asynchronous


def test_credentials_of_master_and_sentinels() -> None:
    options = {"sentinel_username": "su", "sentinel_password": "sp", "socket_connect_timeout": 0.5}
    pool = Server.parse("redis+sentinel://us%40er:p%2F@a:1/m", options).pool()
    assert isinstance(pool, redis.sentinel.SentinelConnectionPool)
    assert (pool.connection_kwargs["username"], pool.connection_kwargs["password"]) == ("us@er", "p/")
    (sentinel,) = pool.sentinel_manager.sentinels
    found = sentinel.connection_pool.connection_kwargs
    assert (found["username"], found["password"], found["socket_connect_timeout"]) == ("su", "sp", 0.5)


def test_sentinels_for_an_event_loop() -> None:
    pool = Server.parse("redis+sentinel://:p@a:1/m/2", {"sentinel_password": "sp"}).async_pool(socket_timeout=8.0)
    assert isinstance(pool, redis.asyncio.sentinel.SentinelConnectionPool)
    assert pool.connection_kwargs["db"] == 2
    assert pool.connection_kwargs["socket_timeout"] == 8.0


def test_tls_options_reach_the_connections() -> None:
    options = {"ca_certs": "/ca", "certfile": "/c", "keyfile": "/k", "check_hostname": False}
    found = arguments_of("rediss://h", options)
    assert (found["ssl_ca_certs"], found["ssl_certfile"], found["ssl_keyfile"]) == ("/ca", "/c", "/k")
    assert found["ssl_check_hostname"] is False


# ---- options that are ours to choose -------------------------------------------------------------------

CONTRARY = "protocol=3&decode_responses=yes&retry_on_timeout=yes&retry_on_error=x&health_check_interval=30"


@pytest.mark.parametrize("url", ["redis://h/0", "rediss://h/0", "unix:///run/s"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_options_that_would_repeat_or_decode_are_overridden(url: str, asynchronous: bool) -> None:
    server = Server.parse(f"{url}?{CONTRARY}")
    pool: Any = server.async_pool() if asynchronous else server.pool()
    found = pool.connection_kwargs
    assert found["protocol"] == 2
    assert found["decode_responses"] is False
    assert found["retry_on_timeout"] is False
    assert not found["retry_on_error"]
    assert found["health_check_interval"] == 0
    assert found["retry"].get_retries() == 0
    assert (found["socket_timeout"], found["socket_connect_timeout"]) == (5.0, 3.0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_is_repeated_through_sentinels_either(asynchronous: bool) -> None:
    server = Server.parse("redis+sentinel://a:1/m")
    pool: Any = server.async_pool() if asynchronous else server.pool()
    (sentinel,) = pool.sentinel_manager.sentinels
    for found in (pool.connection_kwargs, sentinel.connection_pool.connection_kwargs):
        assert found["retry"].get_retries() == 0
        assert found["decode_responses"] is False


def test_the_two_timeouts_are_the_operators_to_choose() -> None:
    found = arguments_of("redis://h?socket_timeout=9&socket_connect_timeout=2")
    assert (found["socket_timeout"], found["socket_connect_timeout"]) == (9.0, 2.0)
    found = arguments_of("redis://h?socket_timeout=9", {"socket_timeout": 1.5})
    assert found["socket_timeout"] == 1.5


@pytest.mark.parametrize("name", ["socket_timeout", "socket_connect_timeout"])
@pytest.mark.parametrize("value", [0, -1, "5", True, None, []])
def test_a_timeout_is_a_positive_number(name: str, value: object) -> None:
    text = refusal("redis://h", {name: value})
    assert name in text
    assert repr(value) in text


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_a_timeout_in_the_url_is_a_positive_number_as_well(value: str) -> None:
    with pytest.raises(SettingsError, match="socket_timeout"):
        combine(Layer("here", {"redis_url": f"redis://h?socket_timeout={value}"}))


# ---- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("localhost:6379", "scheme"),
        ("REDIS", "scheme"),
        ("redis:/h", "scheme"),
        ("redis://h:0", "port"),
        ("redis://h:65536", "port"),
        ("redis://h:x", "port"),
        ("redis://h/1/2", "database"),
        ("redis://h/-1", "database"),
        ("redis://h/0#x", "encode"),
        ("redis://:a@b@h", "encode"),
        ("redis://:a/b@h", "encode"),
        ("redis://:a?b@h", "encode"),
        ("redis://:a%zz@h", "%25"),
        ("redis://:50%@h", "%25"),
        ("unix://", "path"),
        ("unix://:pw@", "path"),
        ("redis+sentinel://", "MASTER"),
        ("redis+sentinel://h:1", "MASTER"),
        ("redis+sentinel://h:1/", "MASTER"),
        ("redis+sentinel://h/m", "HOST:PORT"),
        ("redis+sentinel://h:x/m", "HOST:PORT"),
        ("redis+sentinel://h:1,/m", "HOST:PORT"),
        ("redis+sentinel://h:1/m/x", "MASTER"),
        ("redis://h?db=x", "db"),
    ],
)
def test_urls_that_mean_nothing_are_refused_in_words(url: str, part: str) -> None:
    with pytest.raises(SettingsError) as caught:
        combine(Layer("COGWORKERD_REDIS_URL", {"redis_url": url}))
    assert str(caught.value).startswith("COGWORKERD_REDIS_URL: redis_url")
    assert part in str(caught.value)


def test_an_unknown_option_of_the_table_is_named_with_those_allowed() -> None:
    text = refusal("redis://h", {"colour": "red"})
    assert "'colour'" in text
    assert "ca_certs" in text


# ---- passwords -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("redis://user@h", "redis://user@h"),
        (f"redis://:{ENCODED}@h:1/2", "redis://:***@h:1/2"),
        (f"rediss://user:{ENCODED}@h", "rediss://user:***@h"),
        (f"unix://u:{ENCODED}@/run/s?db=2", "unix://u:***@/run/s"),
        (f"redis+sentinel://:{ENCODED}@a:1,b:2/m/3", "redis+sentinel://:***@a:1,b:2/m/3"),
        (f"redis://h/0?password={ENCODED}", "redis://h/0"),
    ],
)
def test_the_masked_url_never_has_the_password(url: str, masked: str) -> None:
    server = Server.parse(url, {"sentinel_password": "sesame"})
    assert server.masked == masked
    for secret in (PASSWORD, ENCODED, "sesame"):
        assert secret not in repr(server)
        assert secret not in str(server)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:{}@h:x",
        "redis://:{}@h/notadb",
        "redis://:{}@h?foo=1",
        "redis://:{}@h?socket_timeout=x",
        "redis://:x/{}@h",
        "redis://:x?{}@h",
        "redis://:x#{}@h",
        "redis://:x@{}@h",
        "redis://:x[{}]@h",
        "redis://:[{}@h",
        "redis://:x%{}@h",
        "redis://:\u2100{}@h",
        "redis://:{}",
        "unix://:{}@",
        "unix://:x/{}@/run/s",
        "unix://:{}/run/s",
        "http://:{}@h",
        ":{}@h",
        "redis+sentinel://:{}@h/m",
        "redis+sentinel://:x/{}@h:1/m",
        "redis+sentinel://:{}@h:1",
    ],
)
def test_no_refusal_and_no_mask_tells_a_password(url: str) -> None:
    shown = ""
    try:
        server = Server.parse(url.format("sesame"))
        shown = f"{server.masked} {server!r}"
    except ValueError as error:
        shown = str(error)
    assert shown
    assert "sesame" not in shown


def test_sentinels_that_are_asked_at_once_are_all_kept() -> None:
    """redis-py moves the one that answers to the front, by a swap that two questions at once turn into a loss."""

    async def ask(times: int) -> list[str]:
        pool = Server.parse("redis+sentinel://a:1,b:2,c:3/m").async_pool()
        manager: Any = pool.sentinel_manager  # type: ignore[attr-defined]
        dead, *alive = manager.sentinels

        async def refuse() -> dict[str, Any]:
            raise redis.ConnectionError("dead")

        async def answer() -> dict[str, Any]:
            await asyncio.sleep(0)
            state = {"ip": "h", "port": 1, "is_master": True, "is_sdown": False, "is_odown": False}
            return {"m": {**state, "num-other-sentinels": 2}}

        dead.sentinel_masters = refuse
        for one in alive:
            one.sentinel_masters = answer
        assert await asyncio.gather(*(manager.discover_master("m") for _ in range(times))) == [("h", 1)] * times
        return [one.connection_pool.connection_kwargs["host"] for one in manager.sentinels]

    found = asyncio.run(ask(2))
    assert found[0] == "b"
    assert sorted(found) == ["a", "b", "c"]
