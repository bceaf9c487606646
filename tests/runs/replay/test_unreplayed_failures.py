"""Failures that a body of a run has caught, and whose calls it no longer makes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import pytest
from click.testing import CliRunner

from flowpregel import entrypoint, task
from flowpregel._core import recorded_calls
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.graph import START, StateGraph

pytestmark = pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[LMDBSaver]:
    """A saver with an empty store."""
    with LMDBSaver(tmp_path / "store") as saver:
        yield saver


def summary_of_run(saver: LMDBSaver) -> str:
    """Return how `ls` describes the only run in the store."""
    result = CliRunner().invoke(app, ["ls", "--store", saver.path, "--json"])
    (run,) = json.loads(result.stdout)
    summary: str = run["short"]
    return summary


def flow_of(saver: LMDBSaver, *, is_broken: bool, version: str = "1") -> Any:
    """Return a workflow that catches the errors of its calls. If it is broken, the call
    for 0 fails.
    """

    @task(executor="inline", version=version)
    def work(n: int) -> int:
        if n == 0 and is_broken:
            raise ValueError("broken")
        return n + 1

    @entrypoint(checkpointer=saver)
    def flow(numbers: list[int]) -> int:
        total = 0
        for number in numbers:
            with suppress(ValueError):
                total += work(number).result()
        return total

    return flow


def test_the_failure_of_a_call_that_was_repeated_with_other_code_is_forgotten(
    saver: LMDBSaver,
) -> None:
    """The repeated call has another id than the first one."""
    assert 3 == flow_of(saver, is_broken=False).run([1, 0], id="a")
    edited = flow_of(saver, is_broken=True, version="2")
    edited.run([1, 0], id="a", adopt=True, on_code_change="rerun")
    assert "done, 1 failed" == summary_of_run(saver)

    edited.run([1], id="a", adopt=True, on_code_change="rerun")

    assert "done" == summary_of_run(saver)


class State(TypedDict):
    """The state of a graph."""

    n: int


def graph_of(node: Callable[[State], State], saver: LMDBSaver) -> Any:
    """Return a graph with one node."""
    graph = StateGraph(State).add_node("n", node).add_edge(START, "n")
    return graph.compile(checkpointer=saver, executor="inline")


class Fragile:
    """A result that cannot be read while the variable has text."""

    def __reduce__(self) -> Any:
        return read_fragile, ()


def read_fragile() -> Fragile:
    """Return a result, unless it cannot be read."""
    if os.environ.get("FLOWPREGEL_TEST_LOST"):
        raise ImportError("lost")
    return Fragile()


def test_the_failure_of_a_call_in_place_of_an_unreadable_result_is_forgotten(
    saver: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This call has another id than the one whose result cannot be read."""
    is_broken = [False]

    @task(executor="inline", version="1")
    def work(n: int) -> Fragile:
        if is_broken[0]:
            raise ValueError("broken")
        return Fragile()

    @entrypoint(checkpointer=saver)
    def flow(numbers: list[int]) -> None:
        for number in numbers:
            with suppress(ValueError):
                work(number).result()

    flow.run([0], id="a")
    is_broken[0] = True
    monkeypatch.setenv("FLOWPREGEL_TEST_LOST", "1")
    flow.run([0, 0], id="a", adopt=True, on_unreadable="rerun")
    assert "done, 2 failed" == summary_of_run(saver)

    flow.run([], id="a", adopt=True)

    assert "done" == summary_of_run(saver)


def test_only_calls_that_are_equal_to_a_failed_one_are_searched_for(
    saver: LMDBSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may have many recorded calls, and bodies that did not make them."""
    numbers: list[int] = []
    id_of_equal = recorded_calls.id_of_equal

    def counted(run: Any, caller: Any, group: Any, number: int) -> str:
        numbers.append(number)
        return id_of_equal(run, caller, group, number)

    flow = flow_of(saver, is_broken=True)
    flow.run([*range(50)], id="a")
    monkeypatch.setattr(recorded_calls, "id_of_equal", counted)

    flow.run([], id="a", adopt=True)

    assert [0] == numbers
    assert "done" == summary_of_run(saver)


def test_the_failure_of_a_body_that_makes_no_call_any_more_is_forgotten(
    saver: LMDBSaver,
) -> None:
    """The edit has removed all calls of the body, and the input is the same."""

    @task(executor="inline")
    def work(n: int) -> int:
        return 6 // n

    def broken(state: State) -> State:
        with suppress(ZeroDivisionError):
            work(0).result()
        raise ValueError("broken")

    def repaired(state: State) -> State:
        return {"n": 1}

    with pytest.raises(ValueError, match="broken"):
        graph_of(broken, saver).invoke({"n": 0}, thread_id="a")

    graph_of(repaired, saver).invoke(None, thread_id="a")

    assert "done" == summary_of_run(saver)


@pytest.mark.parametrize(
    ("adopted", "summary"), [([2], "done"), ([], "done"), ([1, 0], "done, 1 failed")]
)
def test_the_failure_of_a_chunk_that_is_not_made_again_is_forgotten(
    saver: LMDBSaver, adopted: list[int], summary: str
) -> None:
    """The chunk has the results of the items that returned, beside the failure."""

    @task(executor="inline")
    def work(n: int) -> int:
        return 6 // n

    @entrypoint(checkpointer=saver)
    def flow(numbers: list[int]) -> int:
        futures = work.map(numbers, chunksize=2, errors="return")
        results = [future.result() for future in futures]
        return sum(result for result in results if isinstance(result, int))

    assert 6 == flow.run([1, 0], id="a")
    assert "done, 1 failed" == summary_of_run(saver)

    flow.run(adopted, id="a", adopt=True)

    assert summary == summary_of_run(saver)


def test_a_forgotten_chunk_calls_only_its_failed_items_again(saver: LMDBSaver) -> None:
    """Its results remain in the store."""
    called: list[int] = []
    is_broken = [True]

    @task(executor="inline")
    def work(n: int) -> int:
        called.append(n)
        if n == 0 and is_broken[0]:
            raise ValueError("broken")
        return n + 1

    @entrypoint(checkpointer=saver)
    def flow(numbers: list[int]) -> int:
        futures = work.map(numbers, chunksize=2, errors="return")
        results = [future.result() for future in futures]
        return sum(result for result in results if isinstance(result, int))

    assert 2 == flow.run([1, 0], id="a")
    is_broken[0] = False
    flow.run([], id="a", adopt=True)
    called.clear()

    assert 3 == flow.run([1, 0], id="a", adopt=True)

    assert [0] == called
    assert "done" == summary_of_run(saver)
