"""The meaning of a syntax tree: a string that is the same for all definitions that do
the same in the same way.

The string does not contain comments, docstrings, layout, annotations of functions,
`pass` or names of locals. It is the same in every version of Python: empty fields of
syntax nodes are not written, so that a field that a later version adds does not change
it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
IsOurs = Callable[[str], bool]
"""A function that returns whether a name refers to an object of this library, whose
decorators do not change what a function computes.
"""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_UNWRITTEN = frozenset(
    {"annotation", "ctx", "kind", "returns", "simple", "type_comment", "type_params"}
)


def written(node: Any, is_ours: IsOurs) -> tuple[str, list[tuple[str, ...]]]:
    """Return the meaning (the text for a digest) of a function, lambda or class,
    without its own name.

    Returns:
        The meaning, and the global names in the code. Each name is followed by the
        attributes that the code reads from it: ``("helpers", "clean")``.
    """
    writer = _TreeWriter(is_ours)
    writer.visit_Lambda(node, writer.outside)
    return writer.finish(), sorted(writer.outside.uses)


def constant_text(value: Any) -> str:
    """Return a string that represents a number, a str or bytes, and is the same in
    every version of Python.
    """
    # `repr` is not used, because the characters that it escapes depend on the Python
    # version, and because it rejects very long ints.
    return hex(value) if type(value) is int else ascii(value)


@dataclass(slots=True, eq=False)
class _NameScope:
    """The names in a function, class or comprehension whose meaning is being
    written.
    """

    kind: type[ast.AST] | None
    outer: _NameScope | None
    """The nearest enclosing scope that is not a class, because methods do not see the
    names in the class body.
    """
    bound: set[str] = field(default_factory=set)
    """The names that the function, class or comprehension binds."""
    keywords: set[str] = field(default_factory=set)
    """The parameters that a call may pass by name. Their names are part of the meaning.
    """
    declared: dict[str, type[ast.AST]] = field(default_factory=dict)
    """The names in ``global`` and ``nonlocal`` statements, with the statement's type.
    """
    uses: defaultdict[tuple[str, ...], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The positions in the written tokens at which a name is used, by the name and the
    attributes that the code reads from its value.
    """

    def inside(self, kind: type[ast.AST]) -> _NameScope:
        """Return a new scope for a definition that is inside this scope."""
        return _NameScope(kind, self.outer if self.kind is ast.ClassDef else self)


def _type_scope(node: Any, scope: _NameScope) -> _NameScope:
    """Return the scope of the type parameters of a function or class, as in
    ``def first[T]``, or *scope* if there are none.
    """
    parameters = getattr(node, "type_params", None)
    if not parameters:
        return scope
    type_scope = scope.inside(ast.FunctionDef)
    type_scope.bound.update(parameter.name for parameter in parameters)
    return type_scope


class _TreeWriter:
    """A writer of the meaning of syntax trees.

    The writer leaves a gap for each name. It fills the gap when the scope of the name
    ends, because a name may be bound after its first use.

    Args:
        is_ours: A function that returns whether a name refers to an object of this
            library.
    """

    def __init__(self, is_ours: IsOurs) -> None:
        self._is_ours = is_ours
        self._parts: list[str] = []
        self._closed = 0
        self.outside = _NameScope(None, None)
        """The outermost scope, of the names that the written definition does not
        bind.
        """

    def finish(self) -> str:
        """Return the text of everything that was written."""
        for (name, *_), positions in self.outside.uses.items():
            self._fill(positions, f"{name};")
        return "".join(self._parts)

    def visit_Lambda(self, node: Any, scope: _NameScope) -> None:
        """Write a function, a lambda or a class without its name."""
        for decorator in getattr(node, "decorator_list", ()):
            if not self._is_decorator_of_ours(decorator):
                self._parts.append("@")
                self._write(decorator, scope)
        self._parts.append(f"{type(node).__name__}(")
        type_scope = _type_scope(node, scope)
        inner = type_scope.inside(type(node))
        if isinstance(node, ast.ClassDef):
            self._write([*node.bases, *node.keywords], type_scope)
        else:
            self._arguments(node.args, type_scope, inner)
        self._write(node.body, inner)
        self._close(inner)
        if type_scope is not scope:
            self._close(type_scope)

    def _is_decorator_of_ours(self, decorator: Any) -> bool:
        base = decorator
        while isinstance(base, ast.Call | ast.Attribute):
            base = base.func if isinstance(base, ast.Call) else base.value
        return isinstance(base, ast.Name) and self._is_ours(base.id)

    def _arguments(
        self, node: ast.arguments, scope: _NameScope, inner: _NameScope
    ) -> None:
        names = [parameter.arg for parameter in (*node.args, *node.kwonlyargs)]
        self._parts.append(
            f"{len(node.posonlyargs)}/{len(node.args)}*{' '.join(names)};"
        )
        inner.keywords.update(names)
        inner.bound.update(names)
        self._parts.append(f"{node.vararg is not None}{node.kwarg is not None};")
        for parameter in (*node.posonlyargs, node.vararg, node.kwarg):
            if parameter is not None:
                self._bind(parameter.arg, inner)
        self._write([*node.defaults, None, *node.kw_defaults], scope)

    def _close(self, scope: _NameScope) -> None:
        """End *scope*: write the names that it binds, and pass all other names to the
        outer scope.
        """
        self._parts.append(")")
        self._closed += 1
        numbers: dict[str, int] = {}
        for (name, *attributes), positions in scope.uses.items():
            owner = self._owner_of(name, scope)
            if owner is not scope:
                owner.uses[name, *attributes] += positions
            elif name in scope.keywords or scope.kind is ast.ClassDef:
                self._fill(positions, f"${name};")
            else:
                number = numbers.setdefault(name, len(numbers))
                self._fill(positions, f"%{self._closed}.{number};")

    def _owner_of(self, name: str, scope: _NameScope) -> _NameScope:
        """Return *scope* if it binds the name, or else the outer scope that must be
        searched next.
        """
        declared = scope.declared.get(name)
        if declared is ast.Global:
            return self.outside
        if declared is None and name in scope.bound:
            return scope
        return scope.outer or self.outside

    def _fill(self, positions: list[int], text: str) -> None:
        for position in positions:
            self._parts[position] = text

    def _write(self, value: Any, scope: _NameScope) -> None:
        default = self.visit_node if isinstance(value, ast.AST) else self.visit_value
        getattr(self, f"visit_{type(value).__name__}", default)(value, scope)

    def visit_list(self, values: list[Any], scope: _NameScope) -> None:
        self._parts.append("[")
        for value in values:
            self._write(value, scope)
        self._parts.append("]")

    def visit_node(self, node: Any, scope: _NameScope) -> None:
        self._parts.append(f"{type(node).__name__}(")
        for name in sorted({*node._fields} - _UNWRITTEN):
            value = getattr(node, name, None)
            if value or value == 0:
                self._parts.append(f"{name}=")
                self._write(value, scope)
        self._parts.append(")")

    # ------------------------------------------------------------ names

    def _bind(self, name: str | None, scope: _NameScope) -> None:
        if name is not None:
            scope.bound.add(name)
            self._use(name, scope)

    def _use(
        self, name: str, scope: _NameScope, attributes: tuple[str, ...] = ()
    ) -> None:
        scope.uses[name, *attributes].append(len(self._parts))
        self._parts.append("")

    def visit_Name(self, node: ast.Name, scope: _NameScope) -> None:
        if not isinstance(node.ctx, ast.Load):
            scope.bound.add(node.id)
        self._use(node.id, scope)

    def visit_Attribute(self, node: ast.Attribute, scope: _NameScope) -> None:
        names = [node.attr]
        while isinstance(node.value, ast.Attribute):
            node = node.value
            names.insert(0, node.attr)
        self._parts.append(f".{'.'.join(names)};")
        if isinstance(node.value, ast.Name):
            self._use(node.value.id, scope, tuple(names))
        else:
            self._write(node.value, scope)

    def visit_alias(self, node: ast.alias, scope: _NameScope) -> None:
        self._parts.append(f"alias {node.name} {bool(node.asname)};")
        self._bind(node.asname or node.name.partition(".")[0], scope)

    def visit_NamedExpr(self, node: ast.NamedExpr, scope: _NameScope) -> None:
        owner = scope
        while owner.kind in _COMPREHENSIONS and owner.outer is not None:
            owner = owner.outer
        owner.bound.add(node.target.id)
        self._parts.append("NamedExpr=")
        self._use(node.target.id, scope)
        self._write(node.value, scope)

    def visit_Global(self, node: ast.Global | ast.Nonlocal, scope: _NameScope) -> None:
        scope.declared.update(dict.fromkeys(node.names, type(node)))

    visit_Nonlocal = visit_Global

    def visit_ExceptHandler(self, node: Any, scope: _NameScope) -> None:
        """Write a node that binds a name which is a string and not a child node, such
        as an except clause.
        """
        name_field = "rest" if isinstance(node, ast.MatchMapping) else "name"
        self._bind(getattr(node, name_field), scope)
        others = {}
        for field_name in node._fields:
            if field_name != name_field:
                others[field_name] = getattr(node, field_name)
        self.visit_node(type(node)(**others), scope)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler

    def visit_FunctionDef(self, node: Any, scope: _NameScope) -> None:
        self._bind(node.name, scope)
        self.visit_Lambda(node, scope)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_ListComp(self, node: Any, scope: _NameScope) -> None:
        self._parts.append(f"{type(node).__name__}(")
        inner = scope.inside(type(node))
        # Python evaluates the first iterable of a comprehension outside of the
        # comprehension's own scope, so it is written with the outer scope.
        iterable_scope = scope
        for generator in node.generators:
            self._parts.append(f"for{generator.is_async} ")
            self._write(generator.target, inner)
            self._write(generator.iter, iterable_scope)
            self._write(generator.ifs, inner)
            iterable_scope = inner
        elements = [getattr(node, name, None) for name in ("elt", "key", "value")]
        self._write(elements, inner)
        self._close(inner)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    # ------------------------------------------------------------ special nodes

    def visit_Pass(self, node: ast.AST, scope: _NameScope) -> None:
        """Write nothing for `pass`."""

    def visit_Expr(self, node: ast.Expr, scope: _NameScope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit_node(node, scope)

    def visit_Constant(self, node: ast.Constant, scope: _NameScope) -> None:
        self.visit_value(node.value, scope)

    def visit_value(self, value: Any, scope: _NameScope) -> None:
        """Write a value that is not a node, such as the name of an attribute."""
        self._parts.append(f"{constant_text(value)};")

    def visit_AnnAssign(self, node: ast.AnnAssign, scope: _NameScope) -> None:
        """Write an assignment.

        In a class the annotation is written too, because it may define a field.
        """
        if isinstance(node.target, ast.Name):
            scope.bound.add(node.target.id)
        if scope.kind is ast.ClassDef:
            self._write(node.annotation, scope)
        elif node.value is None:
            return
        value = node.value or ast.Constant(...)
        self.visit_node(ast.Assign([node.target], value), scope)

    def visit_JoinedStr(self, node: ast.JoinedStr, scope: _NameScope) -> None:
        """Write an f-string.

        Adjacent constant parts are joined, because some versions of Python split them.
        """
        text = ""
        self._parts.append("JoinedStr(")
        for value in node.values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                text += value.value
            else:
                self._parts.append(ascii(text))
                self._write(value, scope)
                text = ""
        self._parts.append(f"{text!a})")
