"""cogworkerd demo: the main job on real files, on a private server, in half a minute."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import redis

from cogworkerd import demo
from cogworkerd.cli.tables import table
from cogworkerd.embedded import EmbeddedServer
from cogworkerd.settings import Layer, combine
from cogworkerd.usable_cpus import default_concurrency

HELP = "Show the whole thing at work on real files, with a private server; nothing is left behind."
EXAMPLES = """examples:
  cogworkerd demo
  cogworkerd demo ~/projects"""

MOST_FILES = 2000
_OVER_WITHIN = 300.0
_LOOK_EVERY = 0.1
_BAR = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", nargs="?", help="a folder (default: Python's standard library)")
    parser.add_argument("-c", "--concurrency", metavar="N", type=int, help="slots (default: as many as CPUs)")


def perform(arguments: argparse.Namespace) -> int:
    """Run the demo. Returns 0, 1 if it could not finish."""
    files = _files(arguments.path)
    if not files:
        print(f"cogworkerd: there is no readable file under {arguments.path}", file=sys.stderr)
        return 1
    slots = arguments.concurrency or default_concurrency()[0]
    if slots < 1:
        print(f"cogworkerd: -c {slots}: allowed is a whole number from 1 up", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    server = EmbeddedServer.start(None)
    try:
        with _daemon(server.url, slots) as process:
            return _show(server.url, process, files, slots)
    except KeyboardInterrupt:
        print("\ninterrupted; everything was stopped")
        return 130
    finally:
        server.stop()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _files(path: str | None) -> list[str]:
    """The files to analyse, in a stable order."""
    if path is not None:
        found = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    else:
        root = Path(sysconfig.get_paths()["stdlib"])
        found = [p for p in root.rglob("*.py") if not {"site-packages", "test", "tests"} & set(p.parts)]
    readable = [str(p.absolute()) for p in found if p.is_file() and os.access(p, os.R_OK)]
    return sorted(p for p in readable if _is_text(p))[:MOST_FILES]


def _is_text(path: str) -> bool:
    """A name that is not valid UTF-8 cannot travel in a job."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def _daemon(url: str, slots: int) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in a session of its own, stopped and waited for at the end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COGWORKERD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "cogworkerd", "run", "cogworkerd.demo:app", "-c", str(slots), "--tag", "demo"],
        env={**environment, "COGWORKERD_REDIS_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()


def _show(url: str, process: subprocess.Popen[bytes], files: list[str], slots: int) -> int:
    demo.app.use(combine(Layer("demo", {"redis_url": url})).settings)
    print(
        f"{len(files)} files, {slots} slots, a private server; one job in {demo.FAIL_EVERY} fails once, one is killed"
    )
    began = time.monotonic()
    calls = [demo.analyse.call(number, path) for number, path in enumerate(files[1:], 1)]
    demo.app.enqueue_many([demo.victim.call(0, files[0]), *calls])
    client = demo.app.settings.server().client()
    killed = False
    while (done := int(client.hlen(demo.RESULTS))) < len(files):
        if process.poll() is not None or time.monotonic() - began > _OVER_WITHIN:
            print("\ncogworkerd: the demo's daemon ended early", file=sys.stderr)
            return 1
        killed = killed or _kill_victim(client)
        _progress(done, len(files), began)
        time.sleep(_LOOK_EVERY)
    seconds = time.monotonic() - began
    _progress(len(files), len(files), began)
    print(("\n" if sys.stdout.isatty() else "") + _summary(client, seconds, slots))
    return 0


def _kill_victim(client: redis.Redis) -> bool:
    pid = client.hget(demo.VICTIM, "pid")
    if pid is None:
        return False
    os.kill(int(pid), signal.SIGKILL)
    return True


def _progress(done: int, total: int, began: float) -> None:
    if sys.stdout.isatty():
        bar = "#" * (_BAR * done // total)
        print(f"\r[{bar:<{_BAR}}] {done}/{total}  {time.monotonic() - began:4.1f} s", end="", flush=True)


def _summary(client: redis.Redis, seconds: float, slots: int) -> str:
    rows = [value.split() for value in client.hvals(demo.RESULTS)]
    lines, words, size = (sum(int(row[i]) for row in rows) for i in range(3))
    came_back = "yes" if client.hget(demo.VICTIM, "came_back") else "no"
    return table(
        "Done",
        ("what", "how many"),
        [
            ("files", f"{len(rows)}"),
            ("bytes", f"{size}"),
            ("lines", f"{lines}"),
            ("words", f"{words}"),
            ("seconds", f"{seconds:.1f}"),
            ("jobs a second", f"{len(rows) / seconds:.0f}"),
            ("retries", f"{int(client.get(demo.RETRIES) or 0)}"),
            ("killed and came back", came_back),
            ("slots", f"{slots}"),
        ],
    )
