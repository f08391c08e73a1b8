"""Options that several commands share, and the settings that follow from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from cogworkerd import embedded
from cogworkerd.jobsets import Store
from cogworkerd.settings import (
    Effective,
    Layer,
    combine,
    environment_layers,
    password_warnings,
    read_url_file,
    toml_layer,
    unknown_variables,
)
from cogworkerd.store.keys import Keys

# Settings that are flags of a daemon: name, letter or "", what its value is called ("" for an on/off flag).
_DAEMON_FLAGS = (
    ("concurrency", "-c", "N"),
    ("fetch", "", "reliable|basic"),
    ("fetch_idle_max_interval", "", "SECONDS"),
    ("orphan_threshold", "", "SECONDS"),
    ("max_orphanings", "", "N"),
    ("shutdown_timeout", "", "SECONDS"),
    ("boot_timeout", "", "SECONDS"),
    ("unique_lock_ttl", "", "SECONDS"),
    ("periodic_catch_up", "", "latest|none|first"),
    ("max_jobs_per_child", "", "N"),
    ("max_rss_per_child", "", "SIZE"),
    ("max_private_per_child", "", "SIZE"),
    ("kill_rss", "", "SIZE"),
    ("timeout", "", "SECONDS"),
    ("timeout_grace", "", "SECONDS"),
    ("status_ttl", "", "SECONDS"),
    ("history_max", "", "N"),
    ("history_max_age", "", "SECONDS"),
    ("dead_max", "", "N"),
    ("max_payload", "", "SIZE"),
    ("tag", "", "NAME"),
    ("log_format", "", "auto|console|json|journal"),
    ("log_level", "", "debug|info|warning|error"),
)
_SWITCHES = ("strict_order", "preload", "periodic_prune", "history", "history_args")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Where the server is."""
    group = parser.add_argument_group("server")
    group.add_argument("--redis-url", metavar="URL", help="redis://, rediss://, unix://, redis+sentinel://")
    group.add_argument("--redis-url-file", metavar="FILE", help="a file that holds the URL (for one with a password)")
    group.add_argument("--namespace", metavar="PREFIX", help="prefix of every key")


def add_embedded(parser: argparse.ArgumentParser, starts: bool) -> None:
    """`--embedded`: start a private server, or use the one that a daemon runs in a folder."""
    text = "run a private Valkey; data is kept in DIR" if starts else "use the private server that runs in DIR"
    group = parser.add_argument_group("private server")
    optional: dict[str, Any] = {"nargs": "?", "const": ""} if starts else {}
    group.add_argument("--embedded", metavar="DIR", help=text, **optional)


def add_app(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", metavar="MODULE:APP", help="where the App is, such as shop.jobs:app")
    parser.add_argument("--app-dir", metavar="DIR", help="first on the import path (default: the working directory)")


def add_daemon(parser: argparse.ArgumentParser) -> None:
    """Every setting of a daemon."""
    group = parser.add_argument_group("settings")
    group.add_argument(
        "-q",
        "--queues",
        metavar="NAME[,WEIGHT]",
        action="append",
        help="a queue to read, with its weight; once for each queue",
    )
    for name, letter, value in _DAEMON_FLAGS:
        flags = [letter] if letter else []
        group.add_argument(*flags, _flag(name), dest=name, metavar=value, help=_help(name))
    for name in _SWITCHES:
        group.add_argument(_flag(name), dest=name, action=argparse.BooleanOptionalAction, help=_help(name))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _help(name: str) -> str:
    from dataclasses import fields

    from cogworkerd.settings import Settings

    setting = next(setting for setting in fields(Settings) if setting.name == name)
    default = "" if setting.default is None else f" (default: {setting.default})"
    return f"{setting.metadata['help']}{default}"


def flag_layers(arguments: argparse.Namespace) -> list[Layer]:
    """What the flags say, one layer each, so that errors name the flag."""
    layers = []
    given: Mapping[str, Any] = vars(arguments)
    if given.get("redis_url_file"):
        url = read_url_file(given["redis_url_file"], "--redis-url-file")
        layers.append(Layer("--redis-url-file", {"redis_url": url}))
    names = ("redis_url", "namespace", "queues", *(name for name, _, _ in _DAEMON_FLAGS), *_SWITCHES)
    for name in names:
        if given.get(name) is not None:
            layers.append(Layer(_flag(name), {name: given[name]}))
    return layers


def effective(arguments: argparse.Namespace, app_layer: Layer | None = None, extra: Layer | None = None) -> Effective:
    """The settings of a command, from all places.

    Raises:
        SettingsError: something is unknown or not allowed.
    """
    folder = Path(getattr(arguments, "app_dir", None) or os.getcwd())
    toml = toml_layer(folder)
    layers = [layer for layer in (app_layer, toml) if layer is not None]
    layers += environment_layers()
    layers += flag_layers(arguments)
    if extra is not None:
        layers.append(extra)
    found = combine(*layers)
    return Effective(found.settings, found.origins, (*unknown_variables(), *password_warnings(layers)))


def embedded_layer(arguments: argparse.Namespace) -> Layer | None:
    """For clients of a private server: the URL of the one in the folder that was named."""
    if not getattr(arguments, "embedded", None):
        return None
    return Layer("--embedded", {"redis_url": embedded.url_of(arguments.embedded)})


def connect(found: Effective) -> tuple[redis.Redis, Keys]:
    """A client for the settings' server, which was seen to answer.

    Raises:
        redis.exceptions.RedisError: it does not answer within 5 s, or refuses.
    """
    client = found.settings.server().client()
    client.ping()
    return client, Keys(found.settings.namespace)


def store(found: Effective) -> Store:
    """The settings' server, which was seen to answer, with the names of its keys and the rules for locks.

    Raises:
        redis.exceptions.RedisError: as `connect`.
    """
    client, keys = connect(found)
    return Store(client, keys, found.settings.locks(keys))
