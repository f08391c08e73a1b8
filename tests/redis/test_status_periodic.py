"""What `cogworkerd status` says of periodic entries: those of this fleet, of others, of those that are no more."""

from __future__ import annotations

import json
import time

import pytest
import redis

from cogworkerd.cli.status import as_object, as_text
from cogworkerd.snapshot import PeriodicEntry, snapshot
from cogworkerd.store.keys import PERIODIC_LIVE_WITHIN
from tests.supervisor_parts import KEYS
from tests.support import Client, Server

NOON = 1_800_000_000  # 2027-01-15 08:00:00 UTC


def publish(client: Client, pjid: str, cron: str, name: str, age: float | None, **fields: object) -> None:
    client.hset(KEYS.periodic_schedule, pjid, json.dumps({"cron": cron, "class": name, "args": [], **fields}))
    if age is not None:
        client.zadd(KEYS.periodic_live, {pjid: client.time()[0] - age})


def entries(server: Server) -> dict[str, PeriodicEntry]:
    with redis.Redis(port=server.port) as raw:
        return {entry.pjid: entry for entry in snapshot(raw, KEYS, NOON).periodic}


def test_c41_an_entry_is_active_while_a_live_daemon_declares_it(server: Server, client: Client) -> None:
    publish(client, "live", "0 9 * * *", "a", 5)
    publish(client, "old", "0 9 * * *", "b", PERIODIC_LIVE_WITHIN + 10)
    publish(client, "foreign", "every day at noon", "C", None)
    publish(client, "off", "@hourly Europe/Berlin", "d", 5, queue="low")
    client.sadd(KEYS.periodic_disabled, "off")
    client.set(KEYS.periodic_last_slot("live"), NOON - 82_800)
    found = entries(server)
    assert {pjid: entry.active for pjid, entry in found.items()} == {
        "live": True,
        "old": False,
        "foreign": False,
        "off": True,
    }
    assert (found["live"].last_slot, found["live"].next_slot) == (NOON - 82_800, NOON + 3600)
    assert (found["old"].last_slot, found["foreign"].next_slot) == (None, None)
    assert (found["off"].disabled, found["off"].queue, found["off"].next_slot) == (True, "low", NOON + 3600)


@pytest.mark.parametrize("value", ["no json", "[1]", '{"cron": "0 9 * * *"}', "null", '"text"'])
def test_what_is_no_entry_is_not_shown_and_hides_no_other(value: str, server: Server, client: Client) -> None:
    publish(client, "live", "0 9 * * *", "a", 5)
    client.hset(KEYS.periodic_schedule, "odd", value)
    assert set(entries(server)) == {"live"}


def test_keys_of_the_wrong_type_read_as_empty(server: Server, client: Client) -> None:
    publish(client, "live", "0 9 * * *", "a", 5)
    for key in (KEYS.periodic_live, KEYS.periodic_disabled):
        client.delete(key)
        client.set(key, "another type")
    assert not entries(server)["live"].active
    client.delete(KEYS.periodic_schedule)
    client.set(KEYS.periodic_schedule, "another type")
    assert entries(server) == {}


def test_both_forms_of_status_show_the_entries(server: Server, client: Client) -> None:
    publish(client, "live", "0 9 * * *", "shop.report", 5)
    with redis.Redis(port=server.port) as raw:
        state = snapshot(raw, KEYS, NOON)
    (shown,) = as_object(state)["periodic"]
    assert (shown["class"], shown["cron"], shown["active"], shown["next_slot"]) == (
        "shop.report",
        "0 9 * * *",
        True,
        NOON + 3600,
    )
    (line,) = [line for line in as_text(state, time.time()).splitlines() if "shop.report" in line]
    assert "2027-01-15 09:00:00Z" in line
    assert "active" in line
