"""Masking arguments: what `@app.job(redact=[...])` names is not shown in history, lists and pages.

The payload keeps the values, and says in its field `redact` what to mask: numbers are positions in `args`, a text that
begins with `*` is the position from which on everything is masked, other texts are names in `kwargs`.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cogworkerd.text import printable

MASK = "[redacted]"
_SHORTEST = 4
_LARGEST = 1e300
_DEEPEST = 20
_REST = re.compile(r"\*([0-9]{1,6})")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def masked_places(signature: inspect.Signature, names: Sequence[str | int], where: str) -> list[int | str]:
    """Where the arguments of these names stand in a payload.

    Raises:
        ValueError: the function has no parameter of that name.
    """
    parameters = list(signature.parameters.values())
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    places: list[int | str] = []
    for name in names:
        if isinstance(name, int):
            places.append(name)
            continue
        index = next((i for i, parameter in enumerate(parameters) if parameter.name == name), None)
        if index is None and not takes_any:
            known = ", ".join(parameter.name for parameter in parameters) or "none"
            raise ValueError(f"{where}: redact names {name!r}, which is no parameter of the function; it has: {known}")
        kind = inspect.Parameter.KEYWORD_ONLY if index is None else parameters[index].kind
        if index is not None and kind in _POSITIONAL:
            # By position, or by name: behind one that was left out, and in a push by name.
            places += [index, name] if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD else [index]
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            places.append(f"*{index}")
        elif kind is inspect.Parameter.VAR_KEYWORD:
            places.append("**")
        else:
            places.append(name)
    return places


def masked(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload as it may be shown. `args` and `kwargs` are copied where something is masked, else they are shared."""
    shown = dict(payload)
    if not is_masked(payload):
        return shown
    positions, names = _masked_in(payload)
    args, kwargs = payload.get("args"), payload.get("kwargs")
    if isinstance(args, list):
        shown["args"] = [MASK if index in positions else value for index, value in enumerate(args)]
    if isinstance(kwargs, dict):
        shown["kwargs"] = {**kwargs, **dict.fromkeys(names, MASK)}
    if "error_message" in shown:
        shown["error_message"] = masked_text(str(shown["error_message"]), payload)
    return shown


def masked_text(text: str, payload: Mapping[str, Any]) -> str:
    """A text about a job, an error's message say, without the masked values that are long enough to be told from
    chance."""
    if is_masked(payload):
        for value in _values(payload):
            text = text.replace(value, MASK)
    return text


def masker(payload: Mapping[str, Any]) -> Callable[[str], str] | None:
    """`masked_text` for this job; None where nothing of it is masked."""
    return functools.partial(masked_text, payload=payload) if is_masked(payload) else None


def is_masked(payload: Mapping[str, Any]) -> bool:
    """Whether something of this job is masked."""
    places = payload.get("redact")
    return isinstance(places, list) and bool(places)


def _masked_in(payload: Mapping[str, Any]) -> tuple[set[int], list[str]]:
    """Which of its arguments are masked: positions in `args`, names in `kwargs`."""
    places, args, kwargs = payload["redact"], payload.get("args"), payload.get("kwargs")
    rest = _rest_of(places)
    count = len(args) if isinstance(args, list) else 0
    positions = {index for index in range(count) if index in places or index >= rest}
    return positions, [
        name for name in (kwargs if isinstance(kwargs, dict) else ()) if name in places or "**" in places
    ]


def _rest_of(places: list[Any]) -> float:
    """The position from which on everything is masked."""
    starts = [int(match[1]) for place in places if isinstance(place, str) and (match := _REST.fullmatch(place))]
    return min(starts, default=math.inf)


def _values(payload: Mapping[str, Any]) -> list[str]:
    """The masked values as they may stand in a text, the longest first: one may be the beginning of another."""
    positions, names = _masked_in(payload)
    values = [payload["args"][index] for index in positions] + [payload["kwargs"][name] for name in names]
    found = {text for value in values for text in _texts_in(value)}
    return sorted((text for text in found if len(text) >= _SHORTEST), key=len, reverse=True)


def _texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """What of a value may stand in a text: its parts, as they are and as `repr` shows them."""
    if isinstance(value, str):
        yield value
        yield repr(value)[1:-1]
        yield printable(value, len(value))
        yield from (line for line in value.splitlines() if line != value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield repr(value) if abs(value) < _LARGEST else ""
    elif depth < _DEEPEST and isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(part, depth + 1)
