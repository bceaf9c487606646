"""The command `why` for calls whose results are shared in a cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowpregel.cli.app import app
from tests.runs import sharing_flows
from tests.runs.sharing_flows import FLOWS, study
from tests.runs.stores import saver_at

Why = Callable[[str, str], str]
Run = Callable[..., int]
FOUND = "a new run uses the result in the cache"
OTHER_CODE = "the results in the cache were computed by other code"


@pytest.fixture
def run(store: str) -> Iterator[Run]:
    """A function that runs the workflow with an id."""
    with saver_at(store) as saver:
        yield study.copy({"checkpointer": saver}).run


@pytest.fixture
def why(store: str) -> Why:
    """A function that returns what `why` shows about the cache of a call."""

    def why(thread: str, call: str) -> str:
        words = ["why", thread, call, "--flow", f"{FLOWS}:study", "--store", store]
        result = CliRunner().invoke(app, [*words, "--json"])
        assert 0 == result.exit_code, result.output
        return str(json.loads(result.stdout).get("cache"))

    return why


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that changes a constant in the code of a task."""
    return lambda: monkeypatch.setattr(sharing_flows, "RATE", 3)


def test_a_result_that_a_new_run_would_use(run: Run, why: Why) -> None:
    run([1, 2], id="1")

    for call in ("scale(1)", "add(", "scale(offset"):
        assert FOUND == why("1", call)


def test_a_result_that_other_code_would_compute_again(
    run: Run, why: Why, edit: Callable[[], None]
) -> None:
    """With the words of the notice of such a run."""
    run([1, 2], id="1")
    edit()

    change = f"{OTHER_CODE}, and are computed again: constant RATE: 2 -> 3"
    assert change == why("1", "scale(1)")


def test_a_result_that_was_computed_again_because_of_other_code(
    run: Run, why: Why, edit: Callable[[], None]
) -> None:
    run([1, 2], id="1")
    edit()
    run([1, 2], id="2")

    reason = f"this run computed it, because {OTHER_CODE}: constant RATE: 2 -> 3"
    assert f"{FOUND}; {reason}" == why("2", "scale(1)")
    assert FOUND == why("1", "scale(1)")


def test_arguments_that_differ_from_those_of_an_earlier_run(run: Run, why: Why) -> None:
    """Of the same call: with the same text, or at the same position."""
    run([1, 2], id="1")
    run([1, 5], id="2")

    reason = "this run computed it, because argument"
    assert f"{FOUND}; {reason} number: 2 -> 5" == why("2", "scale(5)")
    assert f"{FOUND}; {reason} numbers: '[2, 4]' -> '[2, 10]'" == why("2", "add(")
    assert FOUND == why("2", "scale(1)")


def test_a_call_that_no_earlier_run_made(run: Run, why: Why) -> None:
    run([1], id="1")
    run([1, 7, 8, 9, 10], id="2")

    reason = "this run computed it, because no earlier run had these arguments"
    assert f"{FOUND}; {reason}" == why("2", "scale(10)")


def test_a_file_that_has_changed(run: Run, why: Why, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a\n")
    run([1], str(table), id="1")
    table.write_text("a\nb\n")

    before = why("1", "size(")
    run([1], str(table), id="2")
    after = why("2", "size(")

    change = f"file '{table}' was 2 bytes ["
    assert before.startswith(f"a new run has another key: {change}")
    assert after.startswith(f"{FOUND}; this run computed it, because {change}")
    assert "] and is now 4 bytes [" in before
    assert "] and is now 4 bytes [" in after


def test_a_result_that_is_gone(run: Run, why: Why, store: str) -> None:
    run([1], id="1")
    with saver_at(store) as saver:
        sharing_flows.scale.clear_cache(saver)

    gone = "the cache has no result for these arguments; a new run computes it"
    assert gone == why("1", "scale(1)")


def test_arguments_that_are_not_recorded_in_full(run: Run, why: Why) -> None:
    run([1], text="long " * 100, id="1")

    unknown = "cannot be found in the cache, because the arguments are not recorded"
    assert unknown in why("1", "length(")


def test_tasks_without_a_key_to_compare(run: Run, why: Why) -> None:
    run([1], id="1")

    assert "the key is made by the key_func of the task" in why("1", "keyed(")
    assert "None" == why("1", "alone(")
