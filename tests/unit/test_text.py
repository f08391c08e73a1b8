"""Text from outside: stored as valid UTF-8 within its limit, shown as one harmless line, and never an error."""

from __future__ import annotations

import socket
import threading
import unicodedata

import pytest

from cogworkerd.text import (
    ERROR_MESSAGE_LIMIT,
    error_class,
    error_message,
    printable,
    storable,
    storable_bytes,
    traceback_text,
)


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ValueError("no text for you")


class EverythingRaises(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __repr__(self) -> str:
        raise SystemExit(3)


class StrIsNoText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class NeedsTwo(Exception):
    def __init__(self, one: object, two: object) -> None:
        self.both = (one, two)


class Recursive(Exception):
    def __str__(self) -> str:
        return str(self)


NASTY: list[tuple[BaseException, str, str]] = [
    (StrRaises("x"), "StrRaises", "ValueError"),
    (EverythingRaises("x"), "EverythingRaises", "KeyboardInterrupt"),
    (StrIsNoText("x"), "StrIsNoText", "TypeError"),
    (Recursive(), "Recursive", "RecursionError"),
    (NeedsTwo(1, [2]), "NeedsTwo", "(1, [2])"),
    (ValueError(threading.Lock(), socket.socketpair), "ValueError", "lock"),
    (ExceptionGroup("many", [ValueError(n) for n in range(1000)]), "ExceptionGroup", "many"),
    (ValueError("a\ud800b"), "ValueError", "a?b"),
    (type("E", (Exception,), {"__module__": None})("text"), "E", "text"),
    (type("Ünï", (Exception,), {})("text"), "Ünï", "text"),
    (ValueError(), "ValueError", ""),
    (KeyError("k"), "KeyError", "'k'"),
    (SystemExit(3), "SystemExit", "3"),
    (KeyboardInterrupt(), "KeyboardInterrupt", ""),
    (RecursionError("maximum recursion depth exceeded"), "RecursionError", "maximum"),
]


@pytest.mark.parametrize(("error", "name", "part"), NASTY, ids=[name for _, name, _ in NASTY])
def test_c50_r30_every_exception_has_a_class_and_a_message(error: BaseException, name: str, part: str) -> None:
    assert error_class(error) == name
    message = error_message(error)
    assert part in message
    message.encode()
    shown = traceback_text(error)
    assert shown.startswith(name)
    assert "\ud800" not in shown


@pytest.mark.parametrize("error", [StrRaises(), EverythingRaises(), StrIsNoText(), Recursive()], ids=error_class)
def test_r30_where_no_text_can_be_made_the_message_says_so_and_begins_with_the_class(error: Exception) -> None:
    assert error_message(error).startswith(f"{type(error).__name__} (its message could not be made: ")


def test_c50_causes_that_run_in_a_circle_are_told_once() -> None:
    a, b = ValueError("a"), KeyError("b")
    a.__cause__, b.__cause__ = b, a
    shown = traceback_text(a)
    assert shown.count("ValueError: a") == 1
    assert shown.count("KeyError: 'b'") == 1
    itself = ValueError("itself")
    itself.__cause__ = itself
    assert traceback_text(itself) == "ValueError: itself"


def test_c51_a_message_of_megabytes_is_cut_with_a_mark() -> None:
    message = error_message(ValueError("x" * 50_000_000))
    assert len(message) == ERROR_MESSAGE_LIMIT
    assert message.startswith("xxx")
    assert message.endswith("(cut)")
    assert len(traceback_text(ValueError("x" * 1_000_000))) < 3000


def test_c51_a_chain_of_2000_causes_shows_the_first_few() -> None:
    error: Exception = ValueError("the last")
    for number in range(2000):
        outer = ValueError(number)
        outer.__cause__ = error
        error = outer
    shown = traceback_text(error)
    assert shown.count("ValueError") == 5
    assert shown.startswith("ValueError: 1999")


def test_c51_a_deep_recursion_shows_the_last_frames() -> None:
    def dig(depth: int) -> int:
        return dig(depth + 1) + 1

    try:
        dig(0)
    except RecursionError as error:
        shown = traceback_text(error)
    assert "RecursionError: maximum recursion depth exceeded" in shown
    assert shown.count("\n") < 200
    assert len(shown) < 30_000


def test_a_suppressed_context_is_not_shown_and_another_is() -> None:
    def fail(how: str) -> None:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            if how == "from none":
                raise ValueError("outer") from None
            if how == "from":
                raise ValueError("outer") from inner
            raise ValueError("outer")

    for how, shows in (("from none", False), ("from", True), ("while handling", True)):
        with pytest.raises(ValueError) as caught:
            fail(how)
        assert ("KeyError: 'inner'" in traceback_text(caught.value)) == shows


def test_a_traceback_has_places_and_never_values() -> None:
    def fail(password: str) -> None:
        raise ValueError("outer")

    with pytest.raises(ValueError) as caught:
        fail("hunter2")
    shown = traceback_text(caught.value)
    assert "in fail" in shown
    assert __file__ in shown
    assert shown.count("hunter2") == 1  # the line of code that holds it, and no variable


# ---- stored --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 49, 50, 51, 1000])
def test_stored_text_stays_within_its_limit(size: int) -> None:
    """R30."""
    text = storable("é" * size, 50)
    assert len(text) == min(size, 50)
    assert text.endswith("(cut)") == (size > 50)
    assert text.startswith("é" * min(size, 30))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc80\ud800"])
def test_stored_text_is_valid_utf8(text: str) -> None:
    """R30."""
    stored = storable(text, 100)
    stored.encode()
    assert len(stored) == len(text)


def test_stored_text_keeps_everything_else() -> None:
    for text in ("", "plain", "é\U0001f600\u2028\x00\x1b[31m\n", "\u202e"):
        assert storable(text, 100) == text


@pytest.mark.parametrize(
    "raw", [b"", b"plain", "é\U0001f600".encode(), b"\xff\xfe\x00{", b"\x80" * 500, "é".encode()[:1], b"\xed\xa0\x80"]
)
def test_stored_bytes_are_valid_text_within_the_limit(raw: bytes) -> None:
    """R30."""
    text = storable_bytes(raw, 100)
    text.encode()
    assert len(text) <= 100
    if len(raw) < 100:
        assert text == raw.decode("utf-8", "replace")


# ---- shown ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "plain", "a b", "grün", "日本", "\U0001f600", "back\\slash", "'quotes\""])
def test_harmless_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("a\r\tb", "a\\r\\tb"),
        ("\x00", "\\x00"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x7f\x9b", "\\x7f\\x9b"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\u200b\u200d\ufeff", "\\u200b\\u200d\\ufeff"),
        ("\x85\xad", "\\x85\\xad"),
        ("\ud800", "\\ud800"),
        ("\ue000", "\\ue000"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_characters_that_break_reorder_or_hide_a_line_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_character_at_all_breaks_a_line_or_hides() -> None:
    # The planes between hold ideographs and nothing else.
    for start in (*range(0, 0x20000, 200), *range(0xE0000, 0x10FF00, 200)):
        shown = printable("".join(map(chr, range(start, start + 200))))
        assert len(shown.splitlines()) <= 1
        shown.encode()
        assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("char", ["x", "é", "\x00", "\U0001f600", "\U000e0041"])
def test_shown_text_has_a_limit(char: str) -> None:
    assert len(printable(char * 1_000_000, 50)) <= 300
    assert len(printable("x" * 51, 50)) == 50
    assert printable("x" * 51, 50).endswith("...")
    assert printable("x" * 50, 50) == "x" * 50
