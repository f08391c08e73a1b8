"""cogworkerd check"""
import argparse
HELP="check"
EXAMPLES=""
def add_arguments(parser: argparse.ArgumentParser) -> None: ...
def perform(arguments: argparse.Namespace) -> int: return 0
