"""Modules whose functions and classes are sent by value, although they could be sent by
name.

A function of a module is sent by its name, and the other process imports the module. If
the other process is on a machine that lacks the module, the function must be sent by
value, as a function of ``__main__`` is. Such a module can be declared for all pickles
of the program, with `cloudpickle.register_pickle_by_value`, or for those of one
executor, which uses `send_by_value`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

SENT_MODULES: Final[ContextVar[frozenset[str]]] = ContextVar(
    "sent_modules", default=frozenset()
)
"""The names of the modules that are sent by value in the present context. The name of a
package stands for all modules in it.
"""
_INSTALLED: Final = ("site-packages", "dist-packages")
_LIBRARY: Final = __name__.partition(".")[0]


@contextmanager
def send_by_value(names: frozenset[str]) -> Iterator[None]:
    """Send the code of some modules by value while the context is open.

    Args:
        names: The names of the modules and packages.
    """
    token = SENT_MODULES.set(names)
    try:
        yield
    finally:
        SENT_MODULES.reset(token)


def is_sent_by_value(module_name: str) -> bool:
    """Return whether the functions and classes of a module are sent by value.

    The code of ``__main__`` always is, because each process has its own main program.
    """
    if module_name == "__main__":
        return True
    names: set[str] = {*SENT_MODULES.get()}
    cloudpickle = sys.modules.get("cloudpickle")
    if cloudpickle is not None:
        names |= cloudpickle.list_registry_pickle_by_value()
    return is_part_of(module_name, names)


def is_part_of(module_name: str, names: Collection[str]) -> bool:
    """Return whether a module is in *names*, or belongs to one of the packages in
    *names*.
    """
    return any(f"{module_name}.".startswith(f"{name}.") for name in names)


def is_local(module_name: str) -> bool:
    """Return whether a module belongs to the user's own Python files, and not to an
    installed package.

    Args:
        module_name: The name of the module.
    """
    package = module_name.partition(".")[0]
    files: list[str] = []
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_part_of(name, (package,)):
            files.append(os.path.abspath(file))
    is_ours = package == _LIBRARY
    return bool(files) and not is_ours and all(map(_is_users_file, files))


def _is_users_file(file: str) -> bool:
    standard_library = sysconfig.get_path("stdlib")
    folders = file.split(os.sep)
    return (
        file.endswith(".py")
        and not file.startswith(os.path.join(standard_library, ""))
        and not any(folder in folders for folder in _INSTALLED)
    )


# ------------------------------------------------ modules as values


def reduced_module(module: ModuleType) -> tuple[Any, ...]:
    """Return a reduction of *module* with all its variables, for a pickle."""
    variables = dict(vars(module))
    for name in ("__builtins__", "__loader__", "__spec__"):
        variables.pop(name, None)
    # The variables are set after the module was made, because they may refer to it.
    return (
        ModuleType,
        (module.__name__,),
        variables,
        None,
        None,
        module_filled,
    )


def module_filled(module: ModuleType, variables: dict[str, Any]) -> ModuleType:
    """Give *module*, which was sent by value and has just been made, its variables."""
    vars(module).update(variables)
    return module
