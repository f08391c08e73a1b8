"""All settings: one frozen dataclass, validated as a whole.

The value that counts comes from the last of: defaults, `App(...)`, cogworkerd.toml or [tool.cogworkerd] of
pyproject.toml, COGWORKERD_* variables, flags.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cogworkerd.errors import SettingsError
from cogworkerd.locks import DEFAULT_TTL, Locks
from cogworkerd.store.connection import Server, URLError, check_options
from cogworkerd.store.keys import Keys

if TYPE_CHECKING:
    from cogworkerd.periodic import Declaration

DEFAULT_URL = "redis://localhost:6379/0"
APP_LAYER = "App(...)"
"""What the place is called where the application says what it wants."""

MAX_QUEUE_NAME = 200
MOST_SLOTS = 1024
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)

Parser = Callable[[Any], Any]
CATCH_UP = ("latest", "none", "first")


class BadEntry(ValueError):
    """A periodic entry cannot be used; the text is a whole sentence."""


def _positive_int(value: Any) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\s*\d+\s*", value) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError("a whole number from 1 up")
    return number


def _slots(value: Any) -> int:
    try:
        number = _positive_int(value)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST_SLOTS:
        raise ValueError(f"a whole number from 1 to {MOST_SLOTS}")
    return number


def _seconds(value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (0 < number < math.inf):
        raise ValueError("a positive number of seconds")
    return number


def _flag(value: Any) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in known:
        return known[value.strip().lower()]
    raise ValueError("true or false")


def _size(value: Any) -> int:
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(min(float(match[1]) * _UNITS[match[2].upper()], 2.0**63)) if match else value
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**63:
        raise ValueError('a number of bytes, or a text such as "512K", "1M"')
    return size


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _choice(*allowed: str) -> Parser:
    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(" or ".join(repr(choice) for choice in allowed))
        return str(value)

    return parse


def _namespace(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.:-]{0,64}", value):
        raise ValueError("up to 64 letters, digits and _ . : -")
    return value


def _tag(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.@-]{1,40}", value):
        raise ValueError("1 to 40 letters, digits and _ . @ -")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a table")
    return dict(value)


def _catch_up(value: Any) -> str:
    if value is False or value == "false":
        return "none"
    return str(_choice(*CATCH_UP)(value))


def _periodic(value: Any) -> tuple[Declaration, ...]:
    from cogworkerd.periodic import declarations_in  # a client never needs croniter

    return declarations_in(value)


_QUEUES_ALLOWED = 'names, each with an optional weight from 1 up: "mail,3 default" or [["mail", 3], "default"]'


def parse_queues(value: Any) -> tuple[tuple[str, int], ...]:
    """Queues with their weights, from a text such as `mail,3 default`, or a list of names and [name, weight] pairs."""
    entries = value.split() if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError(_QUEUES_ALLOWED)
    queues: dict[str, int] = {}
    for entry in entries:
        name, weight = _parse_queue(entry)
        if name in queues:
            raise ValueError(f"each queue once ({name!r} stands there twice)")
        queues[name] = weight
    return tuple(queues.items())


def _parse_queue(entry: Any) -> tuple[str, int]:
    if isinstance(entry, str):
        name, comma, weight = entry.partition(",")
        if comma and not re.fullmatch("[0-9]{1,9}", weight):
            raise ValueError(f"{_QUEUES_ALLOWED}. Several queues are several options: -q {name} -q {weight}")
        pair: Any = (name, int(weight or 1))
    else:
        pair = entry
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(_QUEUES_ALLOWED)
    try:
        return check_queue_name(pair[0]), _positive_int(pair[1])
    except ValueError:
        raise ValueError(_QUEUES_ALLOWED)


def check_queue_name(name: Any) -> str:
    """A queue's name: printable text of 1 to 200 characters without white space or a comma.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_QUEUE_NAME or not name.isprintable():
        raise ValueError("a queue's name is a printable text of 1 to 200 characters")
    if re.search(r"[\s,]", name):
        raise ValueError("a queue's name holds no white space and no comma")
    return name


def _setting(default: Any, parse: Parser, help: str, allowed: str = "") -> Any:
    return field(default=default, metadata={"parse": parse, "help": help, "allowed": allowed})


@dataclass(frozen=True)
class Settings:
    """The effective settings. Times in seconds, sizes in bytes; None is "not set"."""

    redis_url: str = _setting(DEFAULT_URL, _text, "the server")
    redis: Mapping[str, Any] | None = _setting(None, _table, "more of the server: ca_certs, username ...")
    namespace: str = _setting("", _namespace, "prefix of every key")
    concurrency: int | None = _setting(None, _slots, "slots, one process each")
    queues: tuple[tuple[str, int], ...] | None = _setting(None, parse_queues, "queues and weights")
    strict_order: bool = _setting(False, _flag, "take the queues in their order instead of by weight")
    fetch: str = _setting("reliable", _choice("reliable", "basic"), "whether a job stays listed until it is settled")
    fetch_idle_max_interval: float = _setting(1.0, _seconds, "the longest between two looks of the idle slots")
    orphan_threshold: float = _setting(300.0, _seconds, "how long without a beat before a daemon is dead")
    max_orphanings: int = _setting(3, _positive_int, "how often a job may lose its process before it goes to dead")
    unique_lock_ttl: float = _setting(DEFAULT_TTL, _seconds, "how long a lock outlives what its job waits for")
    shutdown_timeout: float = _setting(25.0, _seconds, "how long a stop waits for running jobs")
    boot_timeout: float = _setting(60.0, _seconds, "how long a child may take until it is ready")
    max_jobs_per_child: int | None = _setting(None, _positive_int, "replace a child after so many jobs")
    max_rss_per_child: int | None = _setting(None, _size, "replace a child that is larger than this after a job")
    max_private_per_child: int | None = _setting(None, _size, "the same, of the memory that it does not share")
    kill_rss: int | None = _setting(None, _size, "end a job that makes its process larger than this")
    periodic: tuple[Declaration, ...] | None = _setting(None, _periodic, "periodic entries, a list of tables")
    periodic_catch_up: str = _setting("latest", _catch_up, "which slot of a downtime is fired: latest, none or first")
    periodic_prune: bool = _setting(False, _flag, "forget published entries that no live daemon declares")
    timeout: float | None = _setting(None, _seconds, "how long a job may run that does not say so itself")
    timeout_grace: float = _setting(5.0, _seconds, "how long it may take to end after that, before it is killed")
    status_ttl: float = _setting(1800.0, _seconds, "how long the status of a job is kept after its last change")
    history: bool = _setting(True, _flag, "keep an entry of each run")
    history_max: int = _setting(5000, _positive_int, "how many entries of each kind are kept")
    history_max_age: float = _setting(2_592_000.0, _seconds, "how long they are kept")
    history_args: bool = _setting(True, _flag, "keep the arguments in them")
    dead_max: int | None = _setting(None, _positive_int, "how many dead jobs are kept; the oldest ones go first")
    max_payload: int = _setting(2**20, _size, "the largest job that may be enqueued")
    preload: bool | None = _setting(None, _flag, "import the app before forking")
    tag: str | None = _setting(None, _tag, "name of this daemon in the process listing")
    log_format: str = _setting("auto", _choice("auto", "console", "json", "journal"), "how lines look")
    log_level: str = _setting("info", _choice("debug", "info", "warning", "error"), "the least important line shown")

    def server(self) -> Server:
        """Where the server is.

        Raises:
            SettingsError: the URL or its options cannot be used.
        """
        try:
            return Server.parse(self.redis_url, self.redis)
        except (URLError, ValueError) as error:
            raise SettingsError(f"redis_url: {error}")

    def locks(self, keys: Keys) -> Locks:
        """The rules for the locks of jobs."""
        return Locks(keys, self.unique_lock_ttl, self.orphan_threshold)


NAMES = tuple(setting.name for setting in fields(Settings))
_PARSERS: dict[str, Parser] = {setting.name: setting.metadata["parse"] for setting in fields(Settings)}
SECRETS = ("redis_url", "redis")
# In the environment under these names; tables have none.
ENVIRONMENT = {name: f"COGWORKERD_{name.upper()}" for name in NAMES if name not in ("redis", "periodic")}


@dataclass(frozen=True)
class Layer:
    """Raw values from one place.

    Attributes:
        origin: the place, as errors and `check` name it.
        values: raw value of each setting that this place gives.
    """

    origin: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Effective:
    """The settings in force and where each comes from."""

    settings: Settings
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def combine(*layers: Layer) -> Effective:
    """Lay values over each other, the last one wins, and check them all.

    Raises:
        SettingsError: one sentence for each value that cannot be used.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(NAMES, "default")
    problems: list[str] = []
    for layer in layers:
        for name, raw in layer.values.items():
            if name not in _PARSERS:
                problems.append(f"{layer.origin}: unknown setting {name!r}{did_you_mean(name, NAMES)}")
                continue
            try:
                values[name] = _PARSERS[name](raw)
            except BadEntry as error:
                problems.append(f"{layer.origin}: {error}")
                continue
            except ValueError as error:
                shown = "" if name in SECRETS else f" = {raw!r:.80}"
                problems.append(f"{layer.origin}: {name}{shown} cannot be used; allowed: {error}")
                continue
            origins[name] = layer.origin
    if problems:
        raise SettingsError(*problems)
    settings = Settings(**values)
    _check_server(settings, origins)
    return Effective(settings, origins)


def _check_server(settings: Settings, origins: Mapping[str, str]) -> None:
    try:
        check_options(settings.redis or {})
    except URLError as error:
        raise SettingsError(f"{origins['redis']}: redis: {error}")
    try:
        settings.server()
    except SettingsError as error:
        raise SettingsError(f"{origins['redis_url']}: {error}")


def did_you_mean(name: str, known: tuple[str, ...]) -> str:
    """A hint at the closest known name, or at all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def environment_layers(environ: Mapping[str, str] | None = None) -> list[Layer]:
    """What the environment says: REDIS_URL is the weakest, then COGWORKERD_*, then a file with the URL.

    Raises:
        SettingsError: a COGWORKERD_* variable has no setting, or the file cannot be read.
    """
    env = os.environ if environ is None else environ
    layers = []
    if env.get("REDIS_URL"):
        layers.append(Layer("REDIS_URL", {"redis_url": env["REDIS_URL"]}))
    for name, variable in ENVIRONMENT.items():
        if variable in env:
            layers.append(Layer(variable, {name: env[variable]}))
    if "COGWORKERD_REDIS_URL_FILE" in env:
        url = read_url_file(env["COGWORKERD_REDIS_URL_FILE"], "COGWORKERD_REDIS_URL_FILE")
        layers.append(Layer("COGWORKERD_REDIS_URL_FILE", {"redis_url": url}))
    return layers


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each COGWORKERD_* variable that names no setting."""
    env = os.environ if environ is None else environ
    known = {*ENVIRONMENT.values(), "COGWORKERD_REDIS_URL_FILE"}
    # A leading underscore behind the prefix is how the daemon talks to itself across an exec.
    odd = [name for name in env if re.match(r"COGWORKERD_[A-Z]", name) and name not in known]
    return [f"environment: unknown variable {name}{did_you_mean(name, tuple(sorted(known)))}" for name in sorted(odd)]


def read_url_file(path: str, origin: str) -> str:
    """The URL in a file (systemd credentials, Kubernetes secrets)."""
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError(f"{origin}: cannot read {path}: {reason}")


def toml_layer(directory: Path) -> Layer | None:
    """The values of cogworkerd.toml, or else of [tool.cogworkerd] in pyproject.toml, in this directory.

    Raises:
        SettingsError: the file cannot be read as TOML.
    """
    own, project = directory / "cogworkerd.toml", directory / "pyproject.toml"
    if own.is_file():
        document = _read_toml(own)
        return Layer(str(own), _table_of(document, own) if "tool" in document else document)
    if project.is_file():
        table = _table_of(_read_toml(project), project)
        return Layer(f"{project} [tool.cogworkerd]", table) if table else None
    return None


def _table_of(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """[tool.cogworkerd] of a document; empty where it has none."""
    table: Any = document
    for name in ("tool", "cogworkerd"):
        table = table.get(name, {})
        if not isinstance(table, Mapping):
            raise SettingsError(f"{path}: {name!r} must be a table: [tool.cogworkerd]")
    return dict(table)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML: {error}")


def password_warnings(layers: list[Layer]) -> list[str]:
    """A password in a file that is checked in, or on a command line that every local user can read."""
    warnings = []
    for layer in layers:
        url = layer.values.get("redis_url")
        table = layer.values.get("redis")
        inside = isinstance(table, Mapping) and any(name.endswith("password") for name in table)
        in_url = isinstance(url, str) and re.search(r"://[^/@]*:[^/@]+@|[?&]password=", url) is not None
        if not (inside or in_url):
            continue
        if layer.origin.endswith(".toml") or "[tool." in layer.origin:
            warnings.append(f"{layer.origin} holds a password; better: --redis-url-file, or COGWORKERD_REDIS_URL")
        elif layer.origin == "--redis-url":
            warnings.append(f"{layer.origin} holds a password, which every local user can read; use --redis-url-file")
    return warnings
