"""`joblib_backend`: what joblib and scikit-learn run, in a program that is killed and
run again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import RunNotice, TaskCancelled
from flowpregel.plugins.joblib import joblib_backend
from tests.runs.notes import Notes
from tests.runs.stores import ROOT

joblib = pytest.importorskip("joblib", reason="joblib is not installed")

pytestmark = pytest.mark.slow
ran = Notes()


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Forget what other tests have called."""
    ran.clear()


def note(notes: Notes, n: int) -> int:
    notes.append(n)
    if n == 7:
        raise LookupError("seven")
    return n * n


def squares(numbers: Iterable[int], **how: Any) -> list[int]:
    return list(joblib.Parallel(**how)(joblib.delayed(note)(ran, n) for n in numbers))


@pytest.mark.parametrize("batch_size", ["auto", 2])
def test_calls_that_have_ended_are_not_made_again(
    tmp_path: Path, batch_size: Any
) -> None:
    """Not in a block that goes on with what is finished, and asks for more."""
    with joblib_backend(store=tmp_path / "store", id="a"):
        first = squares(range(4), batch_size=batch_size)
    with (
        pytest.warns(RunNotice, match="executed"),
        joblib_backend(tmp_path / "store", "a"),
    ):
        second = squares(range(6), batch_size=batch_size)

    assert [0, 1, 4, 9] == first
    assert [0, 1, 4, 9, 16, 25] == second
    assert [0, 1, 2, 3, 4, 5] == sorted(ran)


def test_what_failed_is_tried_again_and_what_ended_is_not(tmp_path: Path) -> None:
    """The failure is raised as joblib does."""
    for _ in range(2):
        with (
            pytest.raises(LookupError, match="seven"),
            joblib_backend(tmp_path / "store", "a"),
        ):
            squares(range(5, 8), pre_dispatch=1)

    assert [5, 6, 7, 7] == sorted(ran)


def squares_until(left_by: type[BaseException]) -> None:
    """Call some, and end."""
    squares(range(3))
    raise left_by


@pytest.mark.parametrize("left_by", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_is_left_can_be_gone_on_with(
    tmp_path: Path, left_by: type[BaseException]
) -> None:
    """Also by Ctrl-C, or where the program ends in it."""
    with pytest.raises(left_by), joblib_backend(tmp_path / "store", "a"):
        squares_until(left_by)
    with joblib_backend(tmp_path / "store", "a"):
        found = squares(range(5))

    assert [0, 1, 4, 9, 16] == found
    assert [0, 1, 2, 3, 4] == sorted(ran)


def squares_after_cancel(store: Path) -> None:
    """Cancel the run of a block, and make calls in the block until that fails."""
    with joblib_backend(store, "a"):
        squares([1])
        with LMDBSaver(store) as saver:
            assert saver.cancel("a") is not None
        for number in range(10_000):
            squares([number + 8])


def test_a_block_ends_when_its_run_is_cancelled(tmp_path: Path) -> None:
    """The body waits for the block alone, and the block makes no further calls."""
    with pytest.raises(TaskCancelled):
        squares_after_cancel(tmp_path / "store")

    assert len(ran) < 10_000


def test_results_come_while_others_run(tmp_path: Path) -> None:
    """A generator of them works as well."""
    with joblib_backend(store=tmp_path / "store", id="a"):
        found = squares(range(5), return_as="generator")
        unordered = squares(range(8, 13), return_as="generator_unordered")

    assert [0, 1, 4, 9, 16] == found
    assert [64, 81, 100, 121, 144] == sorted(unordered)


def run(program: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Run a program in its folder; return its exit code, and what it printed."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    return done.returncode, done.stdout.strip()


PROGRAM = """
import os
from joblib import Parallel, delayed
from flowpregel.plugins.joblib import joblib_backend


def square(n):
    with open("ran", "a") as ran:
        ran.write(f"{n}\\n")
    return n * n


if __name__ == "__main__":
    with joblib_backend(store="runs.lmdb", id="a"):
        total = 0
        squares = Parallel(return_as="generator")(map(delayed(square), range(9)))
        for n, each in enumerate(squares):
            total += each
            if n == 5 and "DIES" in os.environ:
                os.kill(os.getpid(), 9)
    print(total)
"""


def test_a_program_that_was_killed_goes_on(tmp_path: Path) -> None:
    """At most what was in flight, or not yet on disk, is called again."""
    assert (-9, "") == run(PROGRAM, tmp_path, DIES="1")
    before = (tmp_path / "ran").read_text().split()
    assert (0, "204") == run(PROGRAM, tmp_path)
    after = (tmp_path / "ran").read_text().split()
    assert (0, "204") == run(PROGRAM, tmp_path)

    assert set(map(str, range(9))) == set(after)
    assert before == after[: len(before)]
    assert after == (tmp_path / "ran").read_text().split()


SEARCH = """
import os
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.tree import DecisionTreeClassifier
from flowpregel.plugins.joblib import joblib_backend


class Noted(DecisionTreeClassifier):
    def fit(self, X, y):
        with open("ran", "a") as ran:
            ran.write(f"{self.max_depth}\\n")
        if "DIES" in os.environ and os.path.getsize("ran") > 24:
            os.kill(os.getppid(), 9)
        return super().fit(X, y)


if __name__ == "__main__":
    X, y = make_classification(300, random_state=0)
    grid = {"max_depth": [1, 2, 3, 4, 5, 6, 7, 8]}
    search = GridSearchCV(Noted(random_state=0), grid, n_jobs=-1, refit=False)
    if "PLAIN" in os.environ:
        search.fit(X, y)
    else:
        with joblib_backend(store="runs.lmdb", id="a"):
            search.fit(X, y)
    print(search.best_params_, search.cv_results_["mean_test_score"].tolist())
"""


@pytest.mark.skipif(
    find_spec("sklearn") is None, reason="scikit-learn is not installed"
)
def test_a_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    """Its results are those of a search that never was; its finished fits are not done
    again.
    """
    expected = run(SEARCH, tmp_path, PLAIN="1")
    (tmp_path / "ran").unlink()

    assert (-9, "") == run(SEARCH, tmp_path, DIES="1")
    assert expected == run(SEARCH, tmp_path)
    fits = len((tmp_path / "ran").read_text().split())
    assert expected == run(SEARCH, tmp_path)

    assert 40 <= fits
    assert fits == len((tmp_path / "ran").read_text().split())
