"""Classes that share a name and mean different things: results of one are none of the
other.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections import namedtuple
from typing import Any, TypedDict

import pytest
from pydantic import create_model

from flowpregel import entrypoint, task
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, RunNotice
from flowpregel.graph import END, START, StateGraph

OTHERS: list[Any] = [
    (create_model("Out", a=(int, 1)), create_model("Out", b=(int, 1))),
    (namedtuple("Out", "a b")(1, 2), namedtuple("Out", "b a")(1, 2)),
]


def shown(value: Any) -> str:
    """Return what a model or a named tuple has, as text."""
    fields = value.model_fields if hasattr(value, "model_fields") else value._asdict()
    return str({name: repr(each) for name, each in fields.items()})


@pytest.mark.parametrize("values", OTHERS)
def test_a_cache_tells_classes_of_one_name_apart(values: tuple[Any, Any]) -> None:
    """A schema made while running, and a tuple whose fields have other names."""

    @task(cache=True, executor="inline")
    def ask(value: Any) -> str:
        return shown(value)

    @entrypoint(checkpointer=InMemorySaver())
    def flow(number: int) -> str:
        return ask(values[number]).result()

    assert [shown(value) for value in values] == [flow.run(0), flow.run(1)]


CONNECTION = sqlite3.connect(":memory:", check_same_thread=False)


def asked(_: int) -> int:
    return CONNECTION.execute("SELECT 3").fetchone()[0]


def test_a_cache_refuses_code_that_refers_to_what_has_no_content() -> None:
    """It names it, and says what to do; which helps."""

    def flow_of(**options: Any) -> Any:
        called = task(cache=True, executor="inline", **options)(asked)

        @entrypoint(checkpointer=InMemorySaver())
        def flow(number: int) -> int:
            return called(number).result()

        return flow

    with pytest.raises(
        ConfigurationError, match=r"'asked'.*`CONNECTION` \(sqlite3.*version="
    ):
        flow_of().run(1)
    assert 3 == flow_of(version="1").run(1)


def test_a_run_tells_once_of_code_that_refers_to_what_has_no_content() -> None:
    """However many calls there are; a version makes it no news."""

    def notices(**options: Any) -> list[str]:
        called = task(executor="inline", **options)(asked)

        @entrypoint(checkpointer=InMemorySaver())
        def flow(numbers: list[int]) -> list[int]:
            return [future.result() for future in called.map(numbers)]

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            flow.run([1, 2, 3])
        return [str(each.message) for each in caught if each.category is RunNotice]

    (notice,) = notices()
    assert "the code of 'asked' refers to `CONNECTION` (sqlite3.Connection)" in notice
    assert [] == notices(version="1")


# ---------------------------------------------------------------- all that is told


@task(executor="threads")
def asked_here(number: int) -> int:
    return asked(number)


@task
def asking(number: int) -> list[int]:
    return [asked_here(each).result() for each in range(number)]


def told(run: Any, *given: Any) -> list[str]:
    """Return the notices of a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(*given)
    return [str(each.message) for each in caught if each.category is RunNotice]


def test_a_task_that_is_called_by_a_task_is_told_of(executor: str) -> None:
    """Once, wherever the calling one runs: the digest of its code was taken there."""

    @entrypoint(checkpointer=InMemorySaver())
    def flow(number: int) -> list[int]:
        return asking.with_options(executor=executor)(number).result()

    (notice,) = (each for each in told(flow.run, 3) if "asked_here" in each)
    assert (
        "the code of 'asked_here' refers to `CONNECTION` (sqlite3.Connection)" in notice
    )


def test_a_body_is_told_of() -> None:
    """Though no task refers to it."""

    @entrypoint(checkpointer=InMemorySaver())
    def flow(number: int) -> int:
        return asked(number)

    (notice,) = told(flow.run, 1)
    assert "the code of 'flow' refers to `CONNECTION` (sqlite3.Connection)" in notice


def test_a_node_of_a_graph_is_told_of_once(drive: Any) -> None:
    """However often it runs, also if its graph is a node of another one."""

    class State(TypedDict):
        n: int

    def ask(state: State) -> State:
        return {"n": state["n"] + asked(0)}

    inner = StateGraph(State).add_node("ask", ask).add_edge(START, "ask")
    inner.add_conditional_edges("ask", lambda state: "ask" if state["n"] < 9 else END)
    outer = (
        StateGraph(State).add_node("inner", inner.compile()).add_edge(START, "inner")
    )
    for graph in (inner, outer):
        compiled = graph.compile(checkpointer=InMemorySaver(), executor="inline")
        (notice,) = told(
            lambda graph=compiled: drive.invoke(graph, {"n": 0}, thread_id="1")
        )
        assert "the code of 'ask' refers to `CONNECTION` (sqlite3.Connection)" in notice


def test_what_is_not_kept_has_no_notice() -> None:
    """Nothing is compared with it later."""

    @entrypoint()
    def flow(number: int) -> int:
        return asked(number)

    assert [] == told(flow.invoke, 1)
