"""The import hook under which flowpregel answers ``import langgraph``.

::

    import langgraph.graph ----> LangGraphImporter --in MODULES--> names of flowpregel
                                        |
                                        +-------in SHARED, KEPT--> LangGraph's package
                                        |
                                        +-------otherwise--------> ImportError

The hook is the first finder in `sys.meta_path`. For a name in `MODULES` it makes a
module that contains the same objects as flowpregel's modules. The savers and
serializers of LangGraph (`SHARED` and `KEPT`) are found by Python as usual, and get
flowpregel's objects when they import the other modules. All other modules of LangGraph
are refused: they would be a second engine, whose graphs, commands and errors flowpregel
does not recognize.

Every module that the hook makes is a package. So if a program imports a name that the
module lacks, Python asks the hook for a submodule of this name, and the hook can raise
an error with advice.

Worker processes install the hook before they read their first task, because a task's
code may refer to modules that import LangGraph. The environment variable
``FLOWPREGEL_PRELOAD`` makes them do so.

The config of a node gets two functions that LangGraph's engine puts there, with which
packages read and write the state of the graph.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from flowpregel.errors import ConfigurationError
from flowpregel.executors import recreate_fields
from flowpregel.plugins.langgraph.modules import (
    ADVICE,
    KEPT,
    MODULES,
    RECREATED,
    SHARED,
)
from flowpregel.plugins.langgraph.names.constants import (
    CONFIG_KEY_READ,
    CONFIG_KEY_SEND,
)
from flowpregel.plugins.langgraph.names.state import read_in_node, send_from_node
from flowpregel.runtime import set_in_configs

_PACKAGE: Final = "langgraph"
_PRELOAD: Final = "FLOWPREGEL_PRELOAD"
_INSTALL: Final = f"{__name__}:install"
_CONFIG_ENTRIES: Final = {
    CONFIG_KEY_READ: read_in_node,
    CONFIG_KEY_SEND: send_from_node,
}
_SHOWN: Final = 3
"""The maximum number of imported modules that an error lists."""


def install() -> None:
    """Let flowpregel answer all imports of LangGraph, in this process and in worker
    processes that start later.

    Programs and packages that import `langgraph` then use flowpregel's engine without a
    change. LangGraph's checkpointers and serializers, such as
    ``langgraph.checkpoint.sqlite``, stay LangGraph's, and flowpregel uses these savers.
    LangGraph itself need not be installed. A second call does nothing.

    Raises:
        ConfigurationError: Modules of LangGraph are imported already.
        ImportError: Not raised here, but later by an import of a name that flowpregel
            does not have.

    Example:
        >>> from flowpregel.plugins.langgraph import install
        >>> install()  # doctest: +SKIP
        >>> from langgraph.types import Command  # doctest: +SKIP
        >>> Command is flowpregel.Command  # doctest: +SKIP
        True
    """
    if _installed_importers():
        return
    early = [name for name in _modules_in_use() if not _is_empty(sys.modules[name])]
    if early:
        rest = len(early) - _SHOWN
        more = f" and {rest} more" if rest > 0 else ""
        raise ConfigurationError(
            f"{', '.join(early[:_SHOWN])}{more} of LangGraph are imported already: "
            "call install() before the first import of langgraph and of packages that "
            "use it, or start the program with python -m flowpregel.langgraph PROGRAM"
        )
    _forget_modules()
    sys.meta_path.insert(0, LangGraphImporter())
    for key, function in _CONFIG_ENTRIES.items():
        set_in_configs(key, function)
    for class_name, fields in RECREATED.items():
        recreate_fields(class_name, fields)
    _set_preloads([*_preloads(), _INSTALL])


def uninstall() -> None:
    """Remove the hook, and all modules of LangGraph that were imported under it.

    Later imports of `langgraph` are LangGraph's. Objects that are in use stay
    flowpregel's, and so do packages that imported them.

    Example:
        >>> from flowpregel.plugins.langgraph import uninstall
        >>> uninstall()
    """
    importers = _installed_importers()
    for importer in importers:
        sys.meta_path.remove(importer)
    if importers:
        _forget_modules()
        for key in _CONFIG_ENTRIES:
            set_in_configs(key, None)
        for class_name in RECREATED:
            recreate_fields(class_name, ())
        _set_preloads([name for name in _preloads() if name != _INSTALL])


class LangGraphImporter(MetaPathFinder, Loader):
    """The finder and loader of the modules with LangGraph's names and flowpregel's
    objects.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of a module in `MODULES`. Return None for a module that is
        not LangGraph's, or stays LangGraph's.

        Raises:
            ImportError: flowpregel has neither a module nor a name of this name.
        """
        if fullname.partition(".")[0] != _PACKAGE:
            return None
        is_kept = _is_kept(fullname)
        if fullname not in MODULES and not is_kept:
            raise ImportError(_message_for(fullname), name=fullname.rpartition(".")[0])
        installed = self._installed_spec(fullname, path)
        if is_kept and installed is not None:
            return installed
        if fullname not in MODULES:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: flowpregel leaves it to LangGraph's "
                "package, which is not installed",
                name=fullname,
            )
        spec = ModuleSpec(fullname, self, is_package=True)
        if installed is not None:
            # Python searches the folders of LangGraph's installed package for the
            # submodules that flowpregel does not replace.
            spec.submodule_search_locations = [
                *(installed.submodule_search_locations or ())
            ]
        return spec

    def _installed_spec(
        self, fullname: str, path: Sequence[str] | None
    ) -> ModuleSpec | None:
        """Return the spec of LangGraph's own module, or None if it is not installed."""
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path)
            if spec is not None:
                return spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Set the objects that `MODULES` lists for *module* as its attributes."""
        name = module.__name__
        module.__doc__ = f"``{name}``, answered by flowpregel."
        for home, names in MODULES[name].items():
            source = import_module(home)
            for their_name, our_name in name_pairs(names, source):
                setattr(module, their_name, getattr(source, our_name))


def name_pairs(names: str, source: Any) -> Iterator[tuple[str, str]]:
    """Yield LangGraph's and flowpregel's name of each object in an entry of
    `MODULES`.
    """
    for name in names.split():
        if name == "*":
            yield from zip(source.__all__, source.__all__, strict=True)
        else:
            their_name, _, our_name = name.partition("=")
            yield their_name, our_name or their_name


def _is_kept(fullname: str) -> bool:
    """Return whether a module stays LangGraph's if it is installed."""
    if any(_is_inside(fullname, name) for name in KEPT):
        return True
    if fullname in MODULES:
        return False
    owner = fullname
    while owner not in MODULES:
        owner = owner.rpartition(".")[0]
    return owner in SHARED


def _is_inside(fullname: str, package: str) -> bool:
    return f"{fullname}.".startswith(f"{package}.")


def _message_for(fullname: str) -> str:
    """Return the message about a name that flowpregel does not have."""
    advice = "remove the import, or run this part of the program on LangGraph"
    for module, text in ADVICE.items():
        if _is_inside(fullname, module):
            advice = text
    return (
        f"flowpregel has no {fullname!r}, and answers all imports of langgraph in this "
        f"program: {advice} (see the how-to Move from LangGraph)"
    )


def _modules_in_use() -> list[str]:
    """Return the names of LangGraph's modules that are imported, sorted."""
    return sorted(name for name in sys.modules if _is_inside(name, _PACKAGE))


def _is_empty(module: ModuleType) -> bool:
    """Return whether *module* is one of the packages without a file that the
    distributions of LangGraph share.
    """
    return getattr(module, "__file__", None) is None


def _forget_modules() -> None:
    for name in _modules_in_use():
        del sys.modules[name]


def _installed_importers() -> list[LangGraphImporter]:
    return [finder for finder in sys.meta_path if isinstance(finder, LangGraphImporter)]


def _preloads() -> list[str]:
    return [name for name in os.environ.get(_PRELOAD, "").split(",") if name]


def _set_preloads(names: Sequence[str]) -> None:
    if names:
        os.environ[_PRELOAD] = ",".join(dict.fromkeys(names))
    else:
        os.environ.pop(_PRELOAD, None)
