"""`flowpregel.map`: a plain function and its items, in a program that is killed and run
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import flowpregel
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import (
    ConfigurationError,
    FlowMismatchError,
    InputMismatchError,
    RunNotice,
)
from tests.runs.crashes import Once
from tests.runs.functional.killed_programs import run_program
from tests.runs.notes import Notes

PLAIN = {"progress": False, "executor": "threads"}


def double(n: int) -> int:
    return 2 * n


@pytest.mark.parametrize("chunksize", [1, 3])
def test_results_come_in_the_order_of_the_items(chunksize: int) -> None:
    """In a list, as from the built-in of that name."""
    store = InMemorySaver()

    found = flowpregel.map(
        double, iter(range(7)), store=store, id="a", chunksize=chunksize, **PLAIN
    )

    assert [0, 2, 4, 6, 8, 10, 12] == found


@pytest.mark.parametrize(
    ("items", "store", "told"),
    [
        (5, "memory", r"items=5\): use a list, or another iterable"),
        ([1], None, r"store=None, id='a'\): nothing is stored, so leave out the id"),
    ],
)
def test_what_cannot_be_mapped_is_refused(items: Any, store: Any, told: str) -> None:
    """The message says what to write."""
    with pytest.raises(ConfigurationError, match=told):
        flowpregel.map(double, items, store=store and InMemorySaver(), id="a", **PLAIN)


def test_what_has_ended_is_not_called_again(tmp_path: Path) -> None:
    """Neither after a failure, nor once all have ended."""
    ran, crash = Notes(), Once(OSError("not yet"))

    def inverse(n: int) -> float:
        ran.append(n)
        if n == 4:
            crash()
        return 1 / n

    def run() -> list[float]:
        return flowpregel.map(
            inverse, [1, 2, 4], store=tmp_path / "store", id="a", **PLAIN
        )

    with pytest.raises(OSError, match="not yet"):
        run()

    assert [1.0, 0.5, 0.25] == run() == run()
    assert [1, 2, 4, 4] == sorted(ran)


def test_other_items_under_the_same_id_are_refused_unless_they_are_adopted() -> None:
    """Then those that were there before are not asked again."""
    ran, store = Notes(), InMemorySaver()

    def note(n: int) -> int:
        ran.append(n)
        return n

    flowpregel.map(note, [1, 2], store=store, id="a", **PLAIN)
    with pytest.raises(InputMismatchError):
        flowpregel.map(note, [1, 2, 3], store=store, id="a", **PLAIN)
    with pytest.warns(RunNotice, match="2 answered from the record, 1 executed"):
        found = flowpregel.map(
            note, [1, 2, 3], store=store, id="a", adopt=True, **PLAIN
        )

    assert [1, 2, 3] == found
    assert [1, 2, 3] == sorted(ran)


def test_an_id_belongs_to_one_function() -> None:
    """Another one's results are never taken for its own."""
    store = InMemorySaver()
    flowpregel.map(double, [1], store=store, id="a", **PLAIN)

    with pytest.raises(FlowMismatchError):
        flowpregel.map(abs, [1], store=store, id="a", **PLAIN)


def test_options_are_those_of_tasks() -> None:
    """And one that there is not is refused by name."""
    store = InMemorySaver()
    found = flowpregel.map(
        lambda n: 1 / n,
        [1, 0],
        store=store,
        id="a",
        errors="return",
        name="inverse",
        **PLAIN,
    )

    assert 1.0 == found[0]
    assert isinstance(found[1], ZeroDivisionError)
    with pytest.raises(TypeError, match="no option 'speed'"):
        flowpregel.map(double, [1], store=store, id="b", speed=3)


def test_progress_may_be_whatever_wraps_an_iterable() -> None:
    """As tqdm and rich do."""
    seen: list[Any] = []

    def track(results: Iterable[Any], total: int) -> Iterable[Any]:
        seen.append(total)
        for each in results:
            seen.append(each)
            yield each

    how = {**PLAIN, "progress": track}

    assert [2, 4] == flowpregel.map(
        double, [1, 2], store=InMemorySaver(), id="a", **how
    )
    assert [2, 2, 4] == seen


PROGRAM = """
import os
import flowpregel

DIES_AT = int(os.environ.get("DIES_AT", "0"))


def square(n):
    with open("ran", "a") as ran:
        ran.write(f"{n}\\n")
    return n * n


def items():
    yield from range(1, 9)


def died(results, total):
    for count, each in enumerate(results, 1):
        yield each
        if count == DIES_AT:
            os.kill(os.getpid(), 9)


if __name__ == "__main__":
    results = flowpregel.map(square, items(), store="runs.lmdb", id="a", progress=died)
    print(sum(results))
"""


@pytest.mark.slow
def test_a_program_that_was_killed_goes_on(tmp_path: Path) -> None:
    """In worker processes, without anything but the one line."""
    (tmp_path / "program.py").write_text(PROGRAM)

    run = partial(run_program, tmp_path)

    assert (-9, "") == run(dies_at=5)
    assert (0, "204") == run()
    ran = (tmp_path / "ran").read_text().split()
    assert (0, "204") == run()

    assert set(map(str, range(1, 9))) == set(ran)
    assert ran == (tmp_path / "ran").read_text().split()
