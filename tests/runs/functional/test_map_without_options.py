"""`flowpregel.map` and `flowpregel.imap` with nothing but a function and items: the
store is `.flowpregel`, and the run has the name of the function.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import flowpregel
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import (
    ConfigurationError,
    InputMismatchError,
    RunNotice,
    StoreError,
)
from flowpregel.func import entrypoint
from tests.runs.functional.killed_programs import run_program
from tests.runs.notes import Notes

PLAIN: Any = {"progress": False, "executor": "threads"}
ran = Notes()


def double(n: int) -> int:
    ran.append(n)
    return 2 * n


def read_imap(*args: Any, **options: Any) -> list[Any]:
    """Return all results of `flowpregel.imap` as a list."""
    return list(flowpregel.imap(*args, **options))


BOTH = pytest.mark.parametrize("mapped", [flowpregel.map, read_imap])


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of each test, in which no store exists yet."""
    monkeypatch.chdir(tmp_path)
    ran.clear()
    return tmp_path


@BOTH
def test_the_second_call_returns_the_stored_results(mapped: Callable[..., Any]) -> None:
    """Without calling the function."""
    assert [2, 4, 6] == mapped(double, [1, 2, 3], **PLAIN)
    assert [2, 4, 6] == mapped(double, [1, 2, 3], **PLAIN)

    assert [1, 2, 3] == sorted(ran)


@BOTH
def test_the_store_is_hidden_from_git_and_named_once(
    mapped: Callable[..., Any],
    working_directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On stderr, with the way to go on."""
    mapped(double, [1], **PLAIN)
    first = capsys.readouterr()
    mapped(double, [1], **PLAIN)
    second = capsys.readouterr()

    store = working_directory / ".flowpregel"
    assert "*\n" == (store / ".gitignore").read_text()
    assert f"results are stored in {store}. Run the program again" in first.err
    assert ("", "", "") == (first.out, second.out, second.err)


@BOTH
def test_other_items_run_only_what_is_new(mapped: Callable[..., Any]) -> None:
    """With the notice of a run whose input has changed."""
    mapped(double, [1, 2], **PLAIN)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [6, 2, 4] == mapped(double, [3, 1, 2], **PLAIN)

    (notice,) = [each for each in caught if each.category is RunNotice]
    assert "2 answered from the record, 1 executed" in str(notice.message)
    assert __file__ == notice.filename
    assert [1, 2, 3] == sorted(ran)


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
@BOTH
def test_two_maps_of_one_function_keep_the_results_of_both(
    mapped: Callable[..., Any],
) -> None:
    """Even where the program is run again and again."""
    for _ in range(3):
        assert [2, 4] == mapped(double, [1, 2], **PLAIN)
        assert [20] == mapped(double, [10], **PLAIN)

    assert [1, 2, 10] == sorted(ran)


@BOTH
def test_a_store_that_was_deleted_starts_over(
    mapped: Callable[..., Any], working_directory: Path
) -> None:
    """In the same program as well, such as a notebook."""
    assert [2, 4] == mapped(double, [1, 2], **PLAIN)
    shutil.rmtree(working_directory / ".flowpregel")

    assert [2, 4] == mapped(double, [1, 2], **PLAIN)
    assert [2, 4] == mapped(double, [1, 2], **PLAIN)
    assert [1, 1, 2, 2] == sorted(ran)


@BOTH
def test_a_run_that_has_failed_goes_on_in_chunks_of_another_size(
    mapped: Callable[..., Any], tmp_path: Path
) -> None:
    """The items are computed again, as the notice says."""

    mended = tmp_path / "mended"

    def double_later(n: int) -> int:
        ran.append(n)
        if n == 3 and not mended.exists():
            raise ConnectionError
        return 2 * n

    with pytest.raises(ConnectionError):
        mapped(double_later, [1, 2, 3], **PLAIN)
    mended.touch()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [2, 4, 6] == mapped(double_later, [1, 2, 3], chunksize=2, **PLAIN)
    assert "do not match the calls made now" in str(caught[0].message)
    assert [2, 4, 6] == mapped(double_later, [1, 2, 3], chunksize=2, **PLAIN)
    assert [1, 1, 2, 2, 3, 3] == sorted(ran)


class Model:
    """A model whose method is mapped."""

    def __init__(self, weight: int) -> None:
        self.weight = weight

    def predict(self, n: int) -> int:
        ran.append(n)
        return self.weight * n


def scaled(weight: int, n: int) -> int:
    ran.append(n)
    return weight * n


def closure(weight: int) -> Callable[[int], int]:
    def inner(n: int) -> int:
        ran.append(n)
        return weight * n

    return inner


@pytest.mark.filterwarnings("ignore::flowpregel.errors.RunNotice")
@pytest.mark.parametrize(
    "make",
    [
        lambda weight: Model(weight).predict,
        lambda weight: partial(scaled, weight),
        closure,
        lambda weight: lambda n: ran.append(n) or weight * n,
    ],
    ids=["method", "partial", "closure", "lambda"],
)
@BOTH
def test_functions_of_one_name_never_share_results(
    mapped: Callable[..., Any], make: Callable[[int], Any]
) -> None:
    """What a function has captured belongs to it, like its code."""
    for _ in range(2):
        assert [2, 4] == mapped(make(2), [1, 2], **PLAIN)
        assert [3, 6] == mapped(make(3), [1, 2], **PLAIN)

    assert [1, 1, 2, 2] == sorted(ran)


@BOTH
def test_without_a_store_nothing_is_kept(
    mapped: Callable[..., Any], working_directory: Path
) -> None:
    """And no folder is created."""
    assert [2] == mapped(double, [1], store=None, **PLAIN)
    assert [2] == mapped(double, [1], store=None, **PLAIN)

    assert [1, 1] == ran
    assert [] == list(working_directory.iterdir())


@BOTH
def test_a_default_store_that_cannot_be_used_has_a_way_out(
    mapped: Callable[..., Any], working_directory: Path
) -> None:
    """In a note of the error."""
    (working_directory / ".flowpregel").write_text("a file")

    with pytest.raises(StoreError, match="is a file") as caught:
        mapped(double, [1], **PLAIN)

    (note,) = caught.value.__notes__
    assert "or store=None to store nothing" in note


@BOTH
def test_maps_of_one_function_at_the_same_time_wait_for_each_other(
    mapped: Callable[..., Any],
) -> None:
    """Each gets the results of its own items."""
    results: dict[int, Any] = {}

    def run(first: int) -> None:
        results[first] = mapped(double, range(first, first + 3), **PLAIN)

    threads = [threading.Thread(target=run, args=(first,)) for first in (0, 10, 20)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunNotice)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    expected = {first: [2 * first, 2 * first + 2, 2 * first + 4] for first in results}
    assert [0, 10, 20] == sorted(results)
    assert expected == results


def test_progress_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nowhere else, unless it is asked for."""
    how: Any = {"executor": "threads", "store": None}
    flowpregel.map(double, [1], **how)
    quiet = capsys.readouterr().err
    flowpregel.map(double, [1], progress=True, **how)
    asked = capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    flowpregel.map(double, [1], **how)
    shown = capsys.readouterr().err

    assert "" == quiet
    assert "map double" in asked
    assert "map double" in shown


def test_a_stream_takes_items_as_its_results_are_read() -> None:
    """So the items may be endless, and leaving the loop stops the run."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for n in count():
            taken.append(n)
            yield n

    stream = flowpregel.imap(double, items(), window=2, **PLAIN)
    assert [0, 2, 4] == [next(stream) for _ in range(3)]
    stream.close()

    # Of the results, two were not read, and two more calls are under way.
    assert len(taken) <= 3 + 2 + 2 + 1
    assert not [
        t for t in threading.enumerate() if t.name.startswith("flowpregel-test")
    ]


def test_a_stream_that_was_left_resumes() -> None:
    """The results that were read are not computed again."""
    first = flowpregel.imap(double, range(50), window=1, **PLAIN)
    assert [0, 2, 4] == [next(first) for _ in range(3)]
    first.close()

    assert [2 * n for n in range(50)] == read_imap(double, range(50), **PLAIN)
    assert [1, 1, 1] == [[*ran].count(n) for n in range(3)]


def test_a_failure_is_raised_in_the_loop() -> None:
    """After the results before it."""

    def inverse(n: int) -> float:
        return 1 / n

    stream = flowpregel.imap(inverse, [1, 2, 0, 4], window=1, **PLAIN)

    assert [1.0, 0.5] == [next(stream), next(stream)]
    with pytest.raises(ZeroDivisionError):
        next(stream)
    mixed = read_imap(inverse, [2, 0], errors="return", store=None, **PLAIN)
    assert 0.5 == mixed[0]
    assert isinstance(mixed[1], ZeroDivisionError)


def test_a_list_under_an_id_of_its_own_is_compared() -> None:
    """As by `map`; an iterator is not, because it is read only once."""
    how = {**PLAIN, "store": InMemorySaver(), "id": "a"}
    assert [2] == read_imap(double, [1], **how)

    with pytest.raises(InputMismatchError):
        read_imap(double, [2], **how)
    with pytest.warns(RunNotice, match="1 answered"):
        assert [2, 4] == read_imap(double, iter([1, 2]), **how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"items": 5}, r"imap\(items=5\): use a list"),
        ({"window": 0}, r"imap\(window=0\)"),
        ({"chunksize": 0}, r"imap\(chunksize=0\)"),
        ({"store": None, "id": "a"}, r"imap\(store=None, id='a'\): nothing is stored"),
    ],
)
def test_mistakes_are_named_before_the_first_result(
    how: dict[str, Any], message: str
) -> None:
    """At the call, not in the loop."""
    with pytest.raises(ConfigurationError, match=message):
        flowpregel.imap(double, **{"items": [1], **how})


@pytest.mark.parametrize("method", [flowpregel.map, flowpregel.imap])
def test_the_signature_shows_the_defaults(method: Callable[..., Any]) -> None:
    """For editors and `help`."""
    parameters = inspect.signature(method).parameters

    assert ".flowpregel" == parameters["store"].default
    assert parameters["id"].default is None


def test_a_handle_calls_back_when_its_run_has_ended() -> None:
    """Also if it has ended before."""
    called: list[str] = []

    @entrypoint()
    def flow(n: int) -> int:
        return n

    handle = flow.start(1)
    handle.result(60)
    handle.add_done_callback(lambda ended: called.append(ended.status))

    assert ["done"] == called


PROGRAM = """
import os
import flowpregel

DIES_AT = int(os.environ["DIES_AT"])


def square(n):
    with open("ran", "a") as ran:
        ran.write(f"{n}\\n")
    return n * n


def killed(results, total):
    for count, result in enumerate(results, 1):
        yield result
        if count == DIES_AT:
            os.kill(os.getpid(), 9)


print(sum(flowpregel.METHOD(square, range(1, 9), progress=killed)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["map", "imap"])
def test_a_script_that_is_killed_twice_goes_on(tmp_path: Path, method: str) -> None:
    """Then it gives its result, and the same once more, without another call."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("METHOD", method))

    run = partial(run_program, tmp_path)

    assert (-9, "") == run(dies_at=3)
    assert (-9, "") == run(dies_at=6)
    assert (0, "204") == run()
    calls = (tmp_path / "ran").read_text().split()
    assert (0, "204") == run()

    assert set(map(str, range(1, 9))) == set(calls)
    assert calls == (tmp_path / "ran").read_text().split()
