"""An application whose child dies while it reads bytes that say so: what a fault in a parser would do."""

from __future__ import annotations

import os
import signal
from typing import Any

from cogworkerd import App
from cogworkerd.worker import perform

app = App()
patched: Any = perform
_parse = patched.parse


def _parse_or_die(raw: bytes) -> dict[str, Any]:
    if raw == b"poison":
        os.kill(os.getpid(), signal.SIGKILL)
    found: dict[str, Any] = _parse(raw)
    return found


patched.parse = _parse_or_die
