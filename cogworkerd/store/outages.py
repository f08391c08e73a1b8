"""Is the server away, is it refusing, or is this an error of ours? And how often to say so."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import redis.exceptions

_AWAY_WORDS = ("READONLY", "LOADING", "MASTERDOWN", "TRYAGAIN", "BUSY", "CLUSTERDOWN", "UNBLOCKED")
_REFUSING_WORDS = ("OOM", "MISCONF", "NOREPLICAS", "NOPERM", "NOAUTH", "WRONGPASS")
_MISSING_COMMAND = ("unknown command", "unknown redis command", "permissions to run the", "can't run this command")
_SUMMARY_EVERY = 60.0


class Trouble(Enum):
    """What an error from redis-py means for the caller."""

    AWAY = "away"
    REFUSING = "refusing"
    OTHER = "other"


def classify(error: BaseException) -> Trouble:
    """Sort an error: the server cannot be used just now, it is there and refuses, or something else."""
    if isinstance(error, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError):
        return Trouble.REFUSING
    text = _reply_words(error)
    if any(word in text for word in _REFUSING_WORDS) or "max number of clients" in str(error):
        return Trouble.REFUSING
    if isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError):
        return Trouble.AWAY
    if isinstance(error, redis.exceptions.ReadOnlyError) or any(word in text for word in _AWAY_WORDS):
        return Trouble.AWAY
    return Trouble.OTHER


def is_authentication(error: BaseException) -> bool:
    """The server answered that the name or the password is wrong or missing."""
    text = str(error)
    return isinstance(error, redis.exceptions.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text


def is_wrong_type(text: str) -> bool:
    """Whether a server's sentence says that a key holds another type than the command needs."""
    return "WRONGTYPE" in text


def is_missing_command(text: str) -> bool:
    """Whether a server's sentence says that it does not know a command, or does not let this user run it."""
    lowered = text.lower()
    return any(words in lowered for words in _MISSING_COMMAND)


def _reply_words(error: BaseException) -> list[str]:
    """The words of a server's reply that may be its error code: the first, or what a script's error wraps.

    redis-py strips the code of some replies and keeps its meaning in the class, hence the class names too.
    """
    if not isinstance(error, redis.exceptions.ResponseError):
        return []
    names = {
        redis.exceptions.ReadOnlyError: "READONLY",
        redis.exceptions.BusyLoadingError: "LOADING",
        redis.exceptions.NoPermissionError: "NOPERM",
        redis.exceptions.OutOfMemoryError: "OOM",
        redis.exceptions.MasterDownError: "MASTERDOWN",
        redis.exceptions.TryAgainError: "TRYAGAIN",
        redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    }
    known = [word for kind, word in names.items() if isinstance(error, kind)]
    text = str(error)
    words = [part.strip(" -'\"()").split(" ", 1)[0] for part in text.split(":")]
    return known + words


@dataclass
class Outage:
    """One site's trouble with the server: one line when it starts, one a minute, one when it is over.

    Args:
        say: called with the kind of line ("away", "refusing", "still", "back"), the number of failures since the
            start, the seconds since then, and the error's text.
        now: the clock, in seconds.
    """

    say: Callable[[str, int, float, str], None]
    now: Callable[[], float] = time.monotonic
    count: int = 0
    since: float = 0.0
    said: float = 0.0

    @property
    def lasting(self) -> bool:
        return self.count > 0

    def failed(self, error: BaseException) -> None:
        """Take note of one failure that is the server's trouble (`classify` said so)."""
        now = self.now()
        self.count += 1
        if self.count == 1:
            self.since = self.said = now
            kind = "refusing" if classify(error) is Trouble.REFUSING else "away"
            self.say(kind, 1, 0.0, str(error))
        elif now - self.said >= _SUMMARY_EVERY:
            self.said = now
            self.say("still", self.count, now - self.since, str(error))

    def worked(self) -> None:
        """Take note of a success."""
        if self.count:
            count, seconds = self.count, self.now() - self.since
            self.count = 0
            self.say("back", count, seconds, "")
