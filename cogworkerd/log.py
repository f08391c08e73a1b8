"""The log: structlog chains of our own, lines that never raise, and an output that may go away.

The daemon's lines never pass through processors that the application configured. The application's own lines, by
structlog or by the standard library, get the same look and the context of the job, unless it configured either itself.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from cogworkerd import events, journal
from cogworkerd.context import current_job
from cogworkerd.events import Event
from cogworkerd.text import printable, storable, traceback_text

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
MAX_LINE = 60_000
_MAX_VALUE = 10_000
_MAX_TRACEBACK = 30_000
_MAX_DEPTH = 6
_SMALL = 2**53
_MOST_ITEMS = 200

EventDict = MutableMapping[str, Any]


class SturdyOutput(io.RawIOBase):
    """A descriptor whose reader may end, whose disk may be full, whose terminal may be gone: writes never raise."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        try:
            return os.isatty(self._fd)
        except OSError:
            return False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        sent = 0
        while sent < len(view):
            try:
                sent += os.write(self._fd, view[sent:])
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                break  # nobody reads any more: what is lost is the line, not the job
        return len(view)


def open_missing_descriptors() -> None:
    """Point descriptors 0 to 2 to the null device where they are closed, or a socket would get their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is fd


def sturdy_streams() -> None:
    """Replace sys.stdout and sys.stderr by streams that never raise for what the other end does."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        encoding = getattr(old, "encoding", None) or "utf-8"
        buffered = io.BufferedWriter(SturdyOutput(fd))
        setattr(
            sys, name, io.TextIOWrapper(buffered, encoding=encoding, errors="backslashreplace", line_buffering=True)
        )


def clean(value: Any, depth: int = 0) -> Any:
    """A value that any renderer can take: JSON types, printable texts, nothing that raises or is endless."""
    try:
        return _clean(value, depth)
    except BaseException:  # a container of the application's own, whose methods raise
        return clean_text(value)


def _clean(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if len(value) < 200 and value.isascii() and value.isprintable() else printable(value, _MAX_VALUE)
    if isinstance(value, int):
        return value if value.bit_length() < 1000 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth < _MAX_DEPTH and isinstance(value, dict):
        items = itertools.islice(value.items(), _MOST_ITEMS)
        return {clean_text(key): clean(item, depth + 1) for key, item in items}
    if depth < _MAX_DEPTH and isinstance(value, list | tuple):
        return [clean(item, depth + 1) for item in itertools.islice(value, _MOST_ITEMS)]
    return clean_text(value)


def clean_text(value: Any) -> str:
    """Any value as one printable line."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except BaseException as error:
        text = f"<{type(value).__name__}: its repr raises {type(error).__name__}>"
    return printable(text, _MAX_VALUE)


def _add_job(_: Any, __: str, event: EventDict) -> EventDict:
    job = current_job()
    if job:
        event.setdefault("jid", job.jid)
        event.setdefault("job", job.name)
        event.setdefault("queue", job.queue)
        event.setdefault("attempt", job.attempt)
    return event


@functools.lru_cache(maxsize=2)
def _second(epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(epoch))


def _add_time(_: Any, __: str, event: EventDict) -> EventDict:
    now = time.time()
    event["timestamp"] = f"{_second(int(now))}.{int(now * 1000) % 1000:03d}Z"
    return event


def _clean_all(_: Any, __: str, event: EventDict) -> EventDict:
    trace = event.pop("exception", None)
    cleaned = {}
    for name, value in event.items():
        # Most values are plain numbers and short plain texts; they are not worth a call, of which a line has a dozen.
        kind = type(value)
        plain = (kind is float and value - value == 0.0) or (kind is int and -_SMALL < value < _SMALL)
        cleaned[name if name.isidentifier() else clean_text(name)] = value if plain else clean(value)
    if "stack" in cleaned:  # a name that structlog's console renderer takes for a text of its own
        cleaned["stack"] = clean_text(cleaned["stack"])
    if trace is not None:
        cleaned["exception"] = storable(trace if isinstance(trace, str) else clean_text(trace), _MAX_TRACEBACK)
    return cleaned


def _format_error(_: Any, __: str, event: EventDict) -> EventDict:
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["exception"] = traceback_text(error)
    return event


_ORDER = ("timestamp", "level", "event")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


def _render_json(_: Any, __: str, event: EventDict) -> str:
    head = {name: event.pop(name) for name in _ORDER if name in event}
    line = _encode({**head, **event})
    if len(line) * 4 > MAX_LINE and len(line.encode("utf-8", "replace")) > MAX_LINE:
        head["event"] = storable(str(head.get("event")), 1000)
        line = _encode({**head, "cut": f"a line of {len(line)} characters", "start": line[: MAX_LINE // 8]})
    return line


class _Console:
    """structlog's console renderer, with plain tracebacks: its default shows local variables once rich is installed."""

    def __init__(self, colors: bool) -> None:
        self._render = structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=16, sort_keys=False
        )

    def __call__(self, logger: Any, name: str, event: EventDict) -> str:
        text = str(self._render(logger, name, event))
        return text.encode("utf-8", "replace")[:MAX_LINE].decode("utf-8", "ignore")


class _Lines:
    """What structlog calls a logger: takes rendered lines, each written in one piece."""

    def __init__(self, fd: int, encoding: str) -> None:
        self._output = SturdyOutput(fd)
        self._encoding = encoding

    def msg(self, line: str) -> None:
        self._output.write((line + "\n").encode(self._encoding, "backslashreplace"))

    debug = info = warning = error = critical = log = exception = msg


class Log:
    """The daemon's log. `emit` takes an event of events.py and values for its fields."""

    def __init__(self, logger: Any, threshold: int) -> None:
        self._logger = logger
        self._threshold = threshold

    def enabled(self, event: Event) -> bool:
        return LEVELS[event.level] >= self._threshold

    def emit(self, event: Event, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        if LEVELS[event.level] < self._threshold:
            return
        if exc_info is not None:
            fields["exc_info"] = exc_info
        getattr(self._logger, event.level)(event.name, **fields)


class _StandardHandler(logging.Handler):
    """Standard library records, rendered like ours."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._target = logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except BaseException as error:
            given = record.args if isinstance(record.args, tuple) else (record.args,)
            shown = ", ".join(clean_text(argument) for argument in given)
            message = f"{clean_text(record.msg)} (its arguments cannot be put in, {type(error).__name__}: {shown})"
        level = next((name for name, number in reversed(LEVELS.items()) if record.levelno >= number), "debug")
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        getattr(self._target, level)(message, **fields)


def configure(log_format: str, log_level: str, fd: int = 1) -> Log:
    """Set the log up for this process.

    Args:
        log_format: "console", "json", "journal" (systemd's, by its own protocol), or "auto": console on a terminal,
            the journal where `fd` leads to it, JSON lines otherwise.
        log_level: the least important level shown.
        fd: the descriptor that lines go to.
    """
    output = SturdyOutput(fd)
    to_journal = log_format == "journal" or (log_format == "auto" and journal.is_ours(fd))
    console = log_format == "console" or (log_format == "auto" and output.isatty())
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8") if console else "utf-8"
    chain: list[Callable[..., Any]] = [
        structlog.processors.add_log_level,
        _add_job,
        _add_time,
        _format_error,
        _clean_all,
        journal.render if to_journal else _Console(output.isatty()) if console else _render_json,
    ]
    threshold = LEVELS[log_level]
    wrapper = structlog.make_filtering_bound_logger(threshold)
    lines: Any = journal.JournalLines() if to_journal else _Lines(fd, encoding)
    logger: Any = structlog.wrap_logger(lines, processors=chain, wrapper_class=wrapper, cache_logger_on_first_use=True)
    _serve_application(chain, wrapper, lines, logger.bind(), threshold)
    return Log(logger.bind(), threshold)


def _serve_application(chain: list[Any], wrapper: Any, lines: Any, logger: Any, threshold: int) -> None:
    if not structlog.is_configured():
        structlog.configure(
            processors=[structlog.contextvars.merge_contextvars, *chain],
            wrapper_class=wrapper,
            logger_factory=lambda *_: lines,
        )
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_StandardHandler(logger))
        root.setLevel(max(threshold, logging.INFO))


_OUTAGE_EVENTS = {
    "away": events.REDIS_AWAY,
    "refusing": events.REDIS_REFUSING,
    "still": events.REDIS_STILL,
    "back": events.REDIS_BACK,
}


def tell_outage(log: Log, site: str) -> Callable[[str, int, float, str], None]:
    """What an `Outage` of this site calls to have its lines logged."""

    def say(kind: str, failures: int, seconds: float, error: str) -> None:
        event = _OUTAGE_EVENTS[kind]
        values: dict[str, Any] = {
            "site": site,
            "failures": failures,
            "seconds": round(seconds, 1),
            "error": error,
        }
        log.emit(event, **{name: values[name] for name in event.fields})

    return say
