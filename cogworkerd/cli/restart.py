"""cogworkerd restart: new code for running daemons, by their channels."""

from __future__ import annotations

import argparse

from cogworkerd.cli import steer

HELP = "Bring new code into daemons as USR2 does: it is tried first; slot by slot, running jobs go on."
EXAMPLES = """examples:
  cogworkerd restart
  cogworkerd restart shop
  cogworkerd restart --all"""

add_arguments = steer.add_arguments


def perform(arguments: argparse.Namespace) -> int:
    """Send the order. Returns 0, or 1 when a daemon did not hear it."""
    return steer.send(arguments, "restart")
