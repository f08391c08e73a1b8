"""Importing the application that the command line names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from cogworkerd.app import App
from cogworkerd.errors import AppImportError
from cogworkerd.text import error_class, error_message, printable

_PACKAGE = str(Path(__file__).parent)


def loader(target: str, directory: str | None) -> Callable[[], App]:
    """A function that imports the app.

    Args:
        target: `module:attribute`; a callable without arguments is called as a factory.
        directory: first on the import path; default the working directory.

    Raises:
        AppImportError: (now) the target has not both parts; (when called) the app cannot be had.
    """
    module, colon, attribute = target.partition(":")
    if not (module and colon and attribute):
        raise AppImportError(f"{target!r} does not name an app: write MODULE:ATTRIBUTE, such as shop.jobs:app")
    folder = os.path.abspath(directory or os.getcwd())
    return lambda: load(module, attribute, folder)


def load(module: str, attribute: str, folder: str) -> App:
    """Import `module`, take `attribute` from it, then import the modules that the app names.

    Raises:
        AppImportError: with the reason and, for an error in the app's code, its file and line.
    """
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = _import(module)
    try:
        for name in attribute.split("."):
            found = getattr(found, name)
    except AttributeError:
        raise AppImportError(f"module {module!r} has no attribute {attribute!r}")
    app = _made(found, f"{module}:{attribute}")
    for name in app.imports:
        _import(name)
    return app


def _made(found: object, target: str) -> App:
    if callable(found) and not isinstance(found, App):
        try:
            found = found()
        except BaseException as error:
            raise AppImportError(f"calling {target} failed: {_describe(error)}")
    if not isinstance(found, App):
        raise AppImportError(f"{target} is a {type(found).__name__}, not an App (or a function that returns one)")
    return found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppImportError(f"there is no module {error.name!r} on the path (first on it: {sys.path[0]})")
        raise AppImportError(f"importing {name} failed: {_describe(error)}")
    except BaseException as error:
        # Also SystemExit and KeyboardInterrupt: a module that ends the program is a broken one.
        raise AppImportError(f"importing {name} failed: {_describe(error)}")


def _describe(error: BaseException) -> str:
    """The error with the lines of the user's code that it came through."""
    headline = f"{error_class(error)}: {printable(error_message(error), 500)}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{headline}\n  {error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", _PACKAGE)) and "importlib" not in frame.filename
    ]
    places = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames[-5:])
    return headline + places
