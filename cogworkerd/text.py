"""Text from outside, made fit to be stored or shown."""

from __future__ import annotations

import traceback
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

Mask = Callable[[str], str]

ERROR_MESSAGE_LIMIT = 10_000
RAW_PAYLOAD_LIMIT = 100_000
NAME_LIMIT = 200
"""Characters of a name in a record: those of other programs have no limit."""

_CUT = "... (cut)"
_OWN_FRAMES = tuple(str(Path(__file__).with_name(name)) for name in ("worker", "middleware.py"))
_CAUSES_SHOWN = 5
_FRAMES_SHOWN = 40

# Control characters, line and paragraph separators, lone surrogates, and marks that reorder or hide text.
_UNSHOWABLE_CATEGORIES = {"Cc", "Cf", "Zl", "Zp", "Cs", "Co"}


def storable(text: str, limit: int) -> str:
    """Valid UTF-8 of at most `limit` characters; what is cut is marked at its end."""
    if len(text) > limit:
        text = text[: limit - len(_CUT)] + _CUT
    return text.encode("utf-8", "replace").decode()


def storable_bytes(raw: bytes, limit: int) -> str:
    """Bytes of any kind as valid text of at most `limit` characters."""
    return storable(raw[: 4 * limit].decode("utf-8", "replace"), limit)


def printable(text: str, limit: int = 200) -> str:
    """One line that a terminal, a log or a process title can show: at most `limit` characters, the odd ones escaped."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) for char in text)[: 6 * limit]


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _UNSHOWABLE_CATEGORIES:
        return char
    return char.encode("unicode_escape").decode()


def error_class(error: BaseException) -> str:
    """The name of an error's class, as it is stored."""
    return storable(str(type(error).__name__), 200)


def error_message(error: BaseException, mask: Mask | None = None) -> str:
    """The message of an error, whatever its class makes of being asked for it.

    Args:
        mask: what is to be done to it before it is cut.
    """
    try:
        text = str(error)
        if not isinstance(text, str):
            raise TypeError("not a string")
    except BaseException as problem:
        return f"{error_class(error)} (its message could not be made: {error_class(problem)})"
    return storable(mask(text) if mask is not None else text, ERROR_MESSAGE_LIMIT)


def traceback_text(error: BaseException, mask: Mask | None = None) -> str:
    """The frames of an error and of its first causes as plain lines; never a variable's value. `mask`: see
    `error_message`; it is applied to the lines, too."""
    blocks: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(blocks) < _CAUSES_SHOWN:
        seen.add(id(current))
        blocks.append(_one_traceback(current, mask))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n\nwhich came from this:\n\n".join(blocks)


def _one_traceback(error: BaseException, mask: Mask | None) -> str:
    headline = f"{error_class(error)}: {printable(error_message(error, mask), 1000)}"
    frames = "".join(_frames(error.__traceback__))
    return (mask(frames) if mask is not None else frames) + headline


def _frames(frames: TracebackType | None) -> list[str]:
    """The last frames as text, without our own that lead to the job's code and through its middleware."""
    walked = list(traceback.walk_tb(frames))
    theirs = [pair for pair in walked if not pair[0].f_code.co_filename.startswith(_OWN_FRAMES)]
    stack = traceback.StackSummary.extract(iter(theirs or walked), limit=-_FRAMES_SHOWN, lookup_lines=True)
    return stack.format()
