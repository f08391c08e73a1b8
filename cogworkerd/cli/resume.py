"""cogworkerd resume: an order to daemons, by their channels."""

from __future__ import annotations

import argparse

from cogworkerd.cli import steer

HELP = "Let quiet daemons fetch again."
EXAMPLES = """examples:
  cogworkerd resume
  cogworkerd resume shop
  cogworkerd resume --all"""

add_arguments = steer.add_arguments


def perform(arguments: argparse.Namespace) -> int:
    """Send the order. Returns 0, or 1 when a daemon did not hear it."""
    return steer.send(arguments, "resume")
