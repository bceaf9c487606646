"""Snapshots of closures: a call of a local task uses the values that the body's
variables have at the time of the call.

A closure reads a variable when the closure runs. A task runs some time after its call,
and the body may have rebound the variable by then, as the loop variable in ``for factor
in factors: scaled(x)``. A worker process uses the value that was pickled with the call.
On OS threads and inline, the task must use the same value.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any

from flowpregel._annotations import copy_annotations
from flowpregel._core.records import Node
from flowpregel.executors.processes.wire.references import cell_content, is_empty


class NodeSnapshots:
    """The nodes that run the calls of a task that is a closure. Each node contains a
    copy (snapshot) of the closure, with the values that the closure's variables have at
    the time of the call.

    Args:
        node: The node of the task, whose function is a closure.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._target = called_by(node)
        self._last: tuple[Node, tuple[tuple[CellType, Any], ...]] | None = None

    def take(self) -> Node:
        """Return the node for a call that is made now. If no variable was rebound since
        the previous call, it is the same node.
        """
        if self._last is not None:
            node, contents = self._last
            if all(cell_content(cell) is content for cell, content in contents):
                return node
        functions = list(_closures_in(self._target))
        cells = _cells_by_id(functions).values()
        contents = tuple((cell, cell_content(cell)) for cell in cells)
        (target,) = self._node.steps
        function = snapshot(functions)
        if target.func is None:
            target = replace(target, coroutine=function)
        else:
            target = replace(target, func=function, coroutine=None)
        node = replace(self._node, steps=(target,))
        self._last = node, contents
        return node


def _closures_in(target: Any) -> Iterator[FunctionType]:
    """Yield *target* and the closures that it closes over, directly or indirectly."""
    seen: dict[int, FunctionType] = {}
    pending = [target]
    while pending:
        function = pending.pop()
        if not isinstance(function, FunctionType) or not function.__closure__:
            continue
        if id(function) in seen:
            continue
        seen[id(function)] = function
        yield function
        pending += map(cell_content, function.__closure__)


def snapshot(functions: list[FunctionType]) -> FunctionType:
    """Return a copy of the first of *functions*. If its variables are rebound later,
    the copy does not change.

    A variable that one of the functions binds (``nonlocal``) is still shared with the
    body, since in this process a task may change the variable on purpose.

    Args:
        functions: A closure, and the closures that it refers to, which are copied too.
    """
    copied_cells = _copied_cells(functions)
    copies: dict[int, FunctionType] = {}
    for function in functions:
        cells = function.__closure__ or ()
        closure = tuple(copied_cells.get(id(cell), cell) for cell in cells)
        copies[id(function)] = _copy_of(function, closure)
    for cell in copied_cells.values():
        content = cell.cell_contents
        cell.cell_contents = copies.get(id(content), content)
    return copies[id(functions[0])]


def _copied_cells(functions: list[FunctionType]) -> dict[int, CellType]:
    """Return copies of the cells (the storage of closure variables) that none of
    *functions* binds, by the id of the original cell. A cell that is still empty is not
    copied, because the body may fill it.
    """
    cells = _cells_by_id(functions)
    for function in functions:
        for cell in _cells_bound_by(function):
            cells.pop(id(cell), None)
    return {
        cell_id: CellType(cell.cell_contents)
        for cell_id, cell in cells.items()
        if not is_empty(cell)
    }


def _cells_by_id(functions: list[FunctionType]) -> dict[int, CellType]:
    """Return the cells of *functions* by id, each once, since several functions may
    share a cell.
    """
    cells: dict[int, CellType] = {}
    for function in functions:
        for cell in function.__closure__ or ():
            cells[id(cell)] = cell
    return cells


def _copy_of(function: FunctionType, closure: tuple[CellType, ...]) -> FunctionType:
    """Return a copy of *function* that reads its variables from the cells in
    *closure*.
    """
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        closure,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy_annotations(function, copy)
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    copy.__doc__ = function.__doc__
    # The copy and the original share one ``__dict__``, because the function may store
    # state in its attributes.
    copy.__dict__ = function.__dict__
    return copy


def _cells_bound_by(function: FunctionType) -> Iterator[CellType]:
    """Yield the cells that *function*, or a function inside it, binds."""
    code = function.__code__
    bound = _names_bound_by(code)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name in bound:
            yield cell


@lru_cache(512)
def _names_bound_by(code: CodeType) -> frozenset[str]:
    """Return the variables of enclosing functions that *code*, or code nested in it,
    binds.
    """
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("STORE_DEREF", "DELETE_DEREF")
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_bound_by(constant)
    return frozenset(names.intersection(code.co_freevars))


def called_by(node: Node) -> Any:
    """Return the user's function that a call of *node* runs: its sync or its async
    form.
    """
    (callee,) = node.steps
    return callee.func or callee.coroutine
