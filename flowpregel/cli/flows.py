"""Flows by their names: ``package.module:flow`` or ``path/to/file.py:flow``."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.pregel.pregel import Pregel

FLOW = "flow"
"""Under this name the metadata of a run keep which flow the command ran."""


def load_flow(name: str) -> Pregel:
    """Import the flow that *name* names.

    Raises:
        ConfigurationError: There is none; the message says what there is.
    """
    from flowpregel.pregel.pregel import Pregel  # noqa: PLC0415 - keeps --help fast

    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise ConfigurationError(
            f"{name!r} names no flow: write MODULE:FLOW, such as jobs.census:count, or FILE.py:FLOW"
        )
    module = _module(where)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Pregel):
        return found
    if found is not None and hasattr(found, "compile"):
        raise ConfigurationError(
            f"{name!r} is a {type(found).__name__} that is not compiled: name what .compile() "
            "returns"
        )
    there = [key for key, value in vars(module).items() if isinstance(value, Pregel)]
    what = "is not there" if found is None else f"is a {type(found).__name__}, not a flow"
    raise ConfigurationError(
        f"{name!r} {what}; the flows of {where} are: {', '.join(there) or '(none)'}"
    )


def _module(where: str) -> ModuleType:
    name, folder = where, os.getcwd()
    if where.endswith(".py") or os.sep in where:
        path = os.path.realpath(where)
        if not os.path.isfile(path):
            raise ConfigurationError(f"there is no file {where}")
        folder, file = os.path.split(path)
        name = file.removesuffix(".py")
    if folder not in sys.path:
        sys.path.insert(0, folder)  # worker processes get the same path
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        why = "there is no such module" if missing else f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{where} cannot be imported: {why}") from error
