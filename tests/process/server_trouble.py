"""What the tests of a server in trouble share: what the log may say about it, and how the daemon comes through."""

from __future__ import annotations

import time
from collections import Counter

import psutil

from tests.support import Client, Daemon, eventually, inprogress

BEGINNINGS = ("redis.away", "redis.refusing")


def sites(running: Daemon, *events: str) -> Counter[str]:
    """How many lines of these events each site has."""
    return Counter(line["site"] for event in events for line in running.lines(event))


def all_clear(running: Daemon) -> bool:
    """Every site that was in trouble has said that it is over."""
    return sites(running, *BEGINNINGS) == sites(running, "redis.back")


def check_discipline(running: Daemon, outages: int = 1) -> None:
    """A site has at most one line at the beginning of each outage and one at its end, and none is an error.

    Waits for the ends. The sites that beat, fetch and so on notice an end at their next turn.
    """
    try:
        eventually(lambda: all_clear(running), 25)
    except AssertionError:
        raise AssertionError(f"some site is not back:\n{_about_the_server(running)}")
    begun = sites(running, *BEGINNINGS)
    assert begun, "no line about the server"
    assert max(begun.values()) <= outages, _about_the_server(running)
    assert not running.lines("redis.error"), _about_the_server(running)


def _about_the_server(running: Daemon) -> str:
    return "\n".join(str(line) for line in running.lines() if line["event"].startswith("redis."))


def says(running: Daemon, words: str, within: float = 15) -> None:
    """Wait until the title holds these words."""
    eventually(lambda: words in running.title(), within, f"{words} in the title")


def says_no_more(running: Daemon, words: str, within: float = 15) -> None:
    """Wait until the title does not hold these words."""
    eventually(lambda: words not in running.title(), within, f"no {words} in the title")


def one_thread(running: Daemon) -> bool:
    return psutil.Process(running.pid).num_threads() == 1


def nothing_failed(client: Client) -> None:
    """No job was counted as failed or filed."""
    assert client.get("cogworker:stats:failed") in (None, "0")
    assert client.zcard("cogworker:retry") == 0
    assert client.zcard("cogworker:dead") == 0
    assert client.keys("cogworker:orphanings:*") == []


def ran_once(witness: Client, count: int, within: float = 15) -> None:
    """Wait until so many jobs have ended; each has run once."""
    eventually(lambda: witness.hlen("t:end") == count, within, f"{count} ended")
    assert witness.hlen("t:start") == count
    assert set(witness.hvals("t:start")) == set(witness.hvals("t:end")) == {"1"}


def settled(client: Client, within: float = 15) -> None:
    """Wait until no job is in progress."""
    eventually(lambda: inprogress(client) == [], within, "nothing in progress")


def stays(seconds: float) -> None:
    """The length of a trouble, where the case names it and its point is the length."""
    time.sleep(seconds)
