"""cogworkerd stack: where a running job is at this moment."""

from __future__ import annotations

import argparse
import json
import sys

from cogworkerd.cli import options
from cogworkerd.cli.tables import duration
from cogworkerd.fleet import Running

HELP = "Show the Python stack of a running job, also inside a C call; the job goes on."
EXAMPLES = """examples:
  cogworkerd stack 4f3a91c0ffee4f3a91c0ffee
  cogworkerd stack 4f3a91c0ffee4f3a91c0ffee --json"""

EXIT_NOT_RUNNING = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jid", metavar="JID")
    parser.add_argument("--json", action="store_true", help="one object, for scripts")
    options.add_server(parser)
    options.add_embedded(parser, starts=False)


def perform(arguments: argparse.Namespace) -> int:
    """Print the stack. Returns 0, or 1 when no daemon runs the job."""
    found = options.effective(arguments, extra=options.embedded_layer(arguments))
    stack = Running(options.store(found)).stack(arguments.jid)
    if stack is None:
        print(f"{arguments.jid}: no daemon runs it", file=sys.stderr)
        return EXIT_NOT_RUNNING
    if arguments.json:
        print(json.dumps(vars(stack), indent=2, ensure_ascii=False))
        return 0
    print(f"{arguments.jid}: for {duration(stack.seconds)}, slot {stack.slot} of {stack.identity}, pid {stack.pid}")
    for line in stack.lines or ["(its process did not answer)"]:
        print(line)
    return 0
