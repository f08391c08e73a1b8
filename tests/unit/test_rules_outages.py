"""The rules of outages where the supervisor's sites meet them: what is told once, and what each time."""

from __future__ import annotations

import pytest
import redis.exceptions
from redis.exceptions import ResponseError

from cogworkerd.store.outages import Trouble
from tests.supervisor_parts import Parts

AWAY = redis.exceptions.ConnectionError("Connection refused")
WRONG = ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")


@pytest.fixture
def made() -> Parts:
    """Parts whose link is never used."""
    return Parts("redis://127.0.0.1:1/0", ["default"])


def test_r64_an_error_that_is_not_the_servers_trouble_is_told_in_full_each_time(made: Parts) -> None:
    for _ in range(3):
        assert made.link.failed("poller", WRONG) is Trouble.OTHER
    assert [name for name, _ in made.said.told] == ["redis.error"] * 3
    for line in made.said.of("redis.error", site="poller"):
        assert str(WRONG) in line["error"]
    made.link.worked("poller")
    assert len(made.said.told) == 3


def test_r64_each_site_has_its_own_beginning_and_its_own_end(made: Parts) -> None:
    for _ in range(5):
        for site in ("heartbeat", "poller"):
            assert made.link.failed(site, AWAY) is Trouble.AWAY
    assert [line["site"] for line in made.said.of("redis.away")] == ["heartbeat", "poller"]
    made.link.worked("heartbeat")
    assert [(line["site"], line["failures"]) for line in made.said.of("redis.back")] == [("heartbeat", 5)]
    assert made.link.note  # the poller's goes on
    made.link.worked("poller")
    assert [line["site"] for line in made.said.of("redis.back")] == ["heartbeat", "poller"]
    assert made.link.note == ""
    assert len(made.said.told) == 4


def test_r64_another_error_during_an_outage_is_told_and_neither_ends_it_nor_counts(made: Parts) -> None:
    made.link.failed("poller", AWAY)
    made.link.failed("poller", WRONG)
    made.link.failed("poller", AWAY)
    assert [name for name, _ in made.said.told] == ["redis.away", "redis.error"]
    made.link.worked("poller")
    assert [line["failures"] for line in made.said.of("redis.back")] == [2]


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (ResponseError("READONLY You can't write against a read only replica. script: 0f, on @user_script:1."), "away"),
        (ResponseError("BUSY Redis is busy running a script."), "away"),
        (ResponseError("BUSYKEY Target key name already exists."), "other"),
        (ResponseError("BUSYGROUP Consumer Group name already exists"), "other"),
    ],
)
def test_r63_the_sites_tell_an_outage_by_the_replys_first_word(error: Exception, trouble: str, made: Parts) -> None:
    made.link.failed("poller", error)
    assert [name for name, _ in made.said.told] == ["redis.error" if trouble == "other" else "redis.away"]
