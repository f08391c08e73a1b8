"""cogworkerd status"""
import argparse
HELP="status"
EXAMPLES=""
def add_arguments(parser: argparse.ArgumentParser) -> None: ...
def perform(arguments: argparse.Namespace) -> int: return 0
