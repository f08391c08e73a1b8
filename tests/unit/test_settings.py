"""Settings: which place wins, what each value may be, and errors that name value and place but never a password."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cogworkerd import App
from cogworkerd.cli import options
from cogworkerd.errors import SettingsError
from cogworkerd.settings import (
    DEFAULT_URL,
    ENVIRONMENT,
    NAMES,
    Effective,
    Layer,
    Settings,
    combine,
    did_you_mean,
    environment_layers,
    parse_queues,
    password_warnings,
    read_url_file,
    toml_layer,
    unknown_variables,
)

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COGWORKERD_") or name == "REDIS_URL"]:
        monkeypatch.delenv(name)


def effective(folder: Path, *flags: str, app: App | None = None, extra: Layer | None = None) -> Effective:
    """What a command finds that was started in this folder with these flags."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--app-dir")
    options.add_server(parser)
    options.add_daemon(parser)
    arguments = parser.parse_args([*flags, "--app-dir", str(folder)])
    return options.effective(arguments, app.layer if app else None, extra)


def problem(values: Mapping[str, Any], origin: str = "here") -> str:
    """The error that these values lead to."""
    with pytest.raises(SettingsError) as caught:
        combine(Layer(origin, values))
    return str(caught.value)


# ---- which place wins ----------------------------------------------------------------------------------

PLACES = ("default", "App(...)", "toml", "environment", "flag", "extra")


@pytest.mark.parametrize("highest", range(len(PLACES)), ids=PLACES)
def test_each_place_wins_over_those_before_it(highest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, flags, extra = None, (), None
    if highest >= 1:
        app = App(concurrency=11)
    if highest >= 2:
        (tmp_path / "cogworkerd.toml").write_text("concurrency = 12")
    if highest >= 3:
        monkeypatch.setenv("COGWORKERD_CONCURRENCY", "13")
    found = effective(tmp_path, *(("-c", "14") if highest >= 4 else flags), app=app)
    if highest >= 5:
        extra = Layer("--embedded", {"concurrency": 15})
        found = effective(tmp_path, "-c", "14", app=app, extra=extra)
    origins = (
        *("default", "App(...)", str(tmp_path / "cogworkerd.toml")),
        *("COGWORKERD_CONCURRENCY", "--concurrency", "--embedded"),
    )
    assert found.settings.concurrency == (None if highest == 0 else 10 + highest)
    assert found.origins["concurrency"] == origins[highest]
    assert found.origins["namespace"] == "default"


def test_the_url_of_the_server_and_who_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("redis://by-file-flag\n")
    (tmp_path / "env").write_text("  redis://by-env-file  \n\n")
    found = [effective(tmp_path)]
    app = App("redis://by-app")
    found.append(effective(tmp_path, app=app))
    (tmp_path / "pyproject.toml").write_text('[tool.cogworkerd]\nredis_url = "redis://by-toml"')
    found.append(effective(tmp_path, app=app))
    monkeypatch.setenv("REDIS_URL", "redis://by-redis-url")
    found.append(effective(tmp_path, app=app))
    monkeypatch.setenv("COGWORKERD_REDIS_URL", "redis://by-env")
    found.append(effective(tmp_path, app=app))
    monkeypatch.setenv("COGWORKERD_REDIS_URL_FILE", str(tmp_path / "env"))
    found.append(effective(tmp_path, app=app))
    found.append(effective(tmp_path, "--redis-url-file", str(tmp_path / "file"), app=app))
    file_and_flag = ("--redis-url-file", str(tmp_path / "file"), "--redis-url", "redis://by-flag")
    found.append(effective(tmp_path, *file_and_flag, app=app))
    assert [(each.settings.redis_url, each.origins["redis_url"]) for each in found] == [
        (DEFAULT_URL, "default"),
        ("redis://by-app", "App(...)"),
        ("redis://by-toml", f"{tmp_path / 'pyproject.toml'} [tool.cogworkerd]"),
        ("redis://by-redis-url", "REDIS_URL"),
        ("redis://by-env", "COGWORKERD_REDIS_URL"),
        ("redis://by-env-file", "COGWORKERD_REDIS_URL_FILE"),
        ("redis://by-file-flag", "--redis-url-file"),
        ("redis://by-flag", "--redis-url"),
    ]


def test_a_client_looks_at_its_app_and_the_environment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cogworkerd.toml").write_text('redis_url = "redis://by-toml"')
    assert App("redis://by-app").settings.redis_url == "redis://by-app"
    assert App().settings.redis_url == DEFAULT_URL
    monkeypatch.setenv("REDIS_URL", "redis://by-redis-url")
    assert App("redis://by-app").settings.redis_url == "redis://by-redis-url"
    monkeypatch.setenv("COGWORKERD_REDIS_URL", "redis://by-env")
    monkeypatch.setenv("COGWORKERD_NAMESPACE", "x")
    assert App("redis://by-app", namespace="y").settings == Settings(redis_url="redis://by-env", namespace="x")


def test_a_daemons_variables_are_none_of_a_clients_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGWORKERD_CONCURRENCY", "nonsense")
    assert App("redis://by-app").settings.redis_url == "redis://by-app"


def test_empty_variables(tmp_path: Path) -> None:
    assert environment_layers({"REDIS_URL": ""}) == []
    (layer,) = environment_layers({"COGWORKERD_REDIS_URL": ""})
    with pytest.raises(SettingsError, match="COGWORKERD_REDIS_URL: redis_url: the URL is empty"):
        combine(layer)


def test_every_setting_but_the_tables_has_a_variable() -> None:
    assert set(ENVIRONMENT) == set(NAMES) - {"redis", "periodic"}
    values = {
        "redis_url": "redis://h:1/2",
        "namespace": "x",
        "concurrency": "3",
        "queues": "mail,3 default",
        "strict_order": "yes",
        "fetch": "basic",
        "fetch_idle_max_interval": "0.5",
        "orphan_threshold": "10",
        "max_orphanings": "4",
        "shutdown_timeout": "1e1",
        "boot_timeout": "20",
        "max_jobs_per_child": "100",
        "unique_lock_ttl": "0.5",
        "periodic_catch_up": "false",
        "periodic_prune": "yes",
        "max_rss_per_child": "1G",
        "max_private_per_child": "512M",
        "kill_rss": "2G",
        "timeout": "90",
        "timeout_grace": "2.5",
        "status_ttl": "60",
        "history": "off",
        "history_max": "100",
        "history_max_age": "3600",
        "history_args": "no",
        "dead_max": "1000",
        "max_payload": "512K",
        "preload": "false",
        "tag": "shop-1",
        "log_format": "json",
        "log_level": "debug",
    }
    assert set(values) == set(ENVIRONMENT)
    found = combine(*environment_layers({ENVIRONMENT[name]: value for name, value in values.items()}))
    assert found.settings == Settings(
        redis_url="redis://h:1/2",
        namespace="x",
        concurrency=3,
        queues=(("mail", 3), ("default", 1)),
        strict_order=True,
        fetch="basic",
        fetch_idle_max_interval=0.5,
        orphan_threshold=10.0,
        max_orphanings=4,
        shutdown_timeout=10.0,
        boot_timeout=20.0,
        max_jobs_per_child=100,
        unique_lock_ttl=0.5,
        periodic_catch_up="none",
        periodic_prune=True,
        max_rss_per_child=2**30,
        max_private_per_child=2**29,
        kill_rss=2**31,
        timeout=90.0,
        timeout_grace=2.5,
        status_ttl=60.0,
        history=False,
        history_max=100,
        history_max_age=3600.0,
        history_args=False,
        dead_max=1000,
        max_payload=512 * 1024,
        preload=False,
        tag="shop-1",
        log_format="json",
        log_level="debug",
    )
    tables = dict.fromkeys(("redis", "periodic"), "default")
    assert found.origins == {**{name: ENVIRONMENT[name] for name in values}, **tables}


def test_the_defaults_of_the_readme() -> None:
    settings = combine().settings
    assert settings == Settings()
    assert (settings.orphan_threshold, settings.max_orphanings, settings.shutdown_timeout) == (300.0, 3, 25.0)
    assert (settings.fetch_idle_max_interval, settings.namespace, settings.max_payload) == (1.0, "", 2**20)
    assert (settings.concurrency, settings.queues, settings.preload, settings.tag) == (None, None, None, None)


# ---- bad values ----------------------------------------------------------------------------------------


NOT_ALLOWED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(
        ("concurrency", "max_orphanings", "max_jobs_per_child"),
        (0, -1, 1.5, True, "0", "-1", "1.5", "x", "", None, [1]),
    ),
    **dict.fromkeys(
        ("fetch_idle_max_interval", "orphan_threshold", "shutdown_timeout", "boot_timeout", "unique_lock_ttl"),
        (0, -1, True, math.nan, math.inf, "0", "-1", "x", "", "nan", "1e400", None, [1], 10**400),
    ),
    "strict_order": (2, "", "maybe", None, 1.0),
    "preload": (0, "nope", []),
    "periodic_catch_up": (True, "", "all", None, 0, "LATEST"),
    "periodic_prune": (2, "maybe", None),
    "max_payload": (0, -1, "0", "-1K", "1T", "K", "", 1.5, True, None, "1 K B"),
    "namespace": ("a b", "é", "x" * 65, 5, None, "a{b}"),
    "tag": ("", "a b", "x" * 41, 5, "é", "a\nb"),
    "log_format": ("JSON", "", 5, None, "xml"),
    "log_level": ("DEBUG", "trace", 10, []),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in NOT_ALLOWED.items() for value in values],
    ids=lambda value: ascii(value)[:20],
)
def test_r5_a_value_that_is_not_allowed_is_quoted_with_its_setting_and_its_place(name: str, value: object) -> None:
    text = problem({name: value}, "shop.toml")
    assert text.startswith(f"shop.toml: {name} = {value!r:.80} cannot be used; allowed: ")
    assert "\n" not in text.removesuffix("\n")


def test_a_size_beyond_all_measure_is_an_error_in_words() -> None:
    assert "max_payload" in problem({"max_payload": "9" * 400 + "G"})


def test_all_mistakes_are_told_at_once_each_in_a_line() -> None:
    first = Layer("shop.toml", {"concurrency": 0, "colour": "red"})
    second = Layer("COGWORKERD_TAG", {"tag": "a b"})
    with pytest.raises(SettingsError) as caught:
        combine(first, second)
    assert len(caught.value.problems) == 3
    assert str(caught.value).splitlines() == list(caught.value.problems)
    assert ["shop.toml" in line for line in caught.value.problems] == [True, True, False]


def test_a_bad_value_that_a_stronger_place_overrides_is_still_told() -> None:
    with pytest.raises(SettingsError, match=r"shop\.toml: concurrency = 0"):
        combine(Layer("shop.toml", {"concurrency": 0}), Layer("-c", {"concurrency": "3"}))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("concurency", "concurrency"),
        ("queue", "queues"),
        ("log_levl", "log_level"),
        ("shutdown_timout", "shutdown_timeout"),
    ],
)
def test_an_unknown_setting_is_an_error_with_the_nearest_name(name: str, hint: str) -> None:
    given: dict[str, Any] = {name: 1}
    assert problem(given) == f"here: unknown setting {name!r}: did you mean {hint!r}?"
    with pytest.raises(SettingsError, match=f"unknown setting '{name}': did you mean '{hint}'"):
        App(**given)


def test_without_a_near_name_all_are_shown() -> None:
    text = problem({"colour": "red"})
    assert all(name in text for name in NAMES)
    assert did_you_mean("zzz", ("a", "b")) == "; known: a, b"


def test_unknown_variables_are_named_with_a_hint() -> None:
    (text,) = unknown_variables({"COGWORKERD_CONCURENCY": "5", "COGWORKERD_QUEUES": "a", "PATH": "/bin"})
    assert text == "environment: unknown variable COGWORKERD_CONCURENCY: did you mean 'COGWORKERD_CONCURRENCY'?"
    assert unknown_variables({"COGWORKERD__OWN": "1", "COGWORKERD_REDIS_URL_FILE": "/x"}) == []


def test_unknown_variables_are_a_warning_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGWORKERD_CONCURENCY", "5")
    assert any("COGWORKERD_CONCURENCY" in warning for warning in effective(tmp_path).warnings)


# ---- values that are allowed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (2**40, 2**40),
        ("1", 1),
        ("512", 512),
        ("512K", 512 * 2**10),
        ("512k", 512 * 2**10),
        ("1M", 2**20),
        ("1.5M", 3 * 2**19),
        ("2 G", 2**31),
        (" 1MB ", 2**20),
        ("1MiB", 2**20),
        ("100B", 100),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert combine(Layer("here", {"max_payload": text})).settings.max_payload == size


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        *((word, True) for word in (True, "true", "TRUE", " yes ", "1", "on")),
        *((word, False) for word in (False, "false", "No", "0", "off")),
    ],
)
def test_flags(text: object, flag: bool) -> None:
    assert combine(Layer("here", {"strict_order": text})).settings.strict_order is flag


def test_numbers_may_be_texts_and_seconds_may_be_whole() -> None:
    found = combine(Layer("here", {"concurrency": " 4 ", "shutdown_timeout": 3, "orphan_threshold": "0.5"})).settings
    assert (found.concurrency, found.shutdown_timeout, found.orphan_threshold) == (4, 3.0, 0.5)


# ---- queues --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "queues"),
    [
        ("mail", (("mail", 1),)),
        ("mail,3 default", (("mail", 3), ("default", 1))),
        ("  mail,3\n\tdefault  ", (("mail", 3), ("default", 1))),
        (["mail,3", "default"], (("mail", 3), ("default", 1))),
        ([["mail", 3], "default"], (("mail", 3), ("default", 1))),
        ((("mail", "3"), ("low", 1)), (("mail", 3), ("low", 1))),
        (["z", "a", "m"], (("z", 1), ("a", 1), ("m", 1))),
        (["grün", "a:b", "x" * 200], (("grün", 1), ("a:b", 1), ("x" * 200, 1))),
    ],
)
def test_queues_with_their_weights_in_their_order(value: object, queues: tuple[tuple[str, int], ...]) -> None:
    assert parse_queues(value) == queues


@pytest.mark.parametrize(
    "value",
    [
        *("", "   ", "mail,0", "mail,-1", "mail,x", "mail,", ",3", "mail,3,4", "mail,1.5", "mail,²"),
        *([], None, 5, {"mail": 3}),
        *([["mail"]], [["mail", 3, 4]], [["mail", 0]], [["mail", True]], [[5, 1]], [None]),
        *([""], ["a b"], ["x" * 201], ["a\x00b"], ["a\u2028b"], ["a\u202eb"], ["a\ud800b"]),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_other_queues_are_refused_with_the_form_to_write(value: object) -> None:
    text = problem({"queues": value}, "COGWORKERD_QUEUES")
    assert text.startswith("COGWORKERD_QUEUES: queues = ")
    assert "mail,3 default" in text
    text.encode()


@pytest.mark.parametrize("value", ["mail,default", ["mail,default"]])
def test_a_list_with_commas_is_told_how_to_write_several_queues(value: object) -> None:
    assert "-q mail -q default" in problem({"queues": value})


def test_a_queue_stands_there_once() -> None:
    assert "'mail' stands there twice" in problem({"queues": "mail,3 default mail"})


def test_queues_by_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGWORKERD_QUEUES", "a b")
    assert effective(tmp_path).settings.queues == (("a", 1), ("b", 1))
    assert effective(tmp_path, "-q", "mail,3", "-q", "default").settings.queues == (("mail", 3), ("default", 1))
    with pytest.raises(SettingsError, match=r"--queues: queues = .*-q mail -q default"):
        effective(tmp_path, "-q", "mail,default")


# ---- TOML and files ------------------------------------------------------------------------------------


def test_a_folder_without_toml_says_nothing(tmp_path: Path) -> None:
    assert toml_layer(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "shop"')
    assert toml_layer(tmp_path) is None


def test_both_kinds_of_toml_and_the_own_file_wins(tmp_path: Path) -> None:
    project, own = tmp_path / "pyproject.toml", tmp_path / "cogworkerd.toml"
    project.write_text('[tool.cogworkerd]\nqueues = [["mail", 3], "default"]\n[tool.cogworkerd.redis]\nusername = "u"')
    layer = toml_layer(tmp_path)
    assert layer is not None
    assert layer.origin == f"{project} [tool.cogworkerd]"
    assert layer.values == {"queues": [["mail", 3], "default"], "redis": {"username": "u"}}
    own.write_text('tag = "shop"\nshutdown_timeout = 5')
    layer = toml_layer(tmp_path)
    assert layer is not None
    assert (layer.origin, layer.values) == (str(own), {"tag": "shop", "shutdown_timeout": 5})
    own.write_text('[tool.cogworkerd]\ntag = "shop"')
    layer = toml_layer(tmp_path)
    assert layer is not None
    assert layer.values == {"tag": "shop"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cogworkerd.toml", b"tag = "),
        ("cogworkerd.toml", b"tag = 'a'\ntag = 'b'"),
        ("cogworkerd.toml", b'tag = "\xff"'),
        ("pyproject.toml", b"[tool.cogworkerd\n"),
    ],
)
def test_toml_that_cannot_be_read_is_an_error_that_names_the_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError, match=re.escape(str(tmp_path / name)) + ".*TOML"):
        effective(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", "[tool]\ncogworkerd = 5"),
        ("pyproject.toml", "tool = 5"),
        ("cogworkerd.toml", "tool = 5"),
        ("cogworkerd.toml", "[tool]\ncogworkerd = [1]"),
        ("cogworkerd.toml", "redis = 5"),
    ],
)
def test_a_value_where_a_table_belongs_is_an_error_in_words(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match=re.escape(name)):
        effective(tmp_path)


def test_an_unknown_name_in_toml_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "cogworkerd.toml").write_text("concurency = 3")
    with pytest.raises(SettingsError) as caught:
        effective(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'cogworkerd.toml'}: unknown setting 'concurency'")


def test_a_file_with_the_url(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"  redis://:{SECRET}@h/3\n")
    assert read_url_file(str(tmp_path / "url"), "here") == f"redis://:{SECRET}@h/3"
    (tmp_path / "bad").write_bytes(b"redis://:\xff@h")
    for path, reason in (("missing", "No such file"), ("bad", "not UTF-8"), (".", "directory")):
        with pytest.raises(SettingsError) as caught:
            read_url_file(str(tmp_path / path), "--redis-url-file")
        assert str(caught.value).startswith(f"--redis-url-file: cannot read {tmp_path / path}: ")
        assert reason in str(caught.value)


def test_an_empty_file_with_the_url_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("\n")
    with pytest.raises(SettingsError, match="--redis-url-file: redis_url: the URL is empty"):
        effective(tmp_path, "--redis-url-file", str(tmp_path / "url"))


# ---- the server and its password -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ({"colour": "red"}, "colour"),
        ({"socket_timeout": "soon"}, "socket_timeout"),
        ({"socket_connect_timeout": 0}, "socket_connect_timeout"),
    ],
)
def test_a_mistake_in_the_servers_table_names_the_place_of_the_table(table: dict[str, Any], part: str) -> None:
    with pytest.raises(SettingsError) as caught:
        combine(Layer("REDIS_URL", {"redis_url": "redis://h"}), Layer("shop.toml", {"redis": table}))
    assert str(caught.value).startswith("shop.toml: redis")
    assert part in str(caught.value)


def test_the_servers_table_is_laid_over_its_url() -> None:
    table = {"username": "u", "password": SECRET, "socket_timeout": 2.5}
    server = combine(Layer("x", {"redis_url": "redis://h:7/3", "redis": table})).settings.server()
    arguments = server.pool().connection_kwargs
    assert (arguments["host"], arguments["port"], arguments["db"]) == ("h", 7, 3)
    assert (arguments["username"], arguments["password"], arguments["socket_timeout"]) == ("u", SECRET, 2.5)
    assert SECRET not in repr(server)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@h",
        f"redis://u:{SECRET}@h:6379/0",
        f"rediss://u:{SECRET}@h",
        f"redis+sentinel://:{SECRET}@h:1,i:2/m",
        f"unix://:{SECRET}@/run/s",
        f"redis://h/0?password={SECRET}",
    ],
)
def test_a_password_in_a_file_or_on_the_command_line_is_a_warning(url: str) -> None:
    places = ("/x/cogworkerd.toml", "/x/pyproject.toml [tool.cogworkerd]", "--redis-url")
    for place in places:
        (warning,) = password_warnings([Layer(place, {"redis_url": url})])
        assert warning.startswith(place)
        assert "--redis-url-file" in warning
        assert SECRET not in warning
    for place in ("COGWORKERD_REDIS_URL", "COGWORKERD_REDIS_URL_FILE", "REDIS_URL"):
        assert password_warnings([Layer(place, {"redis_url": url})]) == []


@pytest.mark.parametrize("name", ["password", "sentinel_password"])
def test_a_password_in_the_servers_table_is_a_warning(name: str) -> None:
    (warning,) = password_warnings([Layer("/x/cogworkerd.toml", {"redis": {name: SECRET}})])
    assert SECRET not in warning


@pytest.mark.parametrize("url", ["redis://h", "redis://user@h:6379", "unix:///run/a:b@c", "redis://[::1]:6379/0", 5])
def test_no_password_no_warning(url: object) -> None:
    assert password_warnings([Layer("--redis-url", {"redis_url": url, "redis": {"username": "u"}})]) == []


def test_a_file_with_the_url_on_the_command_line_is_no_warning(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"redis://:{SECRET}@h")
    assert effective(tmp_path, "--redis-url-file", str(tmp_path / "url")).warnings == ()
    assert len(effective(tmp_path, "--redis-url", f"redis://:{SECRET}@h").warnings) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"redis_url": ["redis", SECRET]},
        {"redis_url": None, "redis": f"password={SECRET}"},
        {"redis": [SECRET]},
        {"redis": {"pasword": SECRET}},
        {"redis": {"password": SECRET, "colour": 1}},
        {"redis_url": f"redis://:{SECRET}@h:port"},
        {"redis_url": f"redis://:{SECRET}@h/notadb"},
        {"redis_url": f"redis://:{SECRET}@h?foo=bar"},
        {"redis_url": f"redis://:{SECRET}"},
        {"redis_url": f"http://:{SECRET}@h"},
        {"redis_url": f":{SECRET}@h:6379"},
    ],
    ids=lambda values: ",".join(values),
)
def test_c19_no_error_tells_a_password(values: dict[str, Any]) -> None:
    assert SECRET not in problem(values)
