"""Where the server is, and every connection to it.

redis-py must never repeat a write by itself, and options in a URL override arguments there. So the URL is parsed first
and our arguments are laid over it, in one place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, parse_url
from redis.retry import Retry

SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://")
_ALLOWED_SCHEMES = "allowed: redis://, rediss://, unix://, redis+sentinel://"

# What [tool.cogworkerd.redis] may say, and redis-py's name for it.
OPTIONS = {
    "username": "username",
    "password": "password",
    "ca_certs": "ssl_ca_certs",
    "certfile": "ssl_certfile",
    "keyfile": "ssl_keyfile",
    "cert_reqs": "ssl_cert_reqs",
    "check_hostname": "ssl_check_hostname",
    "socket_connect_timeout": "socket_connect_timeout",
    "socket_timeout": "socket_timeout",
    "sentinel_username": "sentinel_username",
    "sentinel_password": "sentinel_password",
}
_TIMEOUTS = ("socket_connect_timeout", "socket_timeout")
_URL_OPTIONS = {
    *URL_QUERY_ARGUMENT_PARSERS,
    *OPTIONS.values(),
    "protocol",
    "decode_responses",
    "ssl_min_version",
    "client_name",
}
_ENCODE = "percent-encode the password (/ is %2F, # %23, ? %3F, @ %40, : %3A)"
_MASTER_PATH = re.compile(r"/([^/]+)(?:/(\d+))?/?")


class URLError(ValueError):
    """The URL of the server cannot be used; the text says why and never holds the password."""


@dataclass(frozen=True)
class Server:
    """A server's address and options; makes connections and pools.

    Build it with :meth:`parse`.
    """

    masked: str
    _options: Mapping[str, Any] = field(repr=False)
    _sentinels: tuple[tuple[str, int], ...] = ()
    _master: str = ""
    _sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any] | None = None) -> Server:
        """Read a URL.

        Args:
            url: one of the schemes redis, rediss, unix, redis+sentinel.
            options: from [tool.cogworkerd.redis]; names of `OPTIONS`, timeouts in seconds.

        Raises:
            URLError: the URL or an option cannot be used.
        """
        extra = dict(options or {})
        check_options(extra)
        parts = _split(url)
        sentinel_options = {
            name.removeprefix("sentinel_"): extra.pop(name) for name in list(extra) if name.startswith("sentinel_")
        }
        laid = {OPTIONS[name]: value for name, value in extra.items()}
        if parts.scheme == "redis+sentinel":
            sentinels, master, parsed = _parse_sentinel(parts)
            return cls(mask(parts), _ours({**parsed, **laid}), sentinels, master, sentinel_options)
        parsed = parse_url(url)
        check_options({name: value for name, value in parsed.items() if name in _TIMEOUTS})
        return cls(mask(parts), _ours({**parsed, **laid}))

    @property
    def tls(self) -> bool:
        return self._options.get("connection_class") is redis.SSLConnection

    def pool(self) -> redis.ConnectionPool:
        """A pool of blocking connections. Safe across threads and across a fork (redis-py compares pids)."""
        options = dict(self._options)
        if self._sentinels:
            sentinel = _Sentinel(list(self._sentinels), sentinel_kwargs=self._sentinel_arguments(Retry(NoBackoff(), 0)))
            options.pop("connection_class", None)
            return redis.sentinel.SentinelConnectionPool(self._master, sentinel, retry=Retry(NoBackoff(), 0), **options)
        return redis.ConnectionPool(retry=Retry(NoBackoff(), 0), **options)

    def client(self) -> redis.Redis:
        return redis.Redis(connection_pool=self.pool())

    def async_pool(self, **overrides: Any) -> redis.asyncio.ConnectionPool:
        """A pool for one running event loop; `overrides` are laid over its connections' arguments."""
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        options = {**self._options, **overrides}
        connection_class = options.pop("connection_class", redis.Connection)
        if self._sentinels:
            sentinel = _AsyncSentinel(list(self._sentinels), sentinel_kwargs=self._sentinel_arguments(retry))
            return redis.asyncio.sentinel.SentinelConnectionPool(self._master, sentinel, retry=retry, **options)
        return redis.asyncio.ConnectionPool(
            connection_class=_ASYNC_CLASSES[connection_class],
            retry=retry,
            **options,
        )

    def _sentinel_arguments(self, retry: Any) -> dict[str, Any]:
        # A client, not a connection: it takes the two switches for retries as a deprecated use.
        ours = {name: value for name, value in _OURS.items() if not name.startswith("retry_on")}
        return {**ours, **_timeouts(self._options), "retry": retry, **self._sentinel_options}


class _Sentinel(redis.sentinel.Sentinel):
    """redis-py puts the sentinel that has answered in front; two that look for the primary at once can lose one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._all = tuple(self.sentinels)

    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = super().discover_master(service_name)  # type: ignore[no-untyped-call]
            return found
        finally:
            self.sentinels[:] = dict.fromkeys((*self.sentinels, *self._all))


class _AsyncSentinel(redis.asyncio.sentinel.Sentinel):
    """The same for connections of an event loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._all = tuple(self.sentinels)

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = await super().discover_master(service_name)
            return found
        finally:
            self.sentinels[:] = dict.fromkeys((*self.sentinels, *self._all))


_ASYNC_CLASSES: dict[Any, Any] = {
    redis.Connection: redis.asyncio.Connection,
    redis.SSLConnection: redis.asyncio.SSLConnection,
    redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
}

_OURS: Mapping[str, Any] = {
    "protocol": 2,
    "driver_info": None,
    "socket_timeout": 5.0,
    "socket_connect_timeout": 3.0,
    "health_check_interval": 0,
    "retry_on_timeout": False,
    "retry_on_error": [],
    "decode_responses": False,
}


def _timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _TIMEOUTS if name in options}


def _ours(options: Mapping[str, Any]) -> dict[str, Any]:
    """Our arguments over the URL's, the two timeouts excepted: those are the operator's to choose."""
    kept = {name: value for name, value in options.items() if name not in _OURS}
    kept.pop("retry", None)
    return {**kept, **_OURS, **_timeouts(options)}


def check_options(options: Mapping[str, Any]) -> None:
    """Check what [tool.cogworkerd.redis] says.

    Raises:
        URLError: an option is unknown, or its value is not allowed.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            raise URLError(f"unknown option {name!r} for the server; allowed: {', '.join(sorted(OPTIONS))}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _TIMEOUTS and not (number and 0 < value < math.inf):
            raise URLError(f"{name} = {value!r}: allowed is a positive number of seconds")


def _split(url: str) -> SplitResult:
    if not url.strip():
        raise URLError(f"the URL is empty; {_ALLOWED_SCHEMES}")
    if not url.startswith(SCHEMES):
        scheme = url.split("://", 1)[0] if "://" in url else "no scheme"
        raise URLError(f"{scheme[:20]!r} is not a scheme of a Redis server; {_ALLOWED_SCHEMES}")
    try:
        parts = urlsplit(url)
    except ValueError:  # its text would tell the password
        raise URLError(f"it cannot be read: {_ENCODE}")
    if "#" in url or parts.netloc.count("@") > 1 or _looks_cut(parts):
        raise URLError(f"it holds / # ? or @ where none belongs: {_ENCODE}")
    if re.search(r"%(?![0-9A-Fa-f]{2})", parts.netloc):
        raise URLError("a % is not followed by two hex digits: percent-encode the password (% is %25)")
    for name in re.findall(r"(?:^|&)([^=&]+)", parts.query):
        if name not in _URL_OPTIONS:
            raise URLError(f"unknown option {name!r} in its query part")
    if parts.scheme in ("redis", "rediss"):
        _check_host_and_database(parts)
    elif parts.scheme == "unix" and not parts.path:
        raise URLError("no path of a socket: unix:///run/redis.sock?db=0")
    return parts


def _looks_cut(parts: SplitResult) -> bool:
    """A / or ? of a password has ended the part that holds the credentials."""
    if parts.scheme == "unix":
        return bool(parts.netloc) and not parts.netloc.endswith("@")
    return "@" in parts.path or "@" in parts.query


def _check_host_and_database(parts: SplitResult) -> None:
    try:
        port = parts.port
    except ValueError:
        raise URLError("its port is not a number from 1 to 65535; percent-encode a password that holds / # ? @ or :")
    if port == 0:
        raise URLError("its port is 0; allowed: 1 to 65535")
    if parts.path not in ("", "/") and not re.fullmatch(r"/\d+/?", parts.path):
        raise URLError(f"{parts.path[1:]!r} is not the number of a database; write redis://HOST:PORT/0")


def _parse_sentinel(parts: SplitResult) -> tuple[tuple[tuple[str, int], ...], str, dict[str, Any]]:
    credentials, _, hosts = parts.netloc.rpartition("@")
    match = _MASTER_PATH.fullmatch(parts.path)
    if match is None or not hosts:
        raise URLError("write redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB")
    sentinels = []
    for entry in hosts.split(","):
        host, _, port = entry.rpartition(":")
        if not host or not port.isdigit():
            raise URLError(f"sentinel {entry!r} is not HOST:PORT")
        sentinels.append((host.strip("[]"), int(port)))
    user, _, password = credentials.partition(":")
    found: dict[str, Any] = {"db": int(match[2] or 0)}
    if user:
        found["username"] = unquote(user)
    if password:
        found["password"] = unquote(password)
    return tuple(sentinels), unquote(match[1]), found


def mask(parts: SplitResult) -> str:
    """The URL without its password and without its query part."""
    credentials, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return f"{parts.scheme}://{user}{colon and ':***'}{at}{hosts}{parts.path}"
