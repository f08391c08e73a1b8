"""cogworkerd systemd: install the service, or take it away."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cogworkerd import systemd_units
from cogworkerd.cli import options
from cogworkerd.errors import SettingsError
from cogworkerd.loading import loader
from cogworkerd.systemd_units import Service, check_name

HELP = "Install the daemon as a systemd service, or take it away."
EXAMPLES = """examples:
  cogworkerd systemd install shop.jobs:app --app-dir /srv/shop
  cogworkerd systemd install shop.jobs:app --app-dir /srv/shop --account shop --print
  cogworkerd systemd install shop.jobs:app --user
  cogworkerd systemd uninstall"""

EXIT_FAILED = 1


@dataclass(frozen=True)
class _Files:
    """Where the service's two files are."""

    unit: Path
    environment: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    install = verbs.add_parser("install", help="write the unit and its environment file, or print them")
    options.add_app(install)
    install.add_argument("--account", metavar="NAME", default="", help="the user that jobs run as (default: its own)")
    install.add_argument("--print", dest="only_print", action="store_true", help="print both files, write nothing")
    install.add_argument("--force", action="store_true", help="overwrite files that are there")
    uninstall = verbs.add_parser("uninstall", help="remove both files")
    for verb in (install, uninstall):
        verb.add_argument("--user", action="store_true", help="a service of this user: systemctl --user")
        verb.add_argument("--name", default="cogworkerd", help="of the unit (default: cogworkerd)")


def perform(arguments: argparse.Namespace) -> int:
    """Install or uninstall. Returns 0, or 1 when nothing was there to be removed, or a file is in the way."""
    try:
        check_name(arguments.name)
    except ValueError as error:
        raise SettingsError(f"--name = {arguments.name!r:.80} cannot be used; allowed: {error}")
    files = _files(arguments.name, arguments.user)
    try:
        return _install(arguments, files) if arguments.verb == "install" else _uninstall(arguments, files)
    except PermissionError as error:
        print(f"cogworkerd: {error.filename}: {error.strerror}; as root, or with --user", file=sys.stderr)
        return EXIT_FAILED


def _files(name: str, user: bool) -> _Files:
    if user:
        home = Path.home() / ".config"
        return _Files(home / "systemd" / "user" / f"{name}.service", home / "cogworkerd" / f"{name}.env")
    return _Files(Path("/etc/systemd/system") / f"{name}.service", Path("/etc/cogworkerd") / f"{name}.env")


def _install(arguments: argparse.Namespace, files: _Files) -> int:
    folder = Path(arguments.app_dir or ".").resolve()
    arguments.app_dir = str(folder)
    app = loader(arguments.app, str(folder))()
    found = options.effective(arguments, app.layer)
    service = Service(
        program=_program(),
        environment=str(files.environment),
        name=arguments.name,
        account=arguments.account,
        user_manager=arguments.user,
        shutdown_timeout=found.settings.shutdown_timeout,
    )
    texts = {
        files.unit: systemd_units.unit(service),
        files.environment: systemd_units.environment_file(arguments.app, str(folder), found.settings.redis_url),
    }
    if arguments.only_print:
        print("\n".join(f"# {path}\n{text}" for path, text in texts.items()))
        return 0
    in_the_way = [str(path) for path in texts if path.exists()]
    if in_the_way and not arguments.force:
        print(f"cogworkerd: {', '.join(in_the_way)}: there already; --force overwrites", file=sys.stderr)
        return EXIT_FAILED
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600 if path == files.environment else 0o644)
        path.write_text(text)
        print(f"wrote {path}")
    _warn_of_hidden_places(arguments, folder)
    control = "systemctl --user" if arguments.user else "systemctl"
    print(f"next: {control} daemon-reload && {control} enable --now {arguments.name}")
    return _verify(files.unit, arguments.user)


def _program() -> str:
    """The `cogworkerd` of this installation."""
    beside = Path(sys.executable).with_name("cogworkerd")
    found = str(beside) if beside.exists() else shutil.which("cogworkerd")
    if not found:
        raise SettingsError(f"there is no cogworkerd beside {sys.executable}, nor on the path")
    return found


def _warn_of_hidden_places(arguments: argparse.Namespace, folder: Path) -> None:
    if arguments.user:
        return
    for place in (folder, Path(_program())):
        if place.is_relative_to("/home") or place.is_relative_to("/root"):
            print(f"warning: {place} is hidden from the service by ProtectHome=yes: move it, or take that line back")


def _verify(unit: Path, user: bool) -> int:
    """Ask systemd what it thinks of the unit, where it can be asked."""
    if not shutil.which("systemd-analyze"):
        return 0
    # Without a runtime folder there is no user's manager to ask; the rules of the units are the same for both.
    as_user = ["--user"] if user and os.environ.get("XDG_RUNTIME_DIR") else []
    command = ["systemd-analyze", *as_user, "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr.strip():
        print(f"systemd-analyze verify says:\n{done.stderr.strip()}", file=sys.stderr)
        return EXIT_FAILED
    print("systemd-analyze verify has nothing to say against it")
    return 0


def _uninstall(arguments: argparse.Namespace, files: _Files) -> int:
    there = [path for path in (files.unit, files.environment) if path.exists()]
    for path in there:
        path.unlink()
        print(f"removed {path}")
    if not there:
        print(f"cogworkerd: neither {files.unit} nor {files.environment} is there", file=sys.stderr)
        return EXIT_FAILED
    control = "systemctl --user" if arguments.user else "systemctl"
    print(f"next, if it runs: {control} disable --now {arguments.name}; {control} daemon-reload")
    return 0
