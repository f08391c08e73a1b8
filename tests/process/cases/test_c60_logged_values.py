"""C60: a job logs values that no renderer likes, on terminals that lack their characters: one readable line a call."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support import Client, Daemon, eventually, push_raw

Start = Callable[..., Daemon]

PLAIN_C = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
UTF8 = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CALLS = ("by structlog", "by logging a=", "by logging without a")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"a bare {name}")


@pytest.mark.parametrize("locale", [PLAIN_C, UTF8], ids=["C", "UTF-8"])
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_c60_a_job_that_logs_nasty_values_succeeds_and_each_call_is_one_line(
    log_format: str, locale: dict[str, str], daemon: Start, client: Client, witness: Client
) -> None:
    running = daemon("-c", "1", "--log-format", log_format, target="case_jobs:app", env=locale)
    push_raw(client, "lines")
    eventually(lambda: witness.get("t:lines") == "1", 15)
    eventually(lambda: client.get("cogworker:stats:processed") == "1")
    assert running.stop() == 0
    running.clean_log()
    text = running.log.read_bytes().decode("utf-8")  # strictly: what is written is valid
    assert "Logging error" not in text
    assert client.get("cogworker:stats:failed") is None
    for call in CALLS:
        lines = [line for line in text.split("\n") if call in line]
        assert len(lines) == 1, text
        if log_format == "json":
            assert isinstance(json.loads(lines[0], parse_constant=_refuse_constant), dict)
        for name in ("c", "f") if call == CALLS[2] else ("a", "c", "f"):
            assert _shown(name) in lines[0].replace("\\\\", "\\").replace("é", "\\xe9"), lines[0]
    assert "\u2028" not in text


def _shown(name: str) -> str:
    """How the value of that name can be told in a line."""
    return {"a": "Bad", "c": "<\\ud800>", "f": "\\xe9\\u2028"}[name]
