"""What fails gives up what it was to compute for others: the next try computes it."""

from __future__ import annotations

import threading
from typing import Any, TypedDict

import pytest

from flowpregel._engine.shared_results import SharedResults
from flowpregel.cache.memory import InMemoryCache
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ValueEncodingError
from flowpregel.graph import START, CompiledStateGraph, StateGraph
from flowpregel.policies import CachePolicy, RetryPolicy
from tests.runs.conftest import Drive


class Numbers(TypedDict, total=False):
    """What is given, and what is made of it."""

    given: int
    made: Any


def graph_in_a_graph(
    node: Any, retry_on: type[Exception], **options: Any
) -> CompiledStateGraph:
    """Return a graph that tries one with a cached *node* until it does not fail."""
    inner = StateGraph(Numbers).add_node("make", node, cache_policy=CachePolicy())
    inner.add_edge(START, "make")
    nested = inner.compile()
    nested.step_timeout = options.pop("step_timeout", None)
    again = RetryPolicy(retry_on=retry_on, initial_interval=0.01, jitter=False)
    outer = StateGraph(Numbers).add_node("nested", nested, retry_policy=again)
    outer.add_edge(START, "nested")
    return outer.compile(cache=InMemoryCache(), executor="threads", **options)


BEGAN: list[int] = []
RELEASED = threading.Event()


@pytest.fixture(autouse=True)
def anew() -> None:
    """Let no test find what another has left here: a cached function may not close over
    it.
    """
    BEGAN.clear()
    RELEASED.clear()


def slow_at_first(state: Numbers) -> Numbers:
    """Take as long as it takes to be called again, the first time."""
    BEGAN.append(state["given"])
    if len(BEGAN) > 1:
        RELEASED.set()
    RELEASED.wait(10)
    return {"made": state["given"] + 1}


def unkeepable_at_first(state: Numbers) -> Numbers:
    """Return what no saver can keep the first time."""
    BEGAN.append(state["given"])
    return {"made": threading.Lock() if len(BEGAN) == 1 else state["given"] + 1}


@pytest.mark.parametrize("has_saver", [True, False])
def test_a_result_is_computed_anew_after_a_step_timeout(
    drive: Drive, has_saver: bool
) -> None:
    """The task that was given up on still runs."""
    saver = InMemorySaver() if has_saver else None
    app = graph_in_a_graph(
        slow_at_first, TimeoutError, checkpointer=saver, step_timeout=0.3
    )

    assert 2 == drive.invoke(app, {"given": 1}, thread_id="1")["made"]
    assert [1, 1] == BEGAN


def test_a_result_is_computed_anew_after_a_commit_that_failed(drive: Drive) -> None:
    """What the first try made could not be kept."""
    app = graph_in_a_graph(
        unkeepable_at_first, ValueEncodingError, checkpointer=InMemorySaver()
    )

    assert 2 == drive.invoke(app, {"given": 1}, thread_id="1")["made"]
    assert [1, 1] == BEGAN


class FailingCache(InMemoryCache):
    """A cache that cannot be read the second time."""

    reads = 0

    def get(self, keys: Any) -> Any:
        """Return what is there, or fail."""
        self.reads += 1
        if self.reads == 2:
            raise OSError("no connection")
        return super().get(keys)


def test_a_look_that_fails_claims_nothing() -> None:
    """Otherwise a caller that tries again would wait for itself."""
    results, key = SharedResults(FailingCache()), (("square",), "3")

    with pytest.raises(OSError, match="no connection"):
        results.look([key])

    assert {} == results.look([key])
