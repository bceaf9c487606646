"""A data file that is corrected while a run is unfinished: a change of input like any
other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowpregel import File
from flowpregel.errors import InputMismatchError, ReplayMismatchError
from flowpregel.func import entrypoint, task
from tests.runs.notes import Notes

pytestmark = pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")

seen = Notes()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


@task(executor="inline")
def number(line: int, table: Any) -> int:
    seen.append(line)
    path = table["table"] if isinstance(table, dict) else table
    return int(Path(path).read_text().split()[line])


@task(executor="inline")
def constant(n: int) -> int:
    seen.append(f"constant {n}")
    return n


def made_in_the_body(saver: Any) -> Any:
    """Return a workflow whose body makes a `File` of the path that it is given."""

    @entrypoint(checkpointer=saver)
    def total(path: str) -> int:
        first = constant(10).result()
        return first + sum(number(line, File(path)).result() for line in range(3))

    return total


def given_as_input(saver: Any) -> Any:
    """Return a workflow that is given a `File`, inside of a dict."""

    @entrypoint(checkpointer=saver)
    def total(table: Any) -> int:
        first = constant(10).result()
        return first + sum(number(line, table).result() for line in range(3))

    return total


Make = Callable[[Any], Any]


@pytest.fixture(params=[made_in_the_body, given_as_input])
def make(request: pytest.FixtureRequest) -> Make:
    """Return what makes the workflow."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A file of which the third line is bad."""
    file = tmp_path / "table.csv"
    file.write_text("1\n2\nx\n")
    return file


def input_of(make: Make, table: Path) -> Any:
    return str(table) if make is made_in_the_body else {"table": File(table)}


@pytest.fixture
def failed(saver: Any, make: Make, table: Path) -> Any:
    """The workflow, whose run 1 has failed at the third line; the file is corrected
    since.
    """
    total = make(saver)
    with pytest.raises(ValueError, match="invalid literal"):
        total.run(input_of(make, table), id="1")
    table.write_text("1\n2\n3000\n")
    seen.clear()
    return total


def test_a_corrected_file_is_another_input(
    failed: Any, make: Make, table: Path
) -> None:
    """The error names the file, and its size and digest then and now."""
    with pytest.raises(InputMismatchError) as raised:
        failed.run(input_of(make, table), id="1")

    assert f"file {str(table)!r} was 6 bytes [" in str(raised.value)
    assert "] and is now 9 bytes [" in str(raised.value)
    assert "adopt=True (--adopt)" in str(raised.value)
    assert [] == [*seen]


def test_adopt_goes_on_with_the_corrected_file(
    failed: Any, make: Make, table: Path
) -> None:
    """What does not depend on the file is not asked again."""
    assert 3013 == failed.run(input_of(make, table), id="1", adopt=True)
    assert [0, 1, 2] == [*seen]


def test_what_was_adopted_need_not_be_adopted_again(
    failed: Any, make: Make, table: Path
) -> None:
    table.write_text("5\n6\ny\n")
    with pytest.raises(ValueError, match="invalid literal"):
        failed.run(input_of(make, table), id="1", adopt=True)
    seen.clear()

    with pytest.raises(ValueError, match="invalid literal"):
        failed.run(input_of(make, table), id="1")
    assert [2] == [*seen]


def test_a_plan_says_so_too(failed: Any, make: Make, table: Path) -> None:
    """As an error of the run, or as `run` does: before the body is gone through."""
    if make is made_in_the_body:
        error = failed.plan(input_of(make, table), id="1").error
        assert error.startswith(
            "InputMismatchError: the run '1' cannot resume with this input: "
        )
    else:
        with pytest.raises(InputMismatchError, match="table"):
            failed.plan(input_of(make, table), id="1")
    assert {"number": 1} == failed.plan(
        input_of(make, table), id="1", adopt=True
    ).would_run


def test_a_call_that_differs_by_chance_says_in_what(saver: Any) -> None:
    """Where both texts are the same."""
    chances = Notes()

    @entrypoint(checkpointer=saver)
    def total(n: int) -> int:
        chances.append(0)
        constant(len([n])).result()
        shown({"chance": len(chances)}).result()
        raise OSError("bad")

    @task(executor="inline")
    def shown(value: Any) -> int:
        return len(value)

    with pytest.raises(OSError, match="bad"):
        total.run(1, id="1")
    with pytest.raises(
        ReplayMismatchError, match=r"they differ in the content of <dict of 1>"
    ):
        total.run(1, id="1")


def test_calls_that_follow_from_a_result_made_anew_are_no_chance(saver: Any) -> None:
    """They are given another result, so they are other calls."""

    def study_of(factor: int) -> Any:
        if factor == 2:

            @task(executor="inline")
            def first(n: int) -> int:
                return 2 * n
        else:

            @task(executor="inline")
            def first(n: int) -> int:
                return 3 * n

        @entrypoint(checkpointer=saver)
        def study(n: int, *, fails: bool = True) -> int:
            result = constant(first(n).result()).result()
            if [*seen].count("fail"):
                raise OSError("bad")
            return result

        return study

    seen.append("fail")
    with pytest.raises(OSError, match="bad"):
        study_of(2).run(1, id="1")
    seen.clear()

    assert 3 == study_of(3).run(1, id="1", on_code_change="rerun")
    assert ["constant 3"] == [*seen]
