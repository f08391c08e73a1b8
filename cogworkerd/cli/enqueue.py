"""cogworkerd enqueue: push one job by name."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from cogworkerd.cli import options
from cogworkerd.errors import SettingsError
from cogworkerd.loading import loader

HELP = "Enqueue one job of an app; prints its id."
EXIT_NOTHING = 1
EXAMPLES = """examples:
  cogworkerd enqueue shop.jobs:app mail.send_welcome '[42]'
  cogworkerd enqueue shop.jobs:app mail.send_welcome '[42]' --kwargs '{"lang": "de"}' --in 300
  echo '[42]' | cogworkerd enqueue shop.jobs:app mail.send_welcome -"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_app(parser)
    parser.add_argument("job", metavar="NAME", help="the job's name, or an end of it that only one job has")
    parser.add_argument("args", metavar="ARGS", nargs="?", default="[]", help="JSON array; - reads it from stdin")
    parser.add_argument("--kwargs", metavar="JSON", default="{}", help="JSON object of keyword arguments")
    parser.add_argument("--in", dest="delay", metavar="SECONDS", type=float, help="not before so many seconds")
    parser.add_argument("--queue", metavar="NAME", help="another queue than the job's own")
    options.add_server(parser)
    options.add_embedded(parser, starts=False)


def perform(arguments: argparse.Namespace) -> int:
    """Push the job and print its id. Returns 0, or 1 when nothing was pushed; words that make no sense are 2."""
    text = sys.stdin.read() if arguments.args == "-" else arguments.args
    args = _json(text, "ARGS", list)
    kwargs = _json(arguments.kwargs, "--kwargs", dict)
    app = loader(arguments.app, arguments.app_dir)()
    app.use(options.effective(arguments, app.layer, options.embedded_layer(arguments)).settings)
    job = app.jobs[_full_name(arguments.job, list(app.jobs))]
    if arguments.queue is not None:
        job = job.using(queue=arguments.queue)
    try:
        if arguments.delay is None:
            jid = job.enqueue(*args, **kwargs)
        else:
            jid = job.enqueue_in(arguments.delay, *args, **kwargs)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error))
    if jid is None:
        print("nothing was pushed: a duplicate of a unique job, or a client middleware stopped it", file=sys.stderr)
        return EXIT_NOTHING
    print(jid)
    return 0


def _json(text: str, what: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{what} is not JSON: {error}")
    if not isinstance(value, kind):
        raise SettingsError(f"{what} must be a JSON {'array' if kind is list else 'object'}, not {text:.60}")
    return value


def _full_name(name: str, known: list[str]) -> str:
    matches = [name] if name in known else [full for full in known if full.endswith(f".{name}")]
    if len(matches) != 1:
        problem = "is no job of this app" if not matches else f"could be {' or '.join(matches)}"
        raise SettingsError(f"{name!r} {problem}; its jobs: {', '.join(sorted(known)) or 'none'}")
    return matches[0]
