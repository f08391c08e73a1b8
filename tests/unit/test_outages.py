"""R63: which errors mean that the server is away or refuses. R64: how often that is told."""

from __future__ import annotations

import asyncio

import pytest
import redis.exceptions
from redis.exceptions import ResponseError

from cogworkerd.store.outages import Outage, Trouble, classify, is_authentication

OLD_SCRIPT = "Error running script (call to f_0123): @user_script:12: "
NEW_SCRIPT = " script: 0123abcd, on @user_script:12."


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.ConnectionError("Connection closed by server."),
        redis.exceptions.ConnectionError("Error 111 connecting to h:6379. Connection refused."),
        redis.exceptions.TimeoutError("Timeout reading from socket"),
        redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
        redis.exceptions.ReadOnlyError("You can't write against a read only replica."),
        redis.exceptions.MasterDownError("Link with MASTER is down"),
        redis.exceptions.TryAgainError("Multiple keys request during rehashing"),
        redis.exceptions.ClusterDownError("The cluster is down"),
        ConnectionResetError("reset"),
        BrokenPipeError("broken"),
        TimeoutError("timed out"),
        OSError("no route to host"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_r63_lost_connections_are_away(error: Exception) -> None:
    assert classify(error) is Trouble.AWAY


@pytest.mark.parametrize("word", ["READONLY", "LOADING", "MASTERDOWN", "TRYAGAIN", "BUSY", "CLUSTERDOWN"])
@pytest.mark.parametrize("form", ["{} text behind", "{}", OLD_SCRIPT + "-{} text", OLD_SCRIPT + "{} text"])
def test_r63_away_words_are_the_first_or_wrapped_by_a_script(word: str, form: str) -> None:
    assert classify(ResponseError(form.format(word))) is Trouble.AWAY


@pytest.mark.parametrize(
    "text",
    [
        "BUSYKEY Target key name already exists.",
        "BUSYGROUP Consumer Group name already exists",
        "READONLYISH thing",
        OLD_SCRIPT + "-BUSYKEY Target key name already exists.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "WRONGTYPE Operation against a key holding the wrong kind of value" + NEW_SCRIPT,
        "ERR unknown command 'LOADING'",
        "ERR the word BUSY stands inside",
        "NOSCRIPT No matching script. Please use EVAL.",
        "value is not an integer or out of range",
        "",
    ],
)
def test_r63_other_replies_are_neither(text: str) -> None:
    assert classify(ResponseError(text)) is Trouble.OTHER


@pytest.mark.parametrize(
    "error", [ValueError("BUSY"), KeyError("READONLY"), RuntimeError("OOM"), asyncio.CancelledError()]
)
def test_errors_that_are_not_the_servers_are_neither(error: BaseException) -> None:
    assert classify(error) is Trouble.OTHER


@pytest.mark.parametrize("word", ["OOM", "MISCONF", "NOREPLICAS", "NOPERM", "NOAUTH", "WRONGPASS"])
@pytest.mark.parametrize("form", ["{} text behind", OLD_SCRIPT + "-{} text"])
def test_a_server_that_is_there_and_says_no_is_refusing(word: str, form: str) -> None:
    assert classify(ResponseError(form.format(word))) is Trouble.REFUSING


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.exceptions.NoPermissionError("User x has no permissions to run the 'lpush' command"),
        redis.exceptions.AuthenticationError("invalid username-password pair or user is disabled."),
        redis.exceptions.AuthorizationError("no"),
        redis.exceptions.ConnectionError("max number of clients reached"),
        redis.exceptions.MaxConnectionsError("max number of clients reached"),
        ResponseError("max number of clients reached"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_refusals_whose_word_redis_py_has_taken_off(error: Exception) -> None:
    assert classify(error) is Trouble.REFUSING


def test_authentication_is_told_from_other_refusals() -> None:
    assert is_authentication(redis.exceptions.AuthenticationError("Authentication required."))
    assert is_authentication(ResponseError("NOAUTH Authentication required."))
    assert is_authentication(ResponseError("WRONGPASS invalid username-password pair"))
    assert not is_authentication(ResponseError("OOM"))
    assert not is_authentication(redis.exceptions.ConnectionError("refused"))


# ---- how often it is told ------------------------------------------------------------------------------

AWAY = redis.exceptions.ConnectionError("refused")
REFUSES = ResponseError("OOM command not allowed")


class Site:
    """One site with a clock of its own."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.said: list[tuple[str, int, float, str]] = []
        self.outage = Outage(self._say, lambda: self.time)

    def _say(self, kind: str, failures: int, seconds: float, error: str) -> None:
        self.said.append((kind, failures, seconds, error))

    def fail(self, error: Exception = AWAY, after: float = 0.0) -> None:
        self.time += after
        self.outage.failed(error)


def test_r64_one_line_at_the_start_one_at_the_end() -> None:
    site = Site()
    for _ in range(50):
        site.fail(after=1.0)
    assert site.said == [("away", 1, 0.0, "refused")]
    assert site.outage.lasting
    site.time += 0.5
    site.outage.worked()
    assert site.said[1:] == [("back", 50, 49.5, "")]
    assert not site.outage.lasting


def test_r64_one_summary_a_minute_at_most() -> None:
    site = Site()
    for _ in range(300):
        site.fail(after=1.0)
    assert [(kind, count, seconds) for kind, count, seconds, _ in site.said] == [
        ("away", 1, 0.0),
        ("still", 61, 60.0),
        ("still", 121, 120.0),
        ("still", 181, 180.0),
        ("still", 241, 240.0),
    ]


def test_r64_a_site_that_tries_seldom_is_told_when_it_tries() -> None:
    site = Site()
    site.fail()
    site.fail(after=200.0)
    site.fail(after=59.0)
    site.fail(after=1.0)
    assert [(kind, count, seconds) for kind, count, seconds, _ in site.said] == [
        ("away", 1, 0.0),
        ("still", 2, 200.0),
        ("still", 4, 260.0),
    ]


def test_r64_the_next_outage_starts_anew() -> None:
    site = Site()
    site.fail()
    site.outage.worked()
    site.fail(REFUSES, after=100.0)
    site.fail(REFUSES, after=3.0)
    site.outage.worked()
    assert site.said == [
        ("away", 1, 0.0, "refused"),
        ("back", 1, 0.0, ""),
        ("refusing", 1, 0.0, "OOM command not allowed"),
        ("back", 2, 3.0, ""),
    ]


def test_r64_success_without_an_outage_is_not_told() -> None:
    site = Site()
    site.outage.worked()
    site.outage.worked()
    assert site.said == []


def test_the_summary_has_the_newest_error() -> None:
    site = Site()
    site.fail(AWAY)
    site.fail(REFUSES, after=61.0)
    assert site.said[1] == ("still", 2, 61.0, "OOM command not allowed")
