"""The names that class bodies bind, and the attributes that were set later.

The digest of an importable class is computed from its source. An attribute that was set
after the class body had run, as in ``A.k = 5``, is found by comparing the class with
its source.
"""

from __future__ import annotations

import abc
import ast
import dis
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from flowpregel._code.classes import is_content
from flowpregel._code.tree import FUNCTIONS

COMPUTED = object()
"""A placeholder for the value of an attribute that cannot be read from the source."""
DEFINED = object()
"""A placeholder for the value of a name that is bound by a ``def`` without
decorators.
"""
_FRAME = {"RESUME", "RETURN_VALUE"}
"""The bytecode instructions at the beginning and the end of any compiled expression."""
_CONSTANT = {"LOAD_CONST", "RETURN_CONST", "LOAD_SMALL_INT"}
"""The bytecode instructions that load or return a constant. If a compiled expression
consists of these and those of `_FRAME` only, the compiler has folded it to a constant.
Python 3.12 and 3.13 load and return a constant with a single instruction. Python 3.14
has an instruction of its own for ints from 0 to 255.
"""
_DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


def bound_by(node: ast.AST) -> dict[str, Any]:
    """Return the names that the body of a class binds, with their values.

    The value of a name may be `COMPUTED` or `DEFINED`.
    """
    bound: dict[str, Any] = {}
    if not isinstance(node, ast.ClassDef):
        return bound
    for statement in node.body:
        value = _attribute_value(statement)
        for name in _names_bound(statement):
            attribute = _mangled(name, node.name)
            is_bound_again = attribute in bound
            bound[attribute] = value
            if is_bound_again:
                bound[attribute] = COMPUTED
    return bound


def _attribute_value(statement: ast.stmt) -> Any:
    """Return the value that a statement of a class body gives to the names that it
    binds.
    """
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return constant_of(statement.value)
    if isinstance(statement, FUNCTIONS) and not statement.decorator_list:
        return DEFINED
    return COMPUTED


def _mangled(name: str, class_name: str) -> str:
    """Return the name that a class body gives an attribute: in the class ``A``, ``__k``
    becomes ``_A__k``.
    """
    if not name.startswith("__"):
        return name
    if name.endswith("__"):
        return name
    return f"_{class_name.lstrip('_')}{name}"


def _names_bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, except names bound inside functions."""
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
        return
    for node in ast.walk(statement):
        yield from _name_bound(node)


def _name_bound(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node binds, if it binds one."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.alias):
        name = node.asname or node.name
        yield name.partition(".")[0]
    elif isinstance(node, _DEFINITIONS):
        yield node.name


def constant_of(expression: ast.expr | None) -> Any:
    """Return the value of a constant expression, or `COMPUTED` for any other
    expression.
    """
    if expression is None:
        return COMPUTED
    with suppress(
        ValueError,
        TypeError,
        SyntaxError,
        MemoryError,
        RecursionError,
    ):
        return ast.literal_eval(expression)
    with suppress(
        ValueError,
        SyntaxError,
        RecursionError,
    ):
        # `literal_eval` rejects an expression such as `60 * 60`, so the compiler is
        # used, which folds it to a constant.
        tree = ast.Expression(expression)
        code = compile(tree, "<constant>", "eval")
        steps = [
            step for step in dis.get_instructions(code) if step.opname not in _FRAME
        ]
        if len(steps) == 1 and steps[0].opname in _CONSTANT:
            return steps[0].argval
    return COMPUTED


def attributes_set(
    class_: type,
    bound: Mapping[str, Any],
) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that were set after the body of a class had run.

    Special names such as ``__doc__`` are skipped, and so are attributes whose value the
    body computes, because the source does not show which value to expect. A class with
    a custom metaclass yields nothing: the metaclass derives further attributes from the
    body.

    Args:
        class_: An importable class.
        bound: The names that the class body binds, as `bound_by` returns them.
    """
    if type(class_) not in (type, abc.ABCMeta):
        return
    variables = vars(class_)
    for name in sorted(variables):
        value = variables[name]
        if _is_derived(class_, name, bound):
            continue
        if not is_content(class_, name, value):
            continue
        binding = bound.get(name)
        if name not in bound or not _is_bound_value(class_, name, value, binding):
            yield name, value


def _is_derived(
    class_: type,
    name: str,
    bound: Mapping[str, Any],
) -> bool:
    """Return whether an attribute is derived from other parts of the class."""
    if name.startswith("__") and name.endswith("__"):
        return True
    if not issubclass(class_, tuple):
        return False
    if not hasattr(class_, "_fields"):
        return False
    return name.startswith("_") or name in bound


def _is_bound_value(
    class_: type,
    name: str,
    value: Any,
    binding: Any,
) -> bool:
    """Return False if *value* cannot be the value that the class body has bound to the
    attribute.
    """
    if binding is COMPUTED:
        return True
    if binding is DEFINED:
        code = getattr(value, "__code__", None)
        if code is None:
            return False
        return bool(code.co_qualname == f"{class_.__qualname__}.{name}")
    if type(value) is not type(binding):
        return False
    if isinstance(binding, set):
        return bool(value == binding)
    return repr(value) == repr(binding)
