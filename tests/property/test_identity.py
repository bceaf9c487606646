"""Random pairs of values, classes and closures: what behaves differently has another
digest.

A program is a few lines that make an object, written from a recipe. Two objects of
equal recipes have equal digests, wherever they stand; objects of other recipes have
others, or are refused.
"""

from __future__ import annotations

import linecache
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowpregel._code.digest import code_digest
from flowpregel._pickling.digest import arguments_digest, digest_of, space_of
from flowpregel.errors import ConfigurationError

_numbers = count()
HEAD = """
import argparse, array, collections, dataclasses, enum, functools, operator
import threading, types
import numpy, pydantic

def class_of(value):
    class Made:
        attribute = value
    return Made

def class_closing_over(value):
    class Made:
        def method(self):
            return value
    return Made

def function_of(value):
    def made(n=0):
        return n, value
    return made

def default_of(value):
    def made(n=value):
        return n
    return made
"""
ATOMS = st.sampled_from(
    ["0", "1", "True", "1.0", "'a'", "b'a'", "None", "()", "[]", "(1, 'a')"]
)
NAMES = st.sampled_from(["a", "b"])
CLASSES = st.one_of(
    st.builds("pydantic.create_model('Out', {0}=(object, {1}))".format, NAMES, ATOMS),
    st.builds(
        "collections.namedtuple('Out', '{0}', defaults=[{1}])".format, NAMES, ATOMS
    ),
    st.builds("enum.Enum('Out', {{'{0}': {1}}})".format, NAMES, ATOMS),
    st.builds(
        "dataclasses.make_dataclass('Out', [('{0}', object, dataclasses.field("
        "default_factory=lambda: {1}))])".format,
        NAMES,
        ATOMS,
    ),
    st.builds("type('Out', (), {{'{0}': {1}}})".format, NAMES, ATOMS),
    st.builds("class_of({0})".format, ATOMS),
    st.builds("class_closing_over({0})".format, ATOMS),
)


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return recipes of objects that hold others."""
    return st.one_of(
        st.builds("[{0}]".format, inner),
        st.builds("({0}, {1})".format, inner, inner),
        st.builds("{{'{0}': {1}}}".format, NAMES, inner),
        st.builds("types.SimpleNamespace({0}={1})".format, NAMES, inner),
        st.builds("argparse.Namespace({0}={1})".format, NAMES, inner),
        st.builds("collections.UserDict({0}={1})".format, NAMES, inner),
        st.builds("collections.ChainMap({{'{0}': {1}}})".format, NAMES, inner),
        st.builds("collections.deque([{0}])".format, inner),
        st.builds("functools.partial(print, {0})".format, inner),
        st.builds("operator.methodcaller('{0}', {1})".format, NAMES, inner),
        st.builds("function_of({0})".format, inner),
        st.builds("default_of({0})".format, inner),
        st.builds("functools.cache(function_of({0}))".format, inner),
        st.builds("numpy.array([{0}, None], object)".format, inner),
    )


LEAVES = st.one_of(
    ATOMS,
    CLASSES,
    st.builds("class_of({0})()".format, ATOMS),
    st.builds("class_closing_over({0})()".format, ATOMS),
    st.builds("numpy.float64({0})".format, st.integers(0, 2)),
    st.builds("array.array('d', [{0}])".format, st.integers(0, 2)),
    st.builds("operator.itemgetter({0})".format, st.integers(0, 2)),
)
RECIPES = st.recursive(LEAVES, containers, max_leaves=3)


def made(recipe: str) -> dict[str, Any]:
    """Return the variables of a notebook cell that makes the object of *recipe*, and
    uses it.
    """
    source = f"{HEAD}\nDATA = {recipe}\ndef work():\n    return DATA\n"
    name = f"<cell {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "notebook"}
    exec(compile(source, name, "exec"), space)
    return space


def identities(recipe: str) -> list[Any]:
    """Return how an object is known: as an argument, in a cache's key, in code, in a
    closure.
    """
    space = made(recipe)
    data, work = space["DATA"], space["work"]
    closure = space["function_of"](data)
    try:
        key = digest_of(data, "the data", strict=True)
    except ConfigurationError:
        key = "refused"
    return [
        arguments_digest((data,), {}, "the data"),
        key,
        code_digest(work).digest,
        space_of("task", [work]),
        space_of("task", [closure]),
        code_digest(closure).digest,
    ]


@given(RECIPES, RECIPES)
def test_what_behaves_differently_is_known_apart(one: str, other: str) -> None:
    """Wherever it stands: equal recipes have equal digests, and no others."""
    first, again, second = identities(one), identities(one), identities(other)

    assert first == again
    for mine, theirs in zip(first, second, strict=True):
        assert (mine == theirs) == (one == other)


@given(ATOMS, ATOMS)
def test_what_cannot_be_looked_into_is_refused_for_a_cache(
    one: str, other: str
) -> None:
    """Beside what it stands with, whatever that is."""
    for recipe in (one, other):
        space = made(f"(n for n in [{recipe}])")
        with pytest.raises(ConfigurationError, match=r"`DATA` \(generator\)"):
            space_of("task", [space["work"]])
