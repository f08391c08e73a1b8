"""The status of a job: where it stands, how far it is, what it stored. A hash `status:<jid>` that lives half an hour.

It is written for jobs that ask (`status=True`, or the first `progress` or `store`) and for failures, and best effort:
it never fails a job. The supervisor writes it, from what the child left in memory that they share.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cogworkerd.payload import dump, encodable
from cogworkerd.text import NAME_LIMIT, printable, storable

if TYPE_CHECKING:
    from cogworkerd.jobsets import Store

QUEUED, WORKING, RETRYING, COMPLETE, FAILED = STATES = ("queued", "working", "retrying", "complete", "failed")
RESERVED = ("status", "update_time", "class", "queue", "error_class", "error_message", "pct", "message", "jid")
ERROR_FIELDS = ("error_class", "error_message")
MOST_STORED = 32 * 1024
"""Bytes of what a job may store of itself."""

_LONGEST_MESSAGE = 1000
_BATCH = 500


class Progress:
    """What one run says of itself.

    Args:
        publish: takes the fields after each change, as one JSON object; None: nobody does.
    """

    __slots__ = ("_payload", "_publish", "_queue", "_said", "wanted")

    def __init__(self, payload: Mapping[str, Any], queue: str, publish: Callable[[bytes], None] | None) -> None:
        self._payload = payload
        self._queue = queue
        self._said: dict[str, str] | None = None
        self._publish = publish
        self.wanted = False

    def begin(self) -> None:
        """The run has begun, and somebody wants to know."""
        self.wanted = True
        if self._publish is not None:
            self._publish(self.fields(WORKING))

    def report(self, pct: float | None, message: str | None) -> None:
        """See `JobContext.progress`."""
        added = {}
        if pct is not None:
            added["pct"] = _percent(pct)
        if message is not None:
            added["message"] = storable(str(message), _LONGEST_MESSAGE)
        self._say({**(self._said or {}), **added})

    def store(self, values: Mapping[str, Any]) -> None:
        """See `JobContext.store`."""
        added = {name: _stored(name, value) for name, value in values.items()}
        said = {**(self._said or {}), **added}
        size = sum(len(name.encode()) + len(text.encode()) for name, text in said.items())
        if size > MOST_STORED:
            raise ValueError(f"store: {size} bytes in all, more than {MOST_STORED}: store a reference to the data")
        self._say(said)

    def _say(self, said: dict[str, str]) -> None:
        """Publish what is said, and keep it if that could be done."""
        before, self._said = self._said, said
        try:
            self.begin()
        except ValueError:
            self._said = before
            raise

    def fields(self, status: str, error: Mapping[str, str] | None = None) -> bytes:
        """The hash as a JSON object of texts, with the jid.

        Args:
            status: one of STATES.
            error: `error_class` and `error_message` of a failure, and other fields to be kept.
        """
        head = {
            "jid": self._payload["jid"],
            "class": storable(self._payload["class"], NAME_LIMIT),
            "queue": storable(self._queue, NAME_LIMIT),
            "status": status,
            "update_time": repr(time.time()),
        }
        return dump({**(error or {}), **(self._said or {}), **head})


def _percent(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == math.inf:
        raise TypeError(f"progress: pct = {value!r:.40}: allowed is a number from 0 to 100")
    return f"{min(max(value, 0), 100):g}"


def _stored(name: str, value: Any) -> str:
    if name in RESERVED:
        raise ValueError(f"store: the name {name!r} is taken; reserved are {', '.join(RESERVED)}")
    if not encodable(name):
        raise TypeError(f"store: the name {name!r:.80} is not valid text")
    if isinstance(value, str):
        return storable(value, MOST_STORED + 1)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"store: {name} = {value!r:.80} is not JSON: {error}")
    return text


def queued_fields(payload: Mapping[str, Any], now: float) -> list[str]:
    """What the status of a job says that is being pushed, as names and values in turn."""
    return [
        *("status", QUEUED),
        *("update_time", repr(now)),
        *("class", str(payload["class"])),
        *("queue", str(payload["queue"])),
    ]


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands.

    Attributes:
        status: queued, working, retrying, complete or failed.
        updated_at: when that was written, in epoch seconds.
        name: of the job.
        pct: its progress, 0 to 100; None if it does not say. message: the text with it.
        error_class, error_message: of its last failure, if that is why it stands there.
        fields: what it stored, as texts.
    """

    jid: str
    status: str
    updated_at: float
    name: str
    queue: str
    pct: float | None = None
    message: str = ""
    error_class: str = ""
    error_message: str = ""
    fields: dict[str, str] = field(default_factory=dict)


def read_status(store: Store, jid: str) -> JobStatus | None:
    """The status of a job; None where there is none (it did not ask, or it is older than `status_ttl`).

    Raises:
        redis.exceptions.RedisError: the server is away.
    """
    return read_statuses(store, [jid])[jid]


def read_statuses(store: Store, jids: Iterable[str]) -> dict[str, JobStatus | None]:
    """The statuses of many jobs, in few round trips."""
    wanted = list(dict.fromkeys(jids))
    found: dict[str, JobStatus | None] = {}
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        with store.client.pipeline(transaction=False) as pipe:
            for jid in batch:
                pipe.hgetall(store.keys.status(jid))
            replies = pipe.execute(raise_on_error=False)
        found.update((jid, _read(jid, reply)) for jid, reply in zip(batch, replies, strict=True))
    return found


def _read(jid: str, reply: Any) -> JobStatus | None:
    """A hash that anybody may have written."""
    if not isinstance(reply, dict) or not reply:
        return None
    texts = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in reply.items()}
    return JobStatus(
        jid,
        texts.get("status", ""),
        _number(texts.get("update_time")) or 0.0,
        texts.get("class", ""),
        texts.get("queue", ""),
        _number(texts.get("pct")),
        texts.get("message", ""),
        texts.get("error_class", ""),
        texts.get("error_message", ""),
        {name: value for name, value in texts.items() if name not in RESERVED},
    )


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def progress_text(fields: Mapping[str, str]) -> str:
    """What the fields of a status say of its progress, in words; "" if nothing."""
    pct = f"{fields['pct']} %" if fields.get("pct") else ""
    return printable(f"{pct} {fields.get('message', '')}".strip(), 200)


def progress_bar(pct: float | None, message: str, width: int = 20) -> str:
    """A line that shows how far a job is; "" if it does not say."""
    if pct is None:
        return printable(message, 60)
    full = round(width * min(max(pct, 0.0), 100.0) / 100)
    return f"[{'#' * full}{'.' * (width - full)}] {pct:g} % {printable(message, 60)}".rstrip()
