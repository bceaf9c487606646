"""Two runs or two calls, compared: the parameters that differ, and the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowpregel import entrypoint, task
from flowpregel._inspection.run_comparison import compare_calls, compare_runs
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.errors import ConfigurationError
from flowpregel.runtime import Runtime
from flowpregel.watching import StoreReader

Cli = Callable[..., Any]
SCALE = {"factor": 1.0}
"""What a task reads from its surroundings, so that its results differ."""


@dataclass
class Params:
    """The arguments of a training."""

    depth: int


@task(executor="inline", version="1")
def train(params: Params, data: list[int], *, runtime: Runtime) -> dict[str, Any]:
    """Return a loss and a large value, or fail at depth 0."""
    runtime.metric("epochs", 3 * SCALE["factor"])
    loss = SCALE["factor"] / params.depth
    return {"loss": loss, "weights": [params.depth] * 100}


@task(executor="inline", version="1")
def hide(depth: int) -> list[float]:
    """Return a value whose preview has only the first items."""
    return [0.0] * 50 + [SCALE["factor"]]


@task(executor="inline", version="1")
def pair(count: int) -> list[list[int]]:
    """Return a list and the same list again, or a copy of it."""
    numbers = [*range(count)]
    return [numbers, [*numbers] if "copies" in SCALE else numbers]


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[LMDBSaver]:
    """The store of a sweep that ran twice, with other depths and another factor."""
    with LMDBSaver(tmp_path / "store") as saver:

        @entrypoint(checkpointer=saver)
        def sweep(depths: list[int], name: str = "usual", seed: float = 1) -> int:
            futures = [train(Params(depth), [*range(40)]) for depth in depths]
            futures += [hide(depth) for depth in depths]
            return sum(future.exception() is None for future in futures)

        sweep.run([1, 2, 0, 4], id="one")
        sweep.run([2, 2, 0, 8], seed=1.0, id="two")
        SCALE["factor"] = 10.0
        try:
            sweep.run([1, 2, 0, 4], name="other", id="scaled")
        finally:
            SCALE["factor"] = 1.0
        yield saver


@pytest.fixture
def cli(saver: LMDBSaver) -> Cli:
    """Run the command on the test's store."""
    store = ["--store", saver.path]
    return lambda *words: CliRunner().invoke(app, ["compare", *words, *store])


def changes(saver: LMDBSaver, a: str, b: str, name: str) -> list[tuple[str, str]]:
    """Return the changes of the calls of a task, and the calls."""
    compared = compare_runs(saver, a, b)
    return [
        (call.change, call.text)
        for call in compared.calls
        if call.text.startswith(f"{name}(")
    ]


def call_ids(saver: LMDBSaver, run: str) -> list[str]:
    """Return the ids of a run's trainings in order."""
    reader = StoreReader(saver)
    rows = [row for row in reader.calls(run).rows if row.name == "train"]
    reader.close()
    return [row.id for row in sorted(rows, key=lambda row: row.path)]


def test_calls_are_matched_by_task_and_arguments(saver: LMDBSaver) -> None:
    """A call that one run made twice and the other once is in one run once more."""
    assert [
        ("only a", "hide(depth=1)"),
        ("only a", "hide(depth=4)"),
        ("only b", "hide(depth=2)"),
        ("only b", "hide(depth=8)"),
        ("same", "hide(depth=2)"),
        ("same", "hide(depth=0)"),
    ] == changes(saver, "one", "two", "hide")


def test_results_are_compared_by_all_of_their_values(saver: LMDBSaver) -> None:
    """Also where the previews are equal; equal errors are no difference."""
    trained = changes(saver, "one", "scaled", "train")
    assert ["different"] * 3 + ["same"] == [change for change, _ in trained]
    assert "depth=0" in trained[-1][1]
    assert {"different"} == {
        change for change, _ in changes(saver, "one", "scaled", "hide")
    }
    assert {"same": 8} == compare_runs(saver, "one", "one").counts


def test_equal_results_with_other_bytes_are_the_same(tmp_path: Path) -> None:
    """A list twice in a result is recorded once, its copy is recorded beside it."""
    with LMDBSaver(tmp_path / "copies") as saver:

        @entrypoint(checkpointer=saver)
        def collect(copies: bool) -> int:
            return len(pair(40).result())

        collect.run(False, id="one")
        SCALE["copies"] = 1
        try:
            collect.run(True, id="two")
        finally:
            del SCALE["copies"]
        counts = compare_runs(saver, "one", "two").counts

    assert {"same": 1} == counts


def test_a_different_result_has_the_fields_that_differ(saver: LMDBSaver) -> None:
    compared = compare_runs(saver, "one", "scaled")

    first = next(call for call in compared.calls if call.change == "different")
    assert [("epochs", 3.0, 30.0), ("loss", 1.0, 10.0)] == [*first.results]


def test_the_parameters_that_differ_are_those_of_the_input(saver: LMDBSaver) -> None:
    """Also if only the type differs."""
    with_types = compare_runs(saver, "one", "two").parameters
    scaled = compare_runs(saver, "one", "scaled").parameters

    assert [
        ("depths", "[1, 2, 0, 4]", "[2, 2, 0, 8]"),
        ("seed", 1, 1.0),
    ] == [tuple(difference) for difference in with_types]
    assert [("name", '"usual"', '"other"')] == [*scaled]


def test_runs_have_their_sums_side_by_side(saver: LMDBSaver) -> None:
    compared = compare_runs(saver, "one", "two")

    assert {"done": 7, "failed": 1} == compared.a.states
    assert ["ZeroDivisionError: float division by zero"] == [*compared.a.errors]
    assert compared.a.elapsed > 0
    assert ("two", "done") == (compared.b.run, compared.b.status)


def test_two_calls_of_a_run_are_compared(saver: LMDBSaver) -> None:
    first, second, failed, _ = call_ids(saver, "one")

    compared = compare_calls(saver, ("one", first), ("one", second))
    with_itself = compare_calls(saver, ("one", first), ("one", first))
    with_failed = compare_calls(saver, ("one", first), ("one", failed))

    assert [("params.depth", 1, 2)] == [*compared.arguments]
    assert ("loss", 1.0, 0.5) in compared.results
    assert not compared.is_same_input
    assert not compared.is_same_result
    assert with_itself.is_same_input
    assert with_itself.is_same_result
    assert ("done", "failed") == (with_failed.a.state, with_failed.b.state)


def test_calls_of_two_runs_are_compared(saver: LMDBSaver) -> None:
    a, b = call_ids(saver, "one")[0], call_ids(saver, "scaled")[0]

    compared = compare_calls(saver, ("one", a), ("scaled", b))

    assert compared.is_same_input
    assert () == compared.arguments
    assert not compared.is_same_result


def test_a_graph_without_calls_is_compared_by_its_nodes(tmp_path: Path) -> None:
    with LMDBSaver(tmp_path / "graph") as saver:

        @entrypoint(checkpointer=saver)
        def double(number: int) -> int:
            return 2 * number

        double.run(1, id="one")
        double.run(2, id="two")
        compared = compare_runs(saver, "one", "two")

    assert [("different", "double")] == [
        (call.change, call.text) for call in compared.calls
    ]
    assert [("input", 1, 2)] == [*compared.parameters]


@pytest.mark.parametrize(
    "words", [("one", "three"), ("three", "one"), ("one", "two", "--calls", "x", "y")]
)
def test_what_the_store_does_not_have_is_an_error(cli: Cli, words: Any) -> None:
    answer = cli(*words)

    assert Code.USAGE == answer.exit_code
    assert "has no" in answer.stderr


def test_an_unknown_call_is_an_error(saver: LMDBSaver) -> None:
    with pytest.raises(ConfigurationError, match="run 'one' has no call 'x'"):
        compare_calls(saver, ("one", "x"), ("one", "x"))


def test_the_command_prints_both_runs_and_their_differences(cli: Cli) -> None:
    text = cli("one", "scaled").stdout
    record = json.loads(cli("one", "scaled", "--json").stdout)

    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "A B" == lines[0]
    assert "failed 1 1" in lines
    assert 'name "usual" "other"' in lines
    assert "calls: 7 other result, 1 the same" in lines
    assert any(
        line.startswith("other result train(params.depth=2")
        and line.endswith("epochs=3 loss=0.5 epochs=30 loss=5")
        for line in lines
    )
    assert {"different": 7, "same": 1} == record["counts"]
    assert 8 == len(record["calls"])
    assert ("one", "scaled") == (record["a"]["run"], record["b"]["run"])


def test_unknown_numbers_are_null_and_are_not_printed(tmp_path: Path) -> None:
    """The CPU time of a call whose result came from a cache is unknown, and the peak
    memory of each call that did not run in a worker process.
    """
    store = str(tmp_path / "shared")
    with LMDBSaver(store) as saver:

        @task(executor="inline", cache=True)
        def double(number: int) -> int:
            return 2 * sum(range(number)) + sum(range(100_000))

        @entrypoint(checkpointer=saver)
        def sweep(number: int) -> int:
            return double(number).result()

        sweep.run(1, id="computed")
        sweep.run(1, id="cached")
    words = ["compare", "computed", "cached", "--store", store]
    record = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    text = CliRunner().invoke(app, words).stdout
    (call,) = record["calls"]

    for a, b in ((record["a"], record["b"]), (call["a"], call["b"])):
        assert a["cpu"] > 0
        assert [None] * 3 == [a["peak"], b["cpu"], b["peak"]]
    (line,) = [line for line in text.splitlines() if line.startswith("CPU")]
    assert 3 == len(line.split())  # the name, and the number of the first run
    assert "peak memory" not in text


def test_the_command_prints_two_calls(cli: Cli, saver: LMDBSaver) -> None:
    a, b = call_ids(saver, "one")[0], call_ids(saver, "scaled")[0]

    text = cli("one", "scaled", "--calls", a, b).stdout
    record = json.loads(cli("one", "scaled", "--calls", a, b, "--json").stdout)

    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "argument: the same" in lines
    assert "loss 1 10" in lines
    assert record["is_same_input"]
    assert {"name": "loss", "a": 1.0, "b": 10.0} in record["results"]
