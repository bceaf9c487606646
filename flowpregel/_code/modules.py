"""The modules that a digest of code reads: their files and variables.

A module is *near* if it is of the package of the root, or in its folder and not
installed. The definitions of near modules are read; the others count by name.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Set
from typing import Any, NamedTuple

from flowpregel._code import values
from flowpregel._code.source import source_file


class Module(NamedTuple):
    """A module, as a digest reads it."""

    file: str
    """The path of the file, or the name of a notebook cell; empty if there is none."""
    variables: dict[str, Any]
    """The variables of the module."""
    owner: Any
    """The module itself, or a function of it, from which the variables can be read
    again; None if neither is there.
    """


class Modules:
    """The modules that a digest has come to.

    Args:
        home: The function or class whose module decides which modules are near.
    """

    def __init__(self, home: Any) -> None:
        self._modules: dict[str, Module] = {}
        self.is_near = functools.cache(self._is_near)
        """A function that returns whether a module, by its name, is near."""
        self.rebound = functools.cache(self._rebound)
        """A function that returns the names that functions of a module rebind."""
        self.note_definition(home)
        name = values.module_of(home)
        variables = self.module(name).variables
        packages = {
            values.top_package(name),
            values.top_package(variables.get("__package__") or ""),
        }
        self._packages = packages - {"", values.LIBRARY} - sys.stdlib_module_names
        # A notebook has no file; it imports from the working folder.
        file = os.path.abspath(variables.get("__file__") or "notebook")
        self._folder = os.path.join(os.path.dirname(file), "")

    def note_definition(self, value: Any) -> None:
        """Note the module of a function, which may have come from another process with
        variables of its own.
        """
        if not isinstance(value, types.FunctionType):
            return
        name = values.module_of(value)
        if name not in self._modules:
            module = sys.modules.get(name)
            is_its_module = getattr(module, "__dict__", None) is value.__globals__
            owner = module if is_its_module else value
            file = value.__code__.co_filename
            self._modules[name] = Module(file, value.__globals__, owner)

    def module(self, name: str) -> Module:
        """Return the module with this name; one without variables if there is none."""
        if name not in self._modules:
            module = sys.modules.get(name)
            variables: dict[str, Any] = {} if module is None else vars(module)
            file = variables.get("__file__") or ""
            self._modules[name] = Module(file, variables, module)
        return self._modules[name]

    def _rebound(self, prefix: str) -> Set[str]:
        """Return the names that functions of a module rebind.

        Args:
            prefix: ``module:``. What follows the colon names a closure, whose names are
                not the module's.
        """
        name, _, inner = prefix.partition(":")
        if inner:
            return frozenset()
        module = self.module(name)
        return source_file(module.file, module.variables).rebound

    def _is_near(self, name: str) -> bool:
        package = values.top_package(name)
        if package in self._packages:
            return True
        if package in sys.stdlib_module_names or package == values.LIBRARY:
            return False
        file = os.path.abspath(self.module(name).variables.get("__file__") or os.sep)
        return file.startswith(self._folder) and not values.IN_ENVIRONMENT.search(file)
