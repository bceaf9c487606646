"""What calls itself without end fails, as it does in Python; the run does not wait for
ever.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import pytest

from flowpregel import entrypoint, task
from flowpregel._core import calls
from flowpregel.graph import START, StateGraph

pytestmark = pytest.mark.slow

WHERE = pytest.mark.parametrize("executor", ["inline", "threads"])


DEEP = 150
"""Calls in each other that are too many in these tests, where a thousand take long."""


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stack has room for less than `DEEP` calls inline, each of several frames."""
    monkeypatch.setattr(calls, "DEEPEST", DEEP)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(500)
    yield
    sys.setrecursionlimit(usual)


class State(TypedDict):
    """A number."""

    number: int


@task
def deeper(number: int) -> int:
    """Call itself."""
    return deeper(number + 1).result() if number else 0


def flow_in(executor: str) -> Any:
    """Return a flow of a task that calls itself."""

    @entrypoint(executor=executor)
    def flow(number: int) -> int:
        return deeper(number).result()

    return flow


def graph_in(executor: str) -> Any:
    """Return a graph whose node invokes the graph."""

    def node(state: State) -> Any:
        return graph.invoke({"number": state["number"] + 1})

    building = StateGraph(State).add_node("node", node).add_edge(START, "node")
    graph = building.compile(executor=executor)
    return graph


def raised_by(work: Callable[[], Any]) -> Exception | None:
    """Return what *work* raises, if that is within a minute."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    return raised[0] if raised else None


@WHERE
def test_a_task_that_calls_itself_for_ever_is_a_recursion_error(executor: str) -> None:
    """Inline the stack is full at some depth; in OS threads no stack ever is."""
    error = raised_by(lambda: flow_in(executor).invoke(1))

    assert isinstance(error, RecursionError)
    if executor == "threads":
        assert f"'deeper' is nested more than {DEEP} deep" in str(error)


@WHERE
def test_a_graph_that_invokes_itself_for_ever_is_a_recursion_error(
    executor: str,
) -> None:
    error = raised_by(lambda: graph_in(executor).invoke({"number": 0}))

    assert isinstance(error, RecursionError)


@pytest.mark.parametrize("frames", range(12))
def test_the_stack_may_be_full_at_any_place(
    frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is so for the task, and not for a lock that is just being released: else a
    body waits.
    """
    # The calls that were made before are done without it, one in the other.
    monkeypatch.setattr(calls, "DEEPEST", 100)

    def below(frames: int) -> Any:
        return below(frames - 1) if frames else flow_in("inline").invoke(1)

    assert isinstance(raised_by(lambda: below(frames)), RecursionError)


def test_a_flow_works_again_after_that() -> None:
    """The stack was full, and nothing is left of it."""
    flow = flow_in("inline")
    assert isinstance(raised_by(lambda: flow.invoke(1)), RecursionError)

    assert 0 == flow.invoke(0)
