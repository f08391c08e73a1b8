"""The command line. Each command is one file; it is imported only when it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cogworkerd.cli import early


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; default: those of the process.

    Returns:
        The exit status: 0 done, 1 failed or nothing matched, 2 usage, 69 the server is away, 78 configuration.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] == "run":
        # Before anything slow is imported: a stop that comes now must not be lost, nor kill us half-way.
        early.install()
    from cogworkerd.cli import parser

    return parser.dispatch(words)
