"""A question before anything that cannot be taken back."""

from __future__ import annotations

import argparse
import sys

from cogworkerd.errors import UsageError


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def confirm(arguments: argparse.Namespace, what: str) -> bool:
    """Ask on a terminal.

    Raises:
        UsageError: nobody is there to be asked, and --yes was not given.
    """
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{what}: add --yes, since there is no terminal to ask on")
    return input(f"{what}? [y/N] ").strip().lower() in ("y", "yes")
