"""The modules that a digest of code reads: their files and variables.

The *root* is the function whose digest is computed. A module is *near* if it belongs to
the root's package, or if it is in the folder of the root's file and not installed. The
definitions of near modules are read. Definitions of other modules are represented by
their names.
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
    """The parts of a module from which a digest is computed."""

    file: str
    """The path of the file, the name of a notebook cell, or an empty string."""
    variables: dict[str, Any]
    """The variables of the module."""
    owner: Any
    """The module, or a function in the module, from which the variables can be read
    again, or None if neither exists.
    """


class Modules:
    """The modules that a digest has reached.

    Args:
        home: The function or class to whose module others are compared to decide
            whether they are near.
    """

    def __init__(self, home: Any) -> None:
        self._modules: dict[str, Module] = {}
        self.is_near = functools.cache(self._is_near)
        """A function that takes a module's name and returns whether it is near."""
        self.rebound = functools.cache(self._rebound)
        """A function that returns the names that the functions of a module rebind."""
        self.note_definition(home)
        name = values.module_of(home)
        variables = self.module(name).variables
        packages = {
            values.top_package(name),
            values.top_package(variables.get("__package__") or ""),
        }
        self._packages = packages - {"", values.LIBRARY} - sys.stdlib_module_names
        # A notebook has no file, but imports modules from the working directory. So the
        # path of some file in that directory is used, which need not exist.
        file = os.path.abspath(variables.get("__file__") or "notebook")
        self._folder = os.path.join(os.path.dirname(file), "")

    def note_definition(self, value: Any) -> None:
        """Record a way to read the variables of the module of *value* again, if *value*
        is a function.

        They are read from the module, or through *value* if its globals are not the
        variables of an imported module, as after unpickling by value.
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
        """Return the module with this name, or an empty one if it is not imported."""
        if name not in self._modules:
            module = sys.modules.get(name)
            variables: dict[str, Any] = {} if module is None else vars(module)
            file = variables.get("__file__") or ""
            self._modules[name] = Module(file, variables, module)
        return self._modules[name]

    def _rebound(self, prefix: str) -> Set[str]:
        """Return the global names of a module that its functions rebind.

        Args:
            prefix: The name of the module and a colon. If the name of a closure follows
                the colon, the result is empty, because the variables of closures do not
                belong to the module.
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
