"""Where every job is, who holds which lock, what was counted: one look at the server, in one atomic step."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from cogworkerd.payload import id_of_bytes
from cogworkerd.store.keys import Keys
from tests.support import Client

_LOOK = """
local found = {}
local keys = redis.call('KEYS', 'cogworker:*')
for _, key in ipairs(redis.call('KEYS', 'periodic:*')) do keys[#keys + 1] = key end
for _, key in ipairs(keys) do
  local kind = redis.call('TYPE', key)['ok']
  local held
  if kind == 'list' then held = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then held = redis.call('ZRANGE', key, 0, -1)
  elseif kind == 'set' then held = redis.call('SMEMBERS', key)
  elseif kind == 'string' then held = {redis.call('GET', key)}
  else held = redis.call('HGETALL', key) end
  found[#found + 1] = {key, held}
end
return found
"""
_KEYS = Keys()
_QUEUE = _KEYS.queue("")
_INPROGRESS = _KEYS.inprogress("")
_LOCKS = (_KEYS.unique(""), _KEYS.periodic_running(""))
_LAST_SLOT = _KEYS.periodic_last_slot("")
_BLAME = _KEYS.orphanings("")
_ATTEMPTS = _KEYS.attempts("")
_THROUGHPUT = _KEYS.throughput(0.0).rpartition(":")[0]
UNOWNED = "inprogress of nobody"
"""The list of an identity that is not registered: nobody will ever look at it."""

_PLACES = {
    _KEYS.retry: "retry",
    _KEYS.dead: "dead",
    _KEYS.schedule: "schedule",
    _KEYS.unsettled: "unsettled",
    _KEYS.repeat_orphans: "repeat_orphans",
}


@dataclass
class Look:
    """What one look saw.

    Attributes:
        places: of each job's id, where it is; one item for each entry.
        locks: of each lock's key, its owner.
        blames: of each job's id, how often it was counted as orphaned.
        attempts: of each job's id, how many failures its log holds.
        last_slot: the newest slot of the periodic entry that was claimed; 0 for none.
        processed, failed: the counters.
        throughput: the same two, as the hours' hashes have them.
    """

    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    locks: dict[str, str] = field(default_factory=dict)
    blames: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    last_slot: int = 0
    processed: int = 0
    failed: int = 0
    throughput: Counter[str] = field(default_factory=Counter)

    def where(self, jid: str) -> list[str]:
        return self.places.get(jid, [])


def look(client: Client) -> Look:
    """Look once; no command of anybody comes in between."""
    found = Look()
    listing = dict(client.eval(_LOOK, 0))
    owners = listing.get(_KEYS.inprogress_identities, [])
    for key, held in listing.items():
        _take(found, key, held, owners)
    return found


def _take(found: Look, key: str, held: list[str], owners: list[str]) -> None:
    if key.startswith(_QUEUE):
        _place(found, "queue", held)
    elif key.startswith(_INPROGRESS):
        _place(found, "inprogress" if key.removeprefix(_INPROGRESS) in owners else UNOWNED, held)
    elif key in _PLACES:
        _place(found, _PLACES[key], held)
    elif key.startswith(_LOCKS):
        found.locks[key] = held[0]
    elif key.startswith(_LAST_SLOT):
        found.last_slot = int(held[0])
    elif key.startswith(_BLAME):
        found.blames[key.removeprefix(_BLAME)] = int(held[0])
    elif key.startswith(_ATTEMPTS):
        found.attempts[key.removeprefix(_ATTEMPTS)] = len(held)
    elif key == _KEYS.processed:
        found.processed = int(held[0])
    elif key == _KEYS.failed:
        found.failed = int(held[0])
    elif key.startswith(_THROUGHPUT):
        found.throughput.update({name: int(count) for name, count in zip(held[::2], held[1::2], strict=True)})


def _place(found: Look, place: str, entries: list[str]) -> None:
    for entry in entries:
        found.places[jid_of(entry)].append(place)


def jid_of(entry: str) -> str:
    """The id of the job of an entry; a parked record holds it one level down."""
    try:
        job: Any = json.loads(entry)
    except ValueError:
        return id_of_bytes(entry.encode())
    return jid_of(job["payload"]) if "payload" in job else str(job["jid"])
