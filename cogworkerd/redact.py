"""Masking arguments: what `@app.job(redact=[...])` names is not shown in history, lists and pages.

The payload keeps the values, and says in its field `redact` what to mask: numbers are positions in `args`, a text that
begins with `*` is the position from which on everything is masked, other texts are names in `kwargs`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "[redacted]"
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
            places.append(index)
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
    places = payload.get("redact")
    if not isinstance(places, list) or not places:
        return shown
    args, kwargs = payload.get("args"), payload.get("kwargs")
    if isinstance(args, list):
        shown["args"] = _masked_args(args, places)
    if isinstance(kwargs, dict):
        named = {name: MASK for name in kwargs if name in places or "**" in places}
        shown["kwargs"] = {**kwargs, **named}
    if "error_message" in shown:
        shown["error_message"] = masked_text(str(shown["error_message"]), payload)
    return shown


def masked_text(text: str, payload: Mapping[str, Any]) -> str:
    """A text about a job, an error's message say, without the masked values that are long enough to be told from
    chance."""
    places = payload.get("redact")
    if not isinstance(places, list) or not places:
        return text
    return _without_values(text, payload.get("args"), payload.get("kwargs"), places)


def is_masked(payload: Mapping[str, Any]) -> bool:
    """Whether something of this job is masked."""
    places = payload.get("redact")
    return isinstance(places, list) and bool(places)


def _masked_args(args: list[Any], places: list[Any]) -> list[Any]:
    rest = _rest_of(places)
    return [MASK if index in places or index >= rest else value for index, value in enumerate(args)]


def _rest_of(places: list[Any]) -> float:
    """The position from which on everything is masked."""
    starts = [int(place[1:]) for place in places if isinstance(place, str) and place[:1] == "*" and place[1:].isdigit()]
    return min(starts, default=float("inf"))


def _without_values(text: str, args: Any, kwargs: Any, places: list[Any]) -> str:
    rest = _rest_of(places)
    values = [value for index, value in enumerate(args or ()) if index in places or index >= rest]
    values += [value for name, value in (kwargs or {}).items() if name in places or "**" in places]
    for value in values:
        if isinstance(value, str) and len(value) >= 4:
            text = text.replace(value, MASK)
    return text
