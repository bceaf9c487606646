"""Finds the compiled graphs that a function calls, by what its code names."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from flowpregel._core.callee import unwrapped


def is_graph(target: Any) -> bool:
    """Return whether *target* is a compiled graph, which runs nested."""
    return hasattr(type(target), "nested_run")


def graphs_named_by(target: Any) -> Iterator[Any]:
    """Yield the compiled graphs that the code of *target* names, in this order.

    It names what it closes over, what its module has, and what the modules have that it names.

    Args:
        target: A function, perhaps wrapped; anything else names none.
    """
    function = inspect.unwrap(unwrapped(target))
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        known = dict(function.__globals__)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # a name that has no value yet
                known[name] = cell.cell_contents
        yield from _graphs_in(code, known)


def _graphs_in(code: CodeType, known: Mapping[str, Any]) -> Iterator[Any]:
    value: Any = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            value = known.get(name)
        elif isinstance(value, ModuleType) and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            value = vars(value).get(name)
        else:
            value = None
        if is_graph(value):
            yield value
        elif isinstance(name, CodeType):
            yield from _graphs_in(name, known)
