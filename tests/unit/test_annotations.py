"""Annotations that Python 3.14 does not evaluate until they are read."""

from __future__ import annotations

import inspect
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flowpregel import StateGraph, entrypoint, task
from flowpregel._annotations import annotations_of, copy_annotations, signature_of
from flowpregel._pickling.by_value import by_value_pickler, dumps_with
from flowpregel.executors.processes.wire.references import References

PROGRAM = """
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import pandas

def count(table: pandas.DataFrame, least: int = 0) -> pandas.Series:
    return len(table) - least

def closure(more):
    def counted(table: pandas.DataFrame) -> pandas.Series:
        return count(table) + more
    class Counter:
        table: pandas.DataFrame
        def count(self, table: pandas.DataFrame) -> pandas.Series:
            return count(table) + more
    return counted, Counter

class State(TypedDict):
    rows: list

def step(state: pandas.DataFrame) -> pandas.DataFrame:
    return {}
"""
lazily = pytest.mark.skipif(
    sys.version_info < (3, 14),
    reason="Python 3.14 is the first to evaluate annotations when they are read",
)


@pytest.fixture
def program() -> Any:
    """Return a program whose annotations name a module that is not imported."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(PROGRAM, "<program>", "exec", dont_inherit=True), variables)
    return SimpleNamespace(**variables)


@lazily
def test_workflows_tasks_and_nodes_may_name_what_only_type_checkers_import(
    program: Any,
) -> None:
    graph = StateGraph(program.State).add_node("step", program.step)

    assert ["table", "least"] == [*signature_of(program.count).parameters]
    assert ["table", "least", "return"] == [*annotations_of(program.count)]
    assert "count" == entrypoint()(program.count).name
    assert "count" == task(program.count).name
    assert ["step"] == [*graph.nodes]


@lazily
def test_functions_and_classes_with_such_annotations_are_sent(program: Any) -> None:
    """Their annotations are text in the other process, and stay here what they are."""
    counted, counter = program.closure(3)

    copied, copied_class = pickle.loads(
        dumps_with(by_value_pickler(), (counted, counter))
    )

    assert 5 == copied([1, 2]) == copied_class().count([1, 2])
    assert "pandas.DataFrame" == copied.__annotations__["table"]
    with pytest.raises(NameError):
        _ = counted.__annotations__
    assert References.of(counted) is not None


class Unevaluated:
    """A function whose annotations cannot be evaluated."""

    def __annotate__(self, form: int) -> dict[str, Any]:
        raise NameError(form)

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return self.__annotate__(1)


def test_a_copy_has_the_annotations_of_the_function() -> None:
    def function(n: int) -> str: ...

    copies = [SimpleNamespace(), SimpleNamespace()]
    unevaluated = Unevaluated()
    for source, copy in zip([function, unevaluated], copies, strict=True):
        copy_annotations(source, copy)

    assert {"n": "int", "return": "str"} == copies[0].__annotations__
    assert unevaluated.__annotate__ == copies[1].__annotate__


@pytest.mark.parametrize("target", [None, 3, "text", [1]])
def test_other_objects_have_no_annotations(target: Any) -> None:
    assert {} == annotations_of(target)


def test_a_signature_is_that_of_inspect() -> None:
    def function(n: int, *, m: str = "a") -> str: ...

    assert inspect.signature(function) == signature_of(function)
    with pytest.raises(TypeError):
        signature_of(3)  # type: ignore[arg-type]
