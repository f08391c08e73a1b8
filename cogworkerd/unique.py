"""The digests by which equal jobs, and equal periodic entries, know each other. The wire format's, bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

UNTIL_EXECUTED = "until_executed"
MODES = (UNTIL_EXECUTED,)

# They must never raise, whatever numbers another program wrote. The members of a dict stay in their order, as they do
# in the other programs of the wire format; keyword arguments are Python's own and have none.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def unique_digest(payload: Mapping[str, Any], queue: str) -> str:
    """SHA-1 of `class|queue|args as compact JSON`, with `|kwargs` behind it where there are any, as hex."""
    return _digest(payload["class"], queue, payload.get("args") or [], payload.get("kwargs"))


def periodic_id(cron: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> str:
    """SHA-1 of `cron|class|args as compact JSON`, with `|kwargs` behind it where there are any, as hex."""
    return _digest(cron, name, args, kwargs)


def _digest(first: str, second: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str:
    text = f"{first}|{second}|{_encode(args)}"
    if kwargs:
        text += f"|{_encode_sorted(kwargs)}"
    return hashlib.sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
