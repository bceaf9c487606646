"""Random edits: those that change nothing keep the digest of a function, all others
change it.
"""

from __future__ import annotations

import ast
import copy
import linecache
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowpregel._code.digest import code_digest

LOCALS = ("a", "b", "c")
NAMES = st.sampled_from((*LOCALS, "first", "second"))
CONSTANTS = st.integers(0, 3) | st.sampled_from(["x", 1.5, None, True, b"x"])


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return expressions that are made of others."""
    return st.one_of(
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(["+", "-", "@", "and", "<"]),
            inner,
        ),
        st.builds("{}({})".format, st.sampled_from(["len", "print", "str"]), inner),
        st.builds(
            "[{0} for {1} in {2} if {1}]".format, inner, st.sampled_from(LOCALS), inner
        ),
        st.builds("(lambda {}, /: {})".format, st.sampled_from(LOCALS), inner),
        st.builds("f'{{{}!r}} and {{{}}}'".format, NAMES, NAMES),
        st.builds("{}.{}".format, NAMES, st.sampled_from(["real", "imag"])),
    )


EXPRESSIONS = st.recursive(NAMES | st.builds(repr, CONSTANTS), combined, max_leaves=6)


def indented(*blocks: str) -> str:
    """Return blocks of lines one level deeper."""
    return "\n".join("    " + line for block in blocks for line in block.splitlines())


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return statements that are made of others."""
    return st.one_of(
        st.builds("if {}:\n{}".format, EXPRESSIONS, inner.map(indented)),
        st.builds(
            "for {} in {}:\n{}".format,
            st.sampled_from(LOCALS),
            EXPRESSIONS,
            inner.map(indented),
        ),
        st.builds(
            "def {0}({1}, /):\n{2}\n    return {1}".format,
            st.sampled_from(LOCALS),
            st.sampled_from(LOCALS),
            inner.map(indented),
        ),
        st.builds(
            "try:\n{}\nexcept ValueError as {}:\n{}".format,
            inner.map(indented),
            st.sampled_from(LOCALS),
            inner.map(indented),
        ),
        st.builds("{}\n{}".format, inner, inner),
    )


STATEMENTS = st.recursive(
    st.builds("{} = {}".format, st.sampled_from(LOCALS), EXPRESSIONS)
    | st.builds("{} += {}".format, st.sampled_from(LOCALS), EXPRESSIONS)
    | st.builds("return {}".format, EXPRESSIONS),
    nested,
    max_leaves=6,
)
SOURCES = STATEMENTS.map(
    lambda body: f"def f(first, *, second=1):\n{indented('a = b = c = 0', body)}"
)


def digest(source: str) -> str:
    """Return the digest of the function *source* defines; it is a cell of a
    notebook.
    """
    name = "<cell>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), space)
    found = code_digest(space["f"])
    assert "no source" not in str(found.parts)
    return found.digest


class Renamed(ast.NodeTransformer):
    """Gives locals other names."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def generic_visit(self, node: Any) -> Any:
        """Rename whatever names a local."""
        for field in ("id", "arg", "name"):
            name = getattr(node, field, None)
            if name in LOCALS:
                setattr(node, field, self.names[name])
        return super().generic_visit(node)


def with_comments(source: str, chance: random.Random) -> str:
    """Return *source* with comments and empty lines in between, and at the ends of
    lines.
    """
    lines = []
    for line in source.splitlines():
        lines += chance.choice([[], [""], ["# why"], ["        # why not"]])
        lines.append(line + chance.choice(["", "  # def f(): pass", " "]))
    return "\n".join(lines) + "\n"


@given(SOURCES, st.permutations(LOCALS), st.randoms(use_true_random=False))
def test_names_layout_and_comments_do_not_count(
    source: str, names: list[str], chance: random.Random
) -> None:
    """Whatever the function: it is renamed, laid out again, commented, described."""
    new_names = dict(
        zip(LOCALS, chance.choice([names, ["one", "two", "three"]]), strict=True)
    )
    tree: Any = Renamed(new_names).visit(ast.parse(source))
    body = tree.body[0].body
    body.insert(0, ast.Expr(ast.Constant("Say what it does.")))
    body.insert(chance.randint(1, len(body)), ast.Pass())
    edited = with_comments(ast.unparse(ast.fix_missing_locations(tree)), chance)

    assert digest(source) == digest(edited)


def change(node: Any, chance: random.Random) -> None:
    """Make *node* mean something else."""
    match node:
        case ast.Constant():
            node.value = (
                (node.value, "changed")[1] if node.value != "changed" else "other"
            )
        case ast.BinOp():
            node.op = ast.Mult()
        case ast.Attribute():
            node.attr = "other"
        case ast.Call():
            node.keywords.append(ast.keyword("other", ast.Constant(1)))
        case ast.Name():
            node.id = "unknown"
        case ast.FunctionDef() | ast.If() | ast.For():
            place = chance.randint(0, len(node.body))
            node.body.insert(place, ast.Expr(ast.Call(ast.Name("log"), [], [])))


@given(SOURCES, st.randoms(use_true_random=False))
def test_every_other_edit_counts(source: str, chance: random.Random) -> None:
    """A constant, an operator, an attribute, a call, a statement."""
    tree = ast.parse(source)
    kinds = (
        ast.Constant
        | ast.BinOp
        | ast.Attribute
        | ast.Call
        | ast.FunctionDef
        | ast.If
        | ast.For
    )
    edited = copy.deepcopy(tree)
    change(
        chance.choice([node for node in ast.walk(edited) if isinstance(node, kinds)]),
        chance,
    )
    text = ast.unparse(ast.fix_missing_locations(edited))

    assert digest(source) != digest(text)
