"""`runtime.rng()`: random numbers that belong to a call, not to a worker or a
moment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flowpregel import Runtime, get_runtime
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.graph.state import StateGraph
from tests.runs.crashes import AT_ONCE, Once


@task
def draw(name: str, runtime: Runtime[Any]) -> float:
    return float(runtime.rng().random())


@task
def draw_below(name: str) -> list[float]:
    return [
        draw(name).result(),
        float(get_runtime().rng().random()),
        draw(name).result(),
    ]


def flow_of(executor: Any, store: Any = None) -> Any:
    @entrypoint(executor=executor, checkpointer=store or InMemorySaver())
    def flow(names: list[str]) -> list[Any]:
        below = draw_below("a")
        return [*(each.result() for each in draw.map(names)), *below.result()]

    return flow


@pytest.mark.slow
def test_numbers_depend_on_neither_workers_nor_stores() -> None:
    """But on the id of the run."""
    names = ["a", "b", "a"]
    with ProcessExecutor(1) as alone:
        places = (alone, "processes", "threads", "inline")
        found = [flow_of(place).run(names, id="1") for place in places]

    assert [found[0]] * 4 == found
    assert len({*found[0]}) == 6
    assert set(found[0]).isdisjoint(flow_of("inline").run(names, id="2"))


def test_numbers_of_a_call_do_not_depend_on_its_place(executor: str) -> None:
    """An item that is added in front moves none of the others."""
    first = flow_of(executor).run(["a", "b"], id="1")
    second = flow_of(executor).run(["new", "a", "b"], id="1")

    assert first == second[1:]


def test_a_run_that_goes_on_draws_what_it_would_have(
    drive: Any, executor: str, tmp_path: Path
) -> None:
    """So does a task that is tried again."""
    crash, stop = Once(OSError("crash")), Once(LookupError("stop"))

    @task(retry_policy=AT_ONCE)
    def draw_twice(name: str) -> tuple[float, float]:
        rng = get_runtime().rng
        drawn = float(rng().random()), float(rng().random())
        crash(name)
        return drawn

    def flow_in(store: Path) -> Any:
        @entrypoint(executor=executor, checkpointer=store)
        def flow(count: int) -> list[float]:
            found: list[float] = []
            for n in range(count):
                found += draw_twice(str(n)).result()
                stop(n == 1)
            return found

        return flow

    disturbed = flow_in(tmp_path / "first")
    for _ in range(2):
        with pytest.raises(LookupError, match="stop"):
            drive.invoke(disturbed, None if len(stop.seen) else 4, thread_id="1")
    found = drive.invoke(disturbed, None, thread_id="1")

    assert 8 == len({*found})
    assert found == drive.invoke(flow_in(tmp_path / "second"), 4, thread_id="1")


def test_without_numpy_they_are_those_of_the_standard_library(monkeypatch: Any) -> None:
    """By the same seed."""
    monkeypatch.setitem(sys.modules, "numpy.random", None)
    kinds = []

    @entrypoint(executor="inline")
    def flow(_: int) -> float:
        kinds.append(type(get_runtime().rng()).__module__)
        return draw("a").result()

    assert flow.run(0) == flow.run(0)
    assert ["random", "random"] == kinds


def test_nodes_have_their_own(drive: Any) -> None:
    """Each in each superstep."""

    def draw_in_node(state: dict[str, Any], runtime: Runtime[Any]) -> dict[str, Any]:
        return {"drawn": [*state["drawn"], float(runtime.rng().random())]}

    graph = StateGraph(dict)
    graph.add_node("a", draw_in_node)
    graph.add_node("b", draw_in_node)
    graph.add_edge("__start__", "a")
    graph.add_edge("a", "b")
    found = drive.invoke(graph.compile(executor="inline"), {"drawn": []})

    assert 2 == len({*found["drawn"]})
