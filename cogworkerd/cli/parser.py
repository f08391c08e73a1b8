"""The commands and how their words are read."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from cogworkerd import __version__
from cogworkerd.errors import AppImportError, CogworkerdError, SettingsError, UsageError

EXIT_FAILED, EXIT_USAGE, EXIT_AWAY, EXIT_CONFIG = 1, 2, 69, 78
COMMANDS = (
    *("run", "check", "demo", "enqueue", "status", "jobs", "queues"),
    *("stack", "quiet", "resume", "restart", "stop", "healthcheck", "systemd"),
)


def build() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="cogworkerd",
        description="Background jobs for Python on Redis or Valkey.",
        epilog="Example: cogworkerd run shop.jobs:app -c 10 -q mail,3 -q default",
    )
    parser.add_argument("--version", action="version", version=f"cogworkerd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f"cogworkerd.cli.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(perform=module.perform)
    return parser


def dispatch(words: Sequence[str]) -> int:
    """Read the words and run the command. Every expected error is a sentence on stderr and an exit status."""
    import redis.exceptions

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What others wrote may hold what this terminal, or any, cannot show.
            stream.reconfigure(errors="backslashreplace")
    try:
        arguments = build().parse_args(words)
        status = arguments.perform(arguments)
        sys.stdout.flush()
        return int(status)
    except SettingsError as error:
        return _say(EXIT_CONFIG, *error.problems)
    except UsageError as error:
        return _say(EXIT_USAGE, str(error))
    except AppImportError as error:
        return _say(EXIT_CONFIG, str(error))
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        return _say(EXIT_AWAY, f"the server is away: {error}")
    except redis.exceptions.RedisError as error:
        return _say(EXIT_FAILED, f"the server refuses: {error}")
    except CogworkerdError as error:
        return _say(EXIT_FAILED, str(error))
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from saying so at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130


def _say(status: int, *sentences: str) -> int:
    for sentence in sentences:
        print(f"cogworkerd: {sentence}", file=sys.stderr)
    return status
