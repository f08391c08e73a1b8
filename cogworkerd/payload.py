"""The job as JSON: build it, check it, parse what others wrote. The fields are those of the wire format."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from typing import Any

from cogworkerd.text import RAW_PAYLOAD_LIMIT, storable_bytes

UNPARSEABLE = "(unparseable)"
DEFAULT_QUEUE = "default"
DEFAULT_RETRIES = 25
MAX_DEPTH = 90  # the usual limit of Ruby's parser is 100 for the whole payload, and it is nested once or twice more
MAX_JID = 128
_IN_KEYS = ("class", "jid", "queue", "periodic_pjid")
_MAX_COUNT = 2**31 - 1
_MOST_KEPT = 2**20
_MAX_INT_BITS = 14_000  # 4,300 decimal digits, the most that Python's json reads again

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), check_circular=False).encode


class Unparseable(ValueError):
    """These bytes are not a job; the text says why."""


def new_jid() -> str:
    return secrets.token_hex(12)


def id_of_bytes(raw: bytes) -> str:
    """The id of what was pushed without one, or is no job: equal bytes get an equal one, in every process that reads
    them, so that its orphanings are counted as one job's."""
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()[:24]


def check_json(value: Any, path: str, depth: int = 0) -> Any:
    """The value as it will arrive: JSON types only, tuples as lists.

    Args:
        value: an argument of a job.
        path: where it stands, for the error: `args[0]`.

    Raises:
        TypeError: something in it is not JSON; the text has the path to it.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _check_str(value, path)
    if isinstance(value, int):
        if value.bit_length() > _MAX_INT_BITS:
            raise TypeError(f"{path}: an integer of more than 4,000 digits cannot be read again as JSON")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{path}: {value} is not JSON")
        return value
    if depth > MAX_DEPTH:
        raise TypeError(f"{path[:200]}: nested more than {MAX_DEPTH} deep")
    if isinstance(value, list | tuple):
        return [check_json(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {_check_key(key, path): check_json(item, _member(path, key), depth + 1) for key, item in value.items()}
    raise TypeError(f"{path}: {type(value).__name__} is not JSON")


def _member(path: str, key: object) -> str:
    return f"{path}[{json.dumps(key) if isinstance(key, str) else repr(key)}]"


def _check_str(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TypeError(f"{path}: the text holds a lone surrogate, which is not valid UTF-8")
    return value


def _check_key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{path}: a dict's key must be a str, not {type(key).__name__} ({key!r:.50})")
    return _check_str(key, f"{path} key")


def dump(payload: Mapping[str, Any]) -> bytes:
    """A payload as compact JSON.

    Raises:
        ValueError: it cannot be serialised (a number beyond JSON's range, say).
    """
    try:
        return _encode(payload).encode()
    except UnicodeEncodeError:
        # A lone surrogate that another program wrote as an escape goes back as one.
        return _encode_ascii(payload).encode()
    except RecursionError:
        raise ValueError("nested too deep")


def rewritten(payload: Mapping[str, Any], raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """A job with some fields set anew, as JSON.

    Args:
        payload: the job as parsed from `raw`.
        raw: its bytes; they are kept as they are where the payload cannot be written again (a number beyond JSON's
            range, say), with the fields behind them: of two members of one name the last one counts.
        fields: what is set; it must be JSON.
    """
    try:
        return dump({**payload, **fields})
    except ValueError:
        return appended(raw, {"jid": payload["jid"], **fields})


def appended(raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON object with members behind its own."""
    head = raw.rstrip().removesuffix(b"}").rstrip()
    return head + (b"" if head.endswith(b"{") else b",") + dump(fields).removeprefix(b"{")


def parse(raw: bytes) -> dict[str, Any]:
    """Read a job that anybody may have written.

    Returns:
        The payload, with `args`, `jid` and `class` of the right type. Other fields are as they were.

    Raises:
        Unparseable: these bytes are not a job.
    """
    try:
        payload = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Unparseable(f"not JSON: {reason[:200]}")
    if not isinstance(payload, dict):
        raise Unparseable("JSON, but not an object")
    _check_fields(payload)
    if "jid" not in payload:
        payload["jid"] = id_of_bytes(raw)
    return payload


def parse_or_none(raw: bytes) -> dict[str, Any] | None:
    """`parse`, for who has nothing to say of bytes that are no job."""
    try:
        return parse(raw)
    except Unparseable:
        return None


def _check_fields(payload: dict[str, Any]) -> None:
    name = payload.get("class")
    if not isinstance(name, str) or not name:
        raise Unparseable('"class" is not a text')
    jid = payload.get("jid", "x")
    if not isinstance(jid, str) or not 0 < len(jid) <= MAX_JID:
        raise Unparseable(f'"jid" is not a text of 1 to {MAX_JID} characters')
    if not isinstance(payload.setdefault("args", []), list):
        raise Unparseable('"args" is not an array')
    kwargs = payload.get("kwargs")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise Unparseable('"kwargs" is not an object')
    for field in _IN_KEYS:
        value = payload.get(field)
        if isinstance(value, str) and not value.isascii() and not encodable(value):
            raise Unparseable(f'"{field}" holds a lone surrogate')


def encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8: it holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def queue_of(payload: Mapping[str, Any], found: str) -> str:
    """The queue that a job goes back to: its own field if that is usable, else the one it was found on."""
    queue = payload.get("queue")
    return queue if isinstance(queue, str) and queue else found


def failures_of(payload: Mapping[str, Any]) -> int:
    """How often a job has failed so far: `retry_count`, whatever another program put there, from 0 to 2**31 - 1."""
    return _count(payload.get("retry_count", 0))


def interruptions_of(payload: Mapping[str, Any]) -> int:
    """How often a failure of this job could not be recorded: `interrupted_count`, read like `retry_count`."""
    return _count(payload.get("interrupted_count", 0))


def _count(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int | float) or count != count or count <= 0:
        return 0
    return _MAX_COUNT if count > _MAX_COUNT else int(count)


def retry_budget(payload: Mapping[str, Any]) -> int:
    """How many retries a job has in all.

    True or absent is 25; false or 0 none; a number or a numeric text that many; anything else none.
    """
    retry = payload.get("retry", True)
    if retry is True:
        return DEFAULT_RETRIES
    if isinstance(retry, str):
        try:
            retry = float(retry)
        except ValueError:
            return 0
    if isinstance(retry, bool) or not isinstance(retry, int | float) or retry != retry or retry <= 0:
        return 0
    return _MAX_COUNT if retry > _MAX_COUNT else int(retry)


def unparseable(raw: bytes, queue: str, reason: str, now: float) -> dict[str, Any]:
    """The entry for dead that keeps the bytes of something that is not a job, or cannot be written as one again.

    `raw_payload` is text; where it cannot hold the bytes exactly, `raw_payload_base64` does, up to its first MiB; where
    there were more, `raw_payload_bytes` says how many.
    """
    text = storable_bytes(raw, RAW_PAYLOAD_LIMIT)
    exact = {} if text.encode() == raw else {"raw_payload_base64": base64.b64encode(raw[:_MOST_KEPT]).decode()}
    return {
        "class": UNPARSEABLE,
        "args": [],
        "queue": queue,
        "jid": id_of_bytes(raw),
        "retry": False,
        "created_at": now,
        "failed_at": now,
        "error_class": "Unparseable",
        "error_message": reason,
        "raw_payload": text,
        **exact,
        **({"raw_payload_bytes": len(raw)} if len(raw) > _MOST_KEPT else {}),
    }
