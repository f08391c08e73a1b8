"""The locks that a job holds. Each is a key whose value is its owner's jid; it is changed only by compare-and-act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cogworkerd.payload import queue_of, unique_digest
from cogworkerd.store.keys import Keys


def lock_keys(payload: Mapping[str, Any], found: str, keys: Keys) -> list[str]:
    """The keys of the locks to release when this job is over.

    Args:
        payload: the job.
        found: the queue it was found on, for a job that names none.
    """
    held = []
    if payload.get("unique") == "until_executed":
        held.append(keys.unique(unique_digest(payload, queue_of(payload, found))))
    pjid = payload.get("periodic_pjid")
    if isinstance(pjid, str) and pjid:
        held.append(keys.periodic_running(pjid))
    return held
