"""`Flow.plan`, `flowpregel check` and the fixture: what a run would do, without doing
it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import as_completed
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowpregel._core.records import Address
from flowpregel._inspection.dry_replay import DryRun
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.cli.app import app
from flowpregel.cli.console import Code
from flowpregel.context import interrupt
from flowpregel.errors import FlowMismatchError, InputMismatchError
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from flowpregel.policies import RetryPolicy
from flowpregel.store.memory import InMemoryStore
from flowpregel.testing.plugin import check_runs_fit
from tests.runs.notes import Notes

pytestmark = pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")

seen = Notes()
bad = Notes()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()
    bad.clear()


@task(executor="inline")
def double(n: int) -> int:
    seen.append(n)
    if n in [*bad]:
        raise OSError(f"bad {n}")
    return 2 * n


def other_double() -> Any:
    """Return the task with other code."""

    @task(executor="inline", name="double")
    def doubled(n: int) -> int:
        seen.append(n)
        return n + n

    return doubled


def study_of(saver: Any, called: Any = double, **options: Any) -> Any:
    """Return a workflow that doubles numbers, all asked for at once."""

    def study(numbers: list[int]) -> int:
        return sum(future.result() for future in [called(n) for n in numbers])

    return entrypoint(checkpointer=saver, **options)(study)


@pytest.fixture
def failed(saver: Any) -> Any:
    """A workflow whose run 1, of three numbers, has failed at the second."""
    bad.append(2)
    study = study_of(saver)
    with pytest.raises(OSError, match="bad 2"):
        study.run([1, 2, 3], id="1")
    seen.clear()
    bad.clear()
    return study


def test_of_a_new_run_nothing_is_known(saver: Any) -> None:
    assert DryRun(would_run={"double": 2}) == study_of(saver).plan([1, 2], id="1")
    assert [] == [*seen]
    assert saver.load(Address("1")) is None


def test_a_workflow_without_a_saver_is_planned_too() -> None:
    assert DryRun(would_run={"double": 2}) == study_of(None).plan([1, 2])


def test_calls_that_two_inputs_made_at_one_position_are_both_counted(
    saver: Any,
) -> None:
    """The second call of the first input is 3, that of the second is 4."""
    study = study_of(saver)
    bad.append(0)
    with pytest.raises(OSError, match="bad 0"):
        study.run([1, 3, 0], id="1")
    with pytest.raises(OSError, match="bad 0"):
        study.run([1, 4, 0], id="1", adopt=True)

    found = study.plan([1, 4], id="1", adopt=True)

    assert (2, 1) == (found.answered, found.not_asked)


def test_what_had_finished_is_known(saver: Any, failed: Any) -> None:
    """Nothing runs, and nothing is written."""
    before = saver.load(Address("1"))

    found = failed.plan([1, 2, 3], id="1")

    assert DryRun(answered=2, would_run={"double": 1}) == found
    assert found.fits
    assert (
        "calls: 2 answered, 1 would run (double 1), 0 not made again\n"
        "time: unknown, because too few calls have ended before"
    ) == str(found)
    assert [] == [*seen]
    after = saver.load(Address("1"))
    assert (before.checkpoint.id, repr(before.writes)) == (
        after.checkpoint.id,
        repr(after.writes),
    )
    assert 12 == failed.run([1, 2, 3], id="1")


def test_the_time_of_new_calls_is_estimated_from_finished_runs(tmp_path: Path) -> None:
    """As a range, for as many calls at once as ran at once before."""
    with LMDBSaver(tmp_path / "store") as saver:
        study = study_of(saver)
        study.run([*range(8)], id="1")

        plan = study.plan([*range(100)], id="2")

    assert {"double": 100} == plan.would_run
    assert plan.time is not None
    assert 1 == plan.time.at_once
    assert 0 <= plan.time.range.low < plan.time.range.high
    assert f"time: {plan.time.range}, one call at a time" in str(plan)


def test_the_time_of_new_calls_is_unknown_after_too_few(tmp_path: Path) -> None:
    """Two calls, the calls of another workflow, and those of unfinished runs."""
    with LMDBSaver(tmp_path / "store") as saver:
        study = study_of(saver)
        study.run([1, 2], id="1")

        @entrypoint(checkpointer=saver)
        def other(numbers: list[int]) -> int:
            return sum(future.result() for future in [double(n) for n in numbers])

        other.run([*range(8)], id="other")
        bad.append(9)
        with pytest.raises(OSError, match="bad 9"):
            study.run([*range(10)], id="failed")

        plan = study.plan([1, 2, 3], id="2")

    assert plan.time is None
    assert "time: unknown, because too few calls have ended before" in str(plan)


def test_of_a_run_that_is_done_nothing_would_run(saver: Any) -> None:
    study = study_of(saver)
    study.run([1], id="1")

    assert DryRun(is_done=True) == study.plan([1], id="1")
    assert "finished: its result is stored" == str(study.plan([1], id="1"))


def test_another_input_is_planned_if_it_is_adopted(failed: Any) -> None:
    found = failed.plan([3, 4, 5], id="1", adopt=True)

    assert (1, {"double": 2}, 1) == (found.answered, found.would_run, found.not_asked)
    assert (True, "") == (found.is_changed, found.diff)
    with pytest.raises(InputMismatchError):
        failed.plan([3, 4, 5], id="1")


def test_results_of_other_code_are_named(saver: Any, failed: Any) -> None:
    study = study_of(saver, other_double())
    found = study.plan([1, 2, 3], id="1")

    assert ({"double": 2}, False) == (found.other_code, found.fits)
    assert "results of other code (double 2)" in str(found)
    rerun = study.plan([1, 2, 3], id="1", on_code_change="rerun")
    assert ({"double": 3}, {}) == (rerun.would_run, rerun.other_code)
    refused = study.plan([1, 2, 3], id="1", on_code_change="error")
    assert str(refused.error).startswith("CodeChangedError")


def test_calls_that_a_new_body_does_not_ask_for_are_counted(
    saver: Any, failed: Any
) -> None:
    """Up to the first result that is not known."""

    @entrypoint(checkpointer=saver, adopts="study")
    def study(numbers: list[int]) -> int:
        first = double(0).result()
        return first + sum(double(n).result() for n in numbers)

    found = study.plan([1, 2, 3], id="1")

    assert (0, {"double": 1}, 2) == (found.answered, found.would_run, found.not_asked)
    assert not found.fits
    assert "the code or the input of the body has changed\n--- study, recorded" in str(
        found
    )
    assert "\n+        first = double(0).result()\n" in found.diff
    assert "TaskFunction" not in found.diff


def test_work_of_another_workflow_is_refused(saver: Any, failed: Any) -> None:
    def renamed(numbers: list[int]) -> int:
        return sum(future.result() for future in [double(n) for n in numbers])

    with pytest.raises(FlowMismatchError):
        entrypoint(checkpointer=saver)(renamed).plan([1, 2, 3], id="1")
    adopting = entrypoint(checkpointer=saver, adopts="study")(renamed)
    assert 2 == adopting.plan([1, 2, 3], id="1").answered


def test_a_body_that_leaves_things_to_chance_would_fail(saver: Any) -> None:
    chances = Notes()

    @entrypoint(checkpointer=saver)
    def study(n: int) -> int:
        chances.append(0)
        return double(len(chances)).result() + double(1 / n).result()

    with pytest.raises(ZeroDivisionError):
        study.run(0, id="1")
    found = study.plan(0, id="1")

    assert str(found.error).startswith("ReplayMismatchError: ")
    assert not found.fits


def test_a_body_that_fails_is_not_tried_again(saver: Any) -> None:
    study = entrypoint(
        checkpointer=saver, retry_policy=RetryPolicy(initial_interval=3600)
    )

    @study
    def broken(n: int) -> int:
        raise ValueError(f"no {n}")

    assert "ValueError: no 1" == broken.plan(1, id="1").error


def test_an_async_body_is_planned(saver: Any) -> None:
    @entrypoint(checkpointer=saver)
    async def study(n: int) -> int:
        return await double(n) + await double(n + 1)

    assert {"double": 1} == study.plan(1, id="1").would_run


def test_what_is_answered_comes_before_what_is_not(saver: Any) -> None:
    """Where calls follow the results of others as they come."""

    @entrypoint(checkpointer=saver)
    def chain(numbers: list[int]) -> int:
        firsts = [double(n) for n in numbers]
        seconds = [double(1000 + first.result()) for first in as_completed(firsts)]
        return sum(second.result() for second in seconds)

    bad.append(1002)
    bad.append(39)
    with pytest.raises(OSError, match="bad"):
        chain.run([*range(40)], id="1")
    bad.clear()
    recorded = sum(n not in (1002, 39) for n in seen)
    found = chain.plan([*range(40)], id="1")

    assert (recorded, 0) == (found.answered + found.not_asked, found.not_asked)


@pytest.mark.parametrize("begin", ["run", "start"])
def test_what_the_body_writes_is_not_written(saver: Any, begin: str) -> None:
    """Nor is another run begun."""
    items = InMemoryStore()
    inner = study_of(saver)
    items.put(("a",), "there", {"n": 1})

    @entrypoint(checkpointer=saver, store=items)
    def outer(n: int, *, store: Any) -> int:
        store.put(("a",), "new", {"n": n})
        assert store.get(("a",), "there").value == {"n": 1}
        return int(getattr(inner, begin)([n], id="inner"))

    assert DryRun() == outer.plan(1, id="1")
    assert items.get(("a",), "new") is None
    assert saver.load(Address("inner")) is None


def test_a_run_that_waits_for_an_answer_fits(saver: Any) -> None:
    @task(executor="inline")
    def ask(n: int) -> int:
        return int(interrupt(n))

    @entrypoint(checkpointer=saver)
    def study(n: int) -> int:
        return double(n).result() + ask(n).result()

    study.invoke(1, thread_id="1")

    assert DryRun(answered=1, would_run={"ask": 1}) == study.plan(1, id="1")


# ---------------------------------------------------------------- the runs of a store

Check = Callable[..., Result]
PROGRAM = """
from flowpregel.func import entrypoint, task

@task(executor="inline")
def double(n):
    if n == 2:
        raise OSError("bad 2")
    return 2 * n

@entrypoint()
def checked(numbers):
    print("the body prints")
    return sum(future.result() for future in [double(n) for n in numbers])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store, whose runs of the program in there are one failed and one
    done.
    """
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "program.py").write_text(PROGRAM)
    store, flow = str(tmp_path / "store"), f"{tmp_path / 'program.py'}:checked"
    for name, given, code in (("failed", "[1, 2, 3]", 1), ("done", "[1]", 0)):
        words = ["run", flow, "--id", name, "--input", given, "--store", store]
        assert code == CliRunner().invoke(app, words).exit_code
    yield tmp_path
    sys.modules.pop("program", None)


def changed(folder: Path, *replaced: str) -> None:
    """Change the program, as if the process that checks were a new one."""
    (folder / "program.py").write_text(PROGRAM.replace(*replaced))
    for cached in folder.glob("__pycache__/*"):
        cached.unlink()
    sys.modules.pop("program", None)


def check(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["check", str(folder / "store"), *words])


def test_unfinished_runs_that_fit_are_shown(folder: Path) -> None:
    result = check(folder)

    assert Code.OK == result.exit_code
    assert re.fullmatch(
        r"failed\n"
        r"  calls: 2 answered, 1 would run \(double 1\), 0 not made again\n"
        r"  time: .* s, one call at a time\n"
        r"unfinished runs: 1; runs that do not match the code: 0\n",
        result.stdout,
    )


def test_a_run_that_code_no_longer_fits_fails_the_check(folder: Path) -> None:
    """As JSON, too."""
    changed(folder, "return 2 * n", "return 3 * n")
    shown, rows = check(folder), check(folder, "--json")

    assert Code.FAILED == shown.exit_code == rows.exit_code
    assert "\n  results of other code (double 2)\n" in shown.stdout
    assert "\n  -    return 2 * n\n  +    return 3 * n\n" in shown.stdout
    row, done = json.loads(rows.stdout)
    assert ("done", True, {"double": 1}) == (
        done["thread_id"],
        done["is_done"],
        done["other_code"],
    )
    assert row["diff"].startswith("--- double, recorded\n+++ double, now\n")
    assert {
        "thread_id": "failed",
        "fits": False,
        "other_code": {"double": 2},
    }.items() <= row.items()


def test_a_finished_run_of_other_code_is_shown_unless_it_is_left_out(
    folder: Path,
) -> None:
    changed(folder, "return 2 * n", "return 3 * n")

    assert (
        "done\n  finished: its result is stored\n  results of other"
        in check(folder).stdout
    )
    assert "finished: its result" not in check(folder, "--unfinished").stdout


def test_a_workflow_that_is_gone_fails_the_check(folder: Path) -> None:
    changed(folder, "def checked", "def renamed")
    result = check(folder)

    assert Code.FAILED == result.exit_code
    assert (
        "program:checked' does not exist; the flows of program are: renamed"
        in result.stdout
    )


def test_the_runs_of_one_flow_are_checked(folder: Path) -> None:
    """Those of others are left out."""
    assert "runs: 1;" in check(folder, f"{folder / 'program.py'}:checked").stdout
    assert "runs: 0;" in check(folder, "tests.runs.cli_flows:total").stdout
    assert "runs: 0;" in check(folder, "tests.runs.cli_flows:steps").stdout


def test_nodes_of_a_graph_that_had_finished_are_known(tmp_path: Path) -> None:
    """A run that records no flow is checked with the one that is named."""
    from tests.runs import cli_flows

    def fail(state: Any) -> Any:
        raise OSError("bad")

    builder = (
        StateGraph(cli_flows.State)
        .add_node("add", cli_flows.add)
        .add_node("fail", fail)
    )
    for name in ("add", "fail"):
        builder.add_edge(START, name).add_edge(name, END)
    with LMDBSaver(tmp_path / "store") as saver:
        with pytest.raises(OSError, match="bad"):
            builder.compile(checkpointer=saver, executor="threads").invoke(
                {"n": 1}, thread_id="g"
            )
        graph = builder.compile()

        assert 1 == saver.load(Address("g")).checkpoint.step + 1  # type: ignore[union-attr]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_flows, "checked", graph, raising=False)
        result = check(tmp_path, "tests.runs.cli_flows:checked")

    assert (
        "g\n  calls: 1 answered, 1 would run (fail 1), 0 not made again"
        in result.stdout
    )


GRAPH = """
from typing import Annotated, TypedDict
from flowpregel.context import interrupt
from flowpregel.graph import END, START, StateGraph

def fold(old, new):
    return old + new

class State(TypedDict):
    n: Annotated[int, fold]

def add(state):
    return {"n": 1}

def wait(state):
    return {"n": interrupt("go on?")}

def route(state):
    return "wait" if state["n"] < 9 else END

builder = StateGraph(State).add_node("add", add).add_node("wait", wait)
graph = builder.add_edge(START, "add").add_conditional_edges("add", route).compile()
"""


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('return {"n": 1}', 'return {"n": 2}', "add 1"),
        ("< 9", "< 8", "condition of node add 1"),
        # It has folded the input, too.
        ("old + new", "new + old", "reducer of channel n 2"),
    ],
)
def test_a_graph_with_an_edited_finished_node_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, name: str
) -> None:
    """The node that waits runs again in any case. A condition and a reducer count as
    nodes do.
    """
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "edited_graph.py").write_text(GRAPH)
    with LMDBSaver(tmp_path / "store") as saver:
        graph = import_module("edited_graph").graph.copy({"checkpointer": saver})
        graph.copy({"executor": "inline"}).invoke({"n": 0}, thread_id="1")
    sys.modules.pop("edited_graph")
    words = [f"{tmp_path / 'edited_graph.py'}:graph"]
    assert Code.OK == check(tmp_path, *words).exit_code

    (tmp_path / "edited_graph.py").write_text(GRAPH.replace(old, new))
    for cached in tmp_path.glob("__pycache__/*"):
        cached.unlink()
    sys.modules.pop("edited_graph", None)
    result = check(tmp_path, *words)
    sys.modules.pop("edited_graph", None)

    assert Code.FAILED == result.exit_code
    assert f"results of other code ({name})" in result.stdout
    assert {f"-{line}" for line in GRAPH.splitlines() if old in line} <= {
        *result.stdout.replace("\n  ", "\n").splitlines()
    }


def test_the_fixture_fails_a_test_whose_code_fits_no_more(
    tmp_path: Path, flowpregel_check: Any
) -> None:
    """Also if a run is one of no flow that is given."""
    assert check_runs_fit is flowpregel_check
    store = tmp_path / "store"
    bad.append(2)
    with LMDBSaver(store) as saver, pytest.raises(OSError, match="bad 2"):
        study_of(saver).run([1, 2, 3], id="1")

    flowpregel_check(store, study_of(None))
    with pytest.raises(
        pytest.fail.Exception, match=r"run '1': .*\n.*\nresults of other code"
    ):
        flowpregel_check(store, study_of(None, other_double()))
    with pytest.raises(pytest.fail.Exception, match="FlowMismatchError"):
        flowpregel_check(store, entrypoint(lambda numbers: 0))
    with pytest.raises(AssertionError, match="there is no store"):
        flowpregel_check(tmp_path / "none", study_of(None))
