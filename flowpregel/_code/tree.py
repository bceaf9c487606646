"""What the syntax tree of a function or a class means, as text.

Left out are comments, docstrings, layout, annotations of functions, `pass`, and the
names of locals. Every version of Python writes the same text for the same source: a
field that is empty is not written, so that one that a later version adds does not show.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
IsOurs = Callable[[str], bool]
"""Whether a name is of this library, whose decorators change nothing that is
computed.
"""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_UNWRITTEN = frozenset(
    {"annotation", "ctx", "kind", "returns", "simple", "type_comment", "type_params"}
)


def written(node: Any, is_ours: IsOurs) -> tuple[str, list[tuple[str, ...]]]:
    """Return the text of a function, lambda or class, whose own name does not count.

    Returns:
        The text, and the global names in it, each with the attributes that are
        taken: ``("helpers", "clean")``.
    """
    writer = _TreeWriter(is_ours)
    writer.visit_Lambda(node, writer.outside)
    return writer.finish(), sorted(writer.outside.uses)


def constant_text(value: Any) -> str:
    """Return a number, a text or bytes as every version of Python writes it."""
    # Which characters `repr` escapes depends on the version, and some ints are too long
    # for it.
    return hex(value) if type(value) is int else ascii(value)


@dataclass(slots=True, eq=False)
class _NameScope:
    """The names in a function, a class or a comprehension, while it is written."""

    kind: type[ast.AST] | None
    outer: _NameScope | None
    """The next that is no class: the functions of a class do not see the names in
    it.
    """
    bound: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    """Arguments that a call may name."""
    declared: dict[str, type[ast.AST]] = field(default_factory=dict)
    """Those that a statement says are global, or of an outer function."""
    uses: defaultdict[tuple[str, ...], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By each name that is used, and the attributes that are taken: where in the text
    it stands.
    """

    def inside(self, kind: type[ast.AST]) -> _NameScope:
        """Return a scope for what is defined here."""
        return _NameScope(kind, self.outer if self.kind is ast.ClassDef else self)


class _TreeWriter:
    """Writes nodes; names follow when their scope ends, as only then it is known what
    it binds.
    """

    def __init__(self, is_ours: IsOurs) -> None:
        self._is_ours = is_ours
        self._parts: list[str] = []
        self._closed = 0
        self.outside = _NameScope(None, None)
        """The names that what is written does not bind."""

    def finish(self) -> str:
        """Return the text."""
        for (name, *_), places in self.outside.uses.items():
            self._settle(places, f"{name};")
        return "".join(self._parts)

    def visit_Lambda(self, node: Any, scope: _NameScope) -> None:
        """Write a function, a lambda or a class without its name."""
        for decorator in getattr(node, "decorator_list", ()):
            base = decorator
            while isinstance(base, ast.Call | ast.Attribute):
                base = base.func if isinstance(base, ast.Call) else base.value
            if not (isinstance(base, ast.Name) and self._is_ours(base.id)):
                self._parts.append("@")
                self._write(decorator, scope)
        self._parts.append(f"{type(node).__name__}(")
        inner = scope.inside(type(node))
        if isinstance(node, ast.ClassDef):
            self._write([*node.bases, *node.keywords], scope)
        else:
            self._arguments(node.args, scope, inner)
        self._write(node.body, inner)
        self._close(inner)

    def _arguments(
        self, node: ast.arguments, scope: _NameScope, inner: _NameScope
    ) -> None:
        named = [each.arg for each in (*node.args, *node.kwonlyargs)]
        self._parts.append(
            f"{len(node.posonlyargs)}/{len(node.args)}*{' '.join(named)};"
        )
        inner.kept.update(named)
        inner.bound.update(named)
        rest = [each for each in (node.vararg, node.kwarg) if each is not None]
        self._parts.append(f"{node.vararg is not None}{node.kwarg is not None};")
        for each in (*node.posonlyargs, *rest):
            self._bind(each.arg, inner)
        self._write([*node.defaults, None, *node.kw_defaults], scope)

    def _close(self, scope: _NameScope) -> None:
        """End *scope*: settle the names that it binds, leave the others to the one
        around it.
        """
        self._parts.append(")")
        self._closed += 1
        outer, numbers = scope.outer or self.outside, dict[str, int]()
        for (name, *attributes), places in scope.uses.items():
            declared = scope.declared.get(name)
            if declared is ast.Global:
                self.outside.uses[name, *attributes] += places
            elif declared is not None or name not in scope.bound:
                outer.uses[name, *attributes] += places
            elif name in scope.kept or scope.kind is ast.ClassDef:
                self._settle(places, f"${name};")
            else:
                number = numbers.setdefault(name, len(numbers))
                self._settle(places, f"%{self._closed}.{number};")

    def _settle(self, places: list[int], text: str) -> None:
        for place in places:
            self._parts[place] = text

    def _write(self, value: Any, scope: _NameScope) -> None:
        default = self.visit_node if isinstance(value, ast.AST) else self.visit_value
        getattr(self, f"visit_{type(value).__name__}", default)(value, scope)

    def visit_list(self, values: list[Any], scope: _NameScope) -> None:
        self._parts.append("[")
        for each in values:
            self._write(each, scope)
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
        """Write what binds a name that is no node, such as an except clause."""
        name_field = "rest" if isinstance(node, ast.MatchMapping) else "name"
        self._bind(getattr(node, name_field), scope)
        others = {
            name: getattr(node, name) for name in node._fields if name != name_field
        }
        self.visit_node(type(node)(**others), scope)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler

    def visit_FunctionDef(self, node: Any, scope: _NameScope) -> None:
        self._bind(node.name, scope)
        self.visit_Lambda(node, scope)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_ListComp(self, node: Any, scope: _NameScope) -> None:
        self._parts.append(f"{type(node).__name__}(")
        inner = scope.inside(type(node))
        for each in node.generators:
            self._parts.append(f"for{each.is_async} ")
            self._write(each.target, inner)
            self._write(each.iter, scope if each is node.generators[0] else inner)
            self._write(each.ifs, inner)
        self._write(
            [getattr(node, name, None) for name in ("elt", "key", "value")], inner
        )
        self._close(inner)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    # what is written as something else -------------------------------------

    def visit_Pass(self, node: ast.AST, scope: _NameScope) -> None:
        """Write nothing for `pass`."""

    def visit_Expr(self, node: ast.Expr, scope: _NameScope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit_node(node, scope)

    def visit_Constant(self, node: ast.Constant, scope: _NameScope) -> None:
        self.visit_value(node.value, scope)

    def visit_value(self, value: Any, scope: _NameScope) -> None:
        """Write what is no node, as the name of an attribute."""
        self._parts.append(f"{constant_text(value)};")

    def visit_AnnAssign(self, node: ast.AnnAssign, scope: _NameScope) -> None:
        """Write an assignment; in a class the annotation too, because it makes a
        field.
        """
        if isinstance(node.target, ast.Name):
            scope.bound.add(node.target.id)
        if scope.kind is ast.ClassDef:
            self._write(node.annotation, scope)
        elif node.value is None:
            return
        self.visit_node(
            ast.Assign([node.target], node.value or ast.Constant(...)), scope
        )

    def visit_JoinedStr(self, node: ast.JoinedStr, scope: _NameScope) -> None:
        """Write an f-string, whose text some versions cut in pieces, or end with an
        empty one.
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
