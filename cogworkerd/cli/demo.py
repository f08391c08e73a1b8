"""cogworkerd demo"""

import argparse

HELP = "demo"
EXAMPLES = ""


def add_arguments(parser: argparse.ArgumentParser) -> None: ...
def perform(arguments: argparse.Namespace) -> int:
    return 0
