"""A finished run that is asked for again after a file was corrected that its calls had
taken: told as changed code is.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver as LanggraphSaver

from flowpregel import File
from flowpregel._core.files import MOST_FILES
from flowpregel.errors import InputMismatchError, RunNotice
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from tests.runs.notes import Notes

pytestmark = pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")

seen = Notes()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


@task(executor="inline")
def number(line: int, table: Any) -> int:
    """Return the number on one line of a file."""
    seen.append(line)
    return int(Path(table).read_text().split()[line])


@task(executor="inline")
def constant(n: int) -> int:
    """Return *n*."""
    seen.append(f"constant {n}")
    return n


def total_of(saver: Any) -> Any:
    """Return a workflow whose body makes a `File` of the path that it is given."""

    @entrypoint(checkpointer=saver)
    def total(path: str) -> int:
        first = constant(10).result()
        return first + sum(number(line, File(path)).result() for line in range(2))

    return total


def run_with_notices(flow: Any, *args: Any, **options: Any) -> tuple[Any, list[str]]:
    """Return what a run returns, and its notices."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = flow.run(*args, **options)
    notices = [str(each.message) for each in caught if each.category is RunNotice]
    return result, notices


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A file of two numbers."""
    file = tmp_path / "table.csv"
    file.write_text("1\n2\n")
    return file


@pytest.fixture
def finished(saver: Any, table: Path) -> Any:
    """The workflow, whose run 1 is done."""
    total = total_of(saver)
    assert 13 == total.run(str(table), id="1")
    seen.clear()
    return total


@pytest.fixture
def corrected(finished: Any, table: Path) -> Any:
    """The same workflow, the file being corrected since."""
    table.write_text("1\n2000\n")
    return finished


def test_a_file_that_is_what_it_was_gives_no_notice(finished: Any, table: Path) -> None:
    """Also one that was written again with the same content."""
    assert (13, []) == run_with_notices(finished, str(table), id="1")
    table.write_text("1\n2\n")
    assert (13, []) == run_with_notices(finished, str(table), id="1")
    assert [] == [*seen]


def test_a_kept_result_of_a_corrected_file_says_so_in_one_notice(
    corrected: Any, table: Path
) -> None:
    """With its date, the file, and its size and digest then and now; nothing runs."""
    result, (notice,) = run_with_notices(corrected, str(table), id="1")

    assert 13 == result
    assert [] == [*seen]
    assert notice.startswith("stored result of 20")
    assert f"file {str(table)!r} was 4 bytes [" in notice
    assert "] and is now 7 bytes [" in notice
    assert "on_code_change='rerun' or again=True" in notice


def test_a_file_of_the_same_size_is_compared_by_its_content(
    finished: Any, table: Path
) -> None:
    table.write_text("1\n3\n")

    _, (notice,) = run_with_notices(finished, str(table), id="1")

    assert "was 4 bytes [" in notice
    assert "and is now 4 bytes [" in notice


@pytest.mark.parametrize("options", [{"on_code_change": "rerun"}, {"adopt": True}])
def test_rerun_and_adopt_make_the_calls_anew_that_took_the_file(
    corrected: Any, table: Path, options: Any
) -> None:
    """The new result is kept as others are: the next time nothing runs, without a
    notice.
    """
    assert 2011 == corrected.run(str(table), id="1", **options)
    assert [0, 1] == [*seen]
    assert (2011, []) == run_with_notices(corrected, str(table), id="1")
    values = [each.values for each in corrected.get_state_history(thread_id="1")]
    assert [2011, 13] == values[:2]


def test_rerun_runs_nothing_if_the_file_is_what_it_was(
    finished: Any, table: Path
) -> None:
    assert 13 == finished.run(str(table), id="1", on_code_change="rerun")
    assert [] == [*seen]


def test_error_refuses_the_kept_result(corrected: Any, table: Path) -> None:
    """With the error that an unfinished run has for such a file."""
    with pytest.raises(InputMismatchError, match="was 4 bytes"):
        corrected.run(str(table), id="1", on_code_change="error")
    assert [] == [*seen]


def test_a_failed_rerun_leaves_the_kept_result_and_its_notice(
    finished: Any, table: Path
) -> None:
    table.write_text("1\nx\n")
    with pytest.raises(ValueError, match="invalid literal"):
        finished.run(str(table), id="1", on_code_change="rerun")

    result, (notice,) = run_with_notices(finished, str(table), id="1")
    assert 13 == result
    assert "file " in notice


def test_a_file_that_is_gone_is_not_compared(finished: Any, table: Path) -> None:
    """There is nothing to make another result of."""
    table.unlink()

    assert (13, []) == run_with_notices(finished, str(table), id="1")


def test_a_plan_names_the_file_too(corrected: Any, table: Path) -> None:
    plan = corrected.plan(str(table), id="1")

    assert plan.is_done
    assert f"file {str(table)!r} was 4 bytes [" in str(plan)
    assert not plan.fits


def test_a_plan_of_a_rerun_counts_the_calls_that_took_the_file(
    corrected: Any, table: Path
) -> None:
    plan = corrected.plan(str(table), id="1", on_code_change="rerun")

    assert {"number": 1} == plan.would_run  # the second one waits for its result
    assert 1 == plan.answered
    assert plan.error is None
    assert [] == [*seen]


def test_a_file_taken_by_a_node_of_a_graph_is_compared_too(
    saver: Any, table: Path
) -> None:
    """If the graph is gone on with."""

    class State(TypedDict, total=False):
        path: str
        total: int

    def add_up(state: State) -> State:
        seen.append("node")
        return {"total": number(1, File(state["path"])).result()}

    builder = StateGraph(State).add_node("add_up", add_up)
    graph = builder.add_edge(START, "add_up").add_edge("add_up", END)
    app = graph.compile(checkpointer=saver)
    assert 2 == app.invoke({"path": str(table)}, thread_id="1", run_id="r")["total"]
    table.write_text("1\n2000\n")

    given = {"path": str(table)}
    with pytest.warns(RunNotice, match="was 4 bytes"):
        assert 2 == app.invoke(given, thread_id="1", run_id="r")["total"]
    options = {"thread_id": "1", "run_id": "r", "on_code_change": "rerun"}
    assert 2000 == app.invoke(given, **options)["total"]


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_saver_of_langgraph_keeps_the_files_too(table: Path, durability: Any) -> None:
    total = total_of(LanggraphSaver())
    assert 13 == total.run(str(table), id="1", durability=durability)
    table.write_text("1\n2000\n")

    result, (notice,) = run_with_notices(total, str(table), id="1")
    assert 13 == result
    assert "was 4 bytes" in notice


def test_a_file_that_was_not_touched_is_not_read_again(
    finished: Any, table: Path
) -> None:
    """Its digest is known by its inode, size and time. So an edit that keeps all three
    is not seen.
    """
    assert (13, []) == run_with_notices(finished, str(table), id="1")
    old = 1_600_000_000
    os.utime(table, (old, old))
    assert (13, []) == run_with_notices(finished, str(table), id="1")

    with table.open("r+") as file:
        file.write("9")
    os.utime(table, (old, old))
    assert (13, []) == run_with_notices(finished, str(table), id="1")

    os.utime(table, (old + 1, old + 1))
    assert 1 == len(run_with_notices(finished, str(table), id="1")[1])


def test_a_file_that_the_run_itself_rewrites_gives_no_notice(
    saver: Any, tmp_path: Path
) -> None:
    """Any content that a call took is one that the file may have."""
    file = tmp_path / "sums.txt"

    @entrypoint(checkpointer=saver)
    def total(n: int) -> int:
        lines = 0
        for text in ("1\n", "1\n2\n", "1\n"):
            file.write_text(text)
            lines += number(0, File(str(file))).result()
        return lines

    assert 3 == total.run(1, id="1")
    assert (3, []) == run_with_notices(total, 1, id="1")


@task
def first_number(table: File) -> int:
    """Return the number on the first line of a file."""
    return int(Path(table).read_text().split()[0])


def test_files_of_chunks_and_of_tasks_in_processes_are_compared(
    saver: Any, table: Path, tmp_path: Path
) -> None:
    """The calls that are made anew are those of the chunk that has the file."""
    other = tmp_path / "other.csv"
    other.write_text("5\n")

    @entrypoint(checkpointer=saver)
    def total(paths: list[str]) -> int:
        files = [File(path) for path in paths]
        return sum(future.result() for future in first_number.map(files, chunksize=1))

    paths = [str(table), str(other)]
    assert 6 == total.run(paths, id="1")
    other.write_text("70\n")

    result, (notice,) = run_with_notices(total, paths, id="1")
    assert 6 == result
    assert f"file {str(other)!r} was 2 bytes" in notice
    assert repr(str(table)) not in notice
    assert 71 == total.run(paths, id="1", on_code_change="rerun")


def test_the_number_of_files_that_are_compared_is_bounded(
    saver: Any, tmp_path: Path
) -> None:
    """Of a body the first ones that its calls took: a run of a million files keeps no
    list of them.
    """
    paths = [tmp_path / f"{number}.txt" for number in range(MOST_FILES + 1)]
    for path in paths:
        path.write_text("1")

    @task(executor="inline")
    def count(files: list[File]) -> int:
        return len(files)

    @entrypoint(checkpointer=saver)
    def total(n: int) -> int:
        return count([File(str(path)) for path in paths]).result()

    assert MOST_FILES + 1 == total.run(1, id="1")
    paths[-1].write_text("22")
    assert [] == run_with_notices(total, 1, id="1")[1]
    paths[-2].write_text("22")
    assert 1 == len(run_with_notices(total, 1, id="1")[1])


@pytest.mark.parametrize("name", ["file reader", "condition reader"])
def test_a_task_may_be_named_like_what_is_no_task(saver: Any, name: str) -> None:
    """Its code is compared as that of any other task."""

    def total_with(factor: int) -> Any:
        @task(executor="inline", name=name, version=str(factor))
        def read(n: int) -> int:
            return factor * n

        @entrypoint(checkpointer=saver)
        def total(n: int) -> int:
            return read(n).result()

        return total

    assert 2 == total_with(2).run(1, id="1")

    result, (notice,) = run_with_notices(total_with(3), 1, id="1")
    assert 2 == result
    assert f"the code of `{name}` has changed since" in notice
