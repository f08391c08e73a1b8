"""cogworkerd stop: an order to daemons, by their channels."""

from __future__ import annotations

import argparse

from cogworkerd.cli import steer

HELP = "Stop daemons as TERM does; running jobs have shutdown_timeout."
EXAMPLES = """examples:
  cogworkerd stop
  cogworkerd stop shop
  cogworkerd stop --all"""

add_arguments = steer.add_arguments


def perform(arguments: argparse.Namespace) -> int:
    """Send the order. Returns 0, or 1 when a daemon did not hear it."""
    return steer.send(arguments, "stop")
