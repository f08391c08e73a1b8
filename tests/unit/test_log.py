"""C60, C58: values that no renderer likes, and outputs that have gone away. A line never raises and is one line."""

from __future__ import annotations

import errno
import json
import logging
import os
import pty
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import structlog

from cogworkerd import context, events
from cogworkerd.log import LEVELS, MAX_LINE, Log, SturdyOutput, clean, clean_text, configure, tell_outage

FORMATS = ("json", "console")
LONGEST = 64 * 1024


class Bad:
    def __repr__(self) -> str:
        raise RuntimeError("no repr for you")


class Worse:
    def __repr__(self) -> str:
        raise SystemExit(3)

    __str__ = __repr__


class NoText:
    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]


class Endless(dict[str, Any]):
    def items(self) -> NoReturn:
        raise RuntimeError("no items for you")


class Closed(list[Any]):
    def __getitem__(self, index: Any) -> NoReturn:
        raise RuntimeError("no items for you")


RING: list[Any] = []
RING.append({"again": RING})

VALUES: dict[str, Any] = {
    "a": Bad(),
    "b": b"\xff",
    "c": "\ud800",
    "d": float("nan"),
    "e": {1: {2}},
    "f": "é\u2028",
    "event2": lambda: 0,
}
NASTY: list[Any] = [
    *VALUES.values(),
    *(Worse(), NoText(), Endless(a=1), Closed([1]), RING, Bad, object()),
    *(float("inf"), -0.0, 10**5000, -(10**5000), 2**64, True, None, 1j),
    *("a\nb\r\x00\x1b[31m", "\u202e\u200b", "x" * 1_000_000, "\x00" * 1_000_000, "\U0001f600" * 100_000),
    *(
        {"k": {"k": {"k": {"k": {"k": {"k": {"k": 1}}}}}}},
        {Bad(): Bad()},
        {None: 1, 1: 2, "1": 3},
        {"\ud800": "\udfff"},
    ),
    *(list(range(100_000)), tuple("ab"), {1, 2}, frozenset(), range(3), b"\0" * 1_000_000, bytearray(b"\xff")),
    *(ValueError("x"), Exception, threading.Lock(), sys, print, NotImplemented, ...),
]


def no_constant(name: str) -> NoReturn:
    raise AssertionError(f"a bare {name}")


class Written:
    """What was written to a pipe, so far."""

    def __init__(self) -> None:
        self._read, self.write_end = os.pipe()
        self._data = b""
        self._thread = threading.Thread(target=self._drain)
        self._thread.start()

    def _drain(self) -> None:
        while piece := os.read(self._read, 65536):
            self._data += piece

    def lines(self) -> list[str]:
        """Close the pipe and return its lines."""
        if self._thread.is_alive():
            os.close(self.write_end)
            self._thread.join()
            os.close(self._read)
        return self._data.decode("utf-8").splitlines()


@pytest.fixture
def written() -> Iterator[Written]:
    found = Written()
    yield found
    found.lines()


@pytest.fixture(autouse=True)
def _untouched_configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The log of a process is configured once; here it is as in a process of its own, each time."""
    root = logging.getLogger()
    level = root.level
    monkeypatch.setattr(root, "handlers", [])
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    root.setLevel(level)


def begin(log_format: str, log_level: str, fd: int) -> Log:
    """Configure the log in a process whose root logger is still without handlers; pytest has put its own there."""
    logging.getLogger().handlers.clear()
    return configure(log_format, log_level, fd)


# ---- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", NASTY, ids=lambda value: type(value).__name__)
def test_c60_any_value_becomes_something_that_json_takes(value: object) -> None:
    text = json.dumps(clean(value), allow_nan=False, ensure_ascii=False)
    text.encode()
    assert len(text.splitlines()) == 1
    json.loads(text, parse_constant=no_constant)
    assert isinstance(clean_text(value), str)


def test_c60_the_values_are_readable() -> None:
    found = clean(VALUES)
    assert found["a"] == "<Bad: its repr raises RuntimeError>"
    assert found["b"] == "b'\\xff'"
    assert found["c"] == "\\ud800"
    assert found["d"] == "nan"
    assert found["e"] == {"1": "{2}"}
    assert found["f"] == "é\\u2028"
    assert "<lambda>" in found["event2"]


def test_plain_values_stay_as_they_are() -> None:
    value = {"a": [1, 2.5, "x", None, True, {"b": []}], "é": "grün", "big": 2**64, "t": (1,)}
    assert clean(value) == {**value, "t": [1]}


def test_values_have_a_size_and_a_depth() -> None:
    assert len(clean("x" * 10**6)) <= 10_000
    assert len(clean(b"x" * 10**6)) <= 10_000
    assert len(clean(list(range(10**5)))) == 200
    assert len(clean({str(n): n for n in range(10**5)})) == 200
    assert clean(10**5000) == f"an integer of {(10**5000).bit_length()} bits"


# ---- lines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize("way", ["structlog", "logging", "the daemon"])
def test_c60_each_call_is_one_line_that_can_be_read(way: str, log_format: str, written: Written) -> None:
    log = begin(log_format, "info", written.write_end)
    if way == "structlog":
        structlog.get_logger().info("x marks", **VALUES)
    elif way == "logging":
        logging.getLogger("shop").info("x marks %s", list(VALUES.values())[1:])
    else:
        log.emit(events.SETTINGS_WARNING, text=VALUES)
    (line,) = written.lines()
    assert "Traceback" not in line
    assert "Logging error" not in line
    for part in ("xff", "ud800", "u2028", *(["RuntimeError"] if way != "logging" else [])):
        assert part in line
    if log_format == "json":
        found = json.loads(line, parse_constant=no_constant)
        assert list(found)[:3] == ["timestamp", "level", "event"]
        if way == "structlog":
            assert (found["a"], found["c"], found["f"]) == (clean(VALUES["a"]), "\\ud800", "é\\u2028")


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize("value", NASTY, ids=lambda value: type(value).__name__)
def test_c60_no_value_breaks_a_line(value: object, log_format: str, written: Written) -> None:
    log = begin(log_format, "info", written.write_end)
    log.emit(events.SETTINGS_WARNING, text=value)
    structlog.get_logger().warning("text", value=value, logger=value)
    structlog.get_logger().warning(value)
    logging.getLogger("shop").warning("text %s", [value] if isinstance(value, Bad | Worse | NoText) else value)
    logging.getLogger("shop").warning(value)
    lines = written.lines()
    assert len(lines) == 5
    for line in lines:
        assert len(line.encode()) < LONGEST
        if log_format == "json":
            json.loads(line, parse_constant=no_constant)


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize(
    "name", ["stack", "stack_info", "exception", "exc_info", "logger", "logger_name", "level", "timestamp"]
)
def test_c60_fields_that_structlog_takes_for_its_own_may_hold_anything(
    name: str, log_format: str, written: Written
) -> None:
    begin(log_format, "info", written.write_end)
    for value in (Bad(), 5, None, "a\nb", {"k": b"\xff"}):
        structlog.get_logger().info("text", **{name: value})
    assert "\n".join(written.lines()).count("text") == 5


def test_c60_a_standard_message_whose_arguments_do_not_fit_is_logged_all_the_same(written: Written) -> None:
    begin("json", "info", written.write_end)
    log = logging.getLogger("shop")
    log.warning("%d pieces", "no number")
    log.warning("%s", Bad())
    log.warning("%(a)s", {"b": 1})
    log.warning("too few %s %s", 1)
    lines = written.lines()
    assert len(lines) == 4
    for line, part in zip(lines, ("no number", "RuntimeError", "%(a)s", "too few"), strict=True):
        assert part in json.loads(line)["event"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_c60_a_terminal_without_the_characters_gets_escapes(
    encoding: str, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull, "w", encoding=encoding) as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        log = begin("console", "info", written.write_end)
        monkeypatch.undo()
    log.emit(events.SETTINGS_WARNING, text="日本\u2028")
    (line,) = written.lines()
    assert ("日本" if encoding == "utf-8" else "\\u65e5\\u672c") in line
    assert "\\u2028" in line


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize("text", ["x", "é", "\U0001f600", '"', "\\", "\x00", "\U000e0041"])
def test_c51_no_line_is_longer_than_64_kib(text: str, log_format: str, written: Written) -> None:
    begin(log_format, "info", written.write_end)
    log = structlog.get_logger()
    log.info(text * 100_000)
    log.info("text", **{f"field{n}": text * 10_000 for n in range(7)})
    log.info(text * 10_000, a=text * 10_000, b=text * 10_000)
    log.info("text", value=[text * 1000] * 65)
    log.info("text", **{f"{text * 1000}{n}": n for n in range(65)})
    lines = written.lines()
    assert len(lines) == 5
    for line in lines:
        assert len(line.encode()) < LONGEST
        if log_format == "json":
            json.loads(line)


def test_a_line_that_is_too_long_says_so_and_keeps_its_head(written: Written) -> None:
    log = begin("json", "info", written.write_end)
    log.emit(events.SETTINGS_WARNING, text=["y" * 1000] * 200)
    (line,) = written.lines()
    found = json.loads(line)
    assert (found["level"], found["event"]) == ("warning", "settings.warning")
    assert "characters" in found["cut"]
    assert "yyy" in found["start"]
    assert len(line) <= MAX_LINE


def test_a_traceback_is_in_one_json_line_without_values(written: Written) -> None:
    log = begin("json", "info", written.write_end)
    secret = "hunter" + "2"
    try:
        raise ValueError("\ud800\u2028" + "x" * 100_000) from KeyError("inner")
    except ValueError as error:
        log.emit(events.DAEMON_CRASHED, exc_info=error, task="t")
        structlog.get_logger().exception("by structlog")
        logging.getLogger("shop").exception("by logging")
    lines = [json.loads(line) for line in written.lines()]
    assert [line["level"] for line in lines] == ["error"] * 3
    for line in lines:
        assert "ValueError: ?\\u2028xxx" in line["exception"]
        assert "KeyError: 'inner'" in line["exception"]
        assert secret not in json.dumps(line)


@pytest.mark.parametrize("log_format", FORMATS)
def test_c50_an_exception_without_a_text_is_logged(log_format: str, written: Written) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    log = begin(log_format, "info", written.write_end)
    log.emit(events.DAEMON_CRASHED, exc_info=Mute(), task="t")
    logging.getLogger("shop").error("text", exc_info=Mute())
    assert "Mute" in "\n".join(written.lines())


@pytest.mark.parametrize("exc_info", [True, False, None, (None, None, None), "text", 5])
def test_exc_info_without_an_exception_is_no_error(exc_info: Any, written: Written) -> None:
    begin("json", "info", written.write_end)
    structlog.get_logger().warning("text", exc_info=exc_info)
    logging.getLogger("shop").warning("text", exc_info=exc_info if not isinstance(exc_info, str | int) else None)
    assert all(json.loads(line)["event"] == "text" for line in written.lines())


# ---- levels, context, formats --------------------------------------------------------------------------


@pytest.mark.parametrize("level", list(LEVELS))
def test_lines_below_the_level_are_not_written(level: str, written: Written) -> None:
    log = begin("json", level, written.write_end)
    seen = []
    for event in (events.JOB_START, events.JOB_DONE, events.JOB_FAILED, events.JOB_DEAD):
        shown = LEVELS[event.level] >= LEVELS[level]
        assert log.enabled(event) == shown
        log.emit(event)
        seen += [event.name] * shown
    assert [json.loads(line)["event"] for line in written.lines()] == seen


def test_a_jobs_lines_carry_the_job_whoever_writes_them(written: Written) -> None:
    begin("json", "debug", written.write_end)
    payload = {"jid": "j", "class": "shop.mail", "args": [], "retry_count": 1}
    context.enter(context.context_of(payload, "mail", [False]))
    try:
        structlog.get_logger().info("by structlog")
        logging.getLogger("shop").info("by logging")
        context.current_job().log.warning("by the job's own")
        structlog.get_logger().info("with its own", jid="other")
    finally:
        context.leave()
    logging.getLogger("shop").info("outside")
    *inside, own, outside = [json.loads(line) for line in written.lines()]
    for line in inside:
        assert (line["jid"], line["job"], line["queue"], line["attempt"]) == ("j", "shop.mail", "mail", 2)
    assert own["jid"] == "other"
    assert "jid" not in outside


def test_standard_levels_become_ours(written: Written) -> None:
    begin("json", "debug", written.write_end)
    for number in (logging.INFO, 25, logging.WARNING, logging.ERROR, logging.CRITICAL, 99):
        logging.getLogger("shop").log(number, "text")
    found = [json.loads(line)["level"] for line in written.lines()]
    assert found == ["info", "info", "warning", "error", "error", "error"]


def test_the_daemons_lines_do_not_pass_through_what_the_application_configured(written: Written) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("a processor of the application")

    structlog.configure(processors=[refuse])
    log = begin("json", "info", written.write_end)
    log.emit(events.SETTINGS_WARNING, text="x")
    structlog_still_theirs = structlog.get_config()["processors"] == [refuse]
    assert structlog_still_theirs
    assert json.loads(written.lines()[0])["text"] == "x"


def test_handlers_of_the_application_stay_alone(written: Written) -> None:
    root, theirs = logging.getLogger(), logging.NullHandler()
    root.handlers[:] = [theirs]
    configure("json", "info", written.write_end)
    assert root.handlers == [theirs]


def test_auto_is_json_lines_in_a_pipe_and_console_on_a_terminal(written: Written) -> None:
    begin("auto", "info", written.write_end).emit(events.DAEMON_QUIET)
    assert json.loads(written.lines()[0])["event"] == "daemon.quiet"
    master, slave = pty.openpty()
    try:
        begin("auto", "info", slave).emit(events.DAEMON_QUIET)
        shown = os.read(master, 10_000).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert "daemon.quiet" in shown
    assert not shown.startswith("{")


def test_an_outage_is_told_with_the_fields_of_its_events(written: Written) -> None:
    say = tell_outage(begin("json", "info", written.write_end), "poller")
    for kind in ("away", "refusing", "still", "back"):
        say(kind, 3, 61.26, "Connection refused")
    found = [json.loads(line) for line in written.lines()]
    assert [line["event"] for line in found] == ["redis.away", "redis.refusing", "redis.still_away", "redis.back"]
    assert all(line["site"] == "poller" for line in found)
    assert (found[2]["failures"], found[2]["seconds"], found[2]["error"]) == (3, 61.3, "Connection refused")
    assert set(found[3]) - {"timestamp", "level", "event"} == {"site", "failures", "seconds"}


# ---- outputs that have gone away -----------------------------------------------------------------------


def closed_descriptor() -> int:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    return write


def broken_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def full_device() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def gone_terminal() -> int:
    master, slave = pty.openpty()
    os.close(master)
    return slave


OUTPUTS = pytest.mark.parametrize("make", [closed_descriptor, broken_pipe, full_device, gone_terminal])


@OUTPUTS
def test_c58_an_output_that_has_gone_away_never_raises(make: Callable[[], int]) -> None:
    fd = make()
    output = SturdyOutput(fd)
    try:
        for data in (b"", b"line\n", b"x" * 1_000_000):
            assert output.write(data) == len(data)
        assert output.writable()
        assert output.fileno() == fd
        assert output.isatty() in (True, False)
        output.flush()
    finally:
        if make is not closed_descriptor:
            os.close(fd)


@OUTPUTS
@pytest.mark.parametrize("log_format", [*FORMATS, "auto"])
def test_c58_a_log_whose_output_has_gone_away_never_raises(make: Callable[[], int], log_format: str) -> None:
    fd = make()
    try:
        log: Log = begin(log_format, "info", fd)
        log.emit(events.DAEMON_CRASHED, exc_info=ValueError("x"), task="t")
        structlog.get_logger().info("text", a=1)
        logging.getLogger("shop").info("text")
    finally:
        if make is not closed_descriptor:
            os.close(fd)


def test_c58_the_full_device_is_really_full() -> None:
    fd = full_device()
    try:
        with pytest.raises(OSError) as caught:
            os.write(fd, b"x")
    finally:
        os.close(fd)
    assert caught.value.errno == errno.ENOSPC


def test_an_output_that_is_slow_gets_everything(written: Written) -> None:
    os.set_blocking(written.write_end, False)
    lines = [f"{n} " + "x" * 10_000 for n in range(100)]
    output = SturdyOutput(written.write_end)
    for line in lines:
        output.write(f"{line}\n".encode())
    assert written.lines() == lines


def test_a_line_goes_out_in_one_piece() -> None:
    read, write = os.pipe()
    try:
        begin("json", "info", write).emit(events.SETTINGS_WARNING, text="x" * 3000)
        assert os.read(read, 65536).count(b"\n") == 1
    finally:
        os.close(read)
        os.close(write)
