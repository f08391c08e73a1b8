"""Reading counters that anybody may have written."""

from __future__ import annotations

import re
from typing import Any

_COUNTER = re.compile(rb"[0-9]{1,30}")


def counter(value: Any) -> int:
    """A counter as the server answered it; 0 for anything else that somebody put there."""
    return int(value) if isinstance(value, bytes) and _COUNTER.fullmatch(value) else 0
