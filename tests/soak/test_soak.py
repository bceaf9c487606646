"""A moment of the soak, and what its checker sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.journal import Line, Thread, counts_of
from tests.soak.programs import recipe_of
from tests.soak.soaking import soak
from tests.soak.stores import soak_stores


@pytest.mark.slow
def test_random_programs_under_random_faults_keep_every_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -m tests.soak --minutes 10`` does the same for longer."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")

    report = soak(tmp_path, seconds=1.5, seed=1)

    print(report)
    assert report.ok, report


@pytest.mark.slow
def test_a_store_in_use_keeps_every_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``python -m tests.soak.stores --minutes 30`` does the same for longer."""
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", "the tests' key")

    assert soak_stores(tmp_path, seconds=1.5, seed=1), capsys.readouterr().out


def test_a_program_is_the_same_for_the_same_seed() -> None:
    """And so is what it comes to."""
    assert recipe_of(5) == recipe_of(5)
    assert recipe_of(5).expected() == recipe_of(5).expected()
    assert recipe_of(5) != recipe_of(6)


def thread(*attempts: list[Line], durability: str = "sync") -> Thread:
    """Return a thread that is to come to 7."""
    return Thread(durability, 7, list(attempts))


BEFORE = [Line(1, "invoke", "inline"), Line(2, "start", "a"), Line(3, "seen", "a")]


def test_attempts_that_go_on_are_no_violation() -> None:
    """What was not seen may run again."""
    killed = [*BEFORE, Line(4, "start", "b")]
    after = [
        Line(5, "seen", "a"),
        Line(6, "start", "b"),
        Line(7, "seen", "b"),
        Line(8, "ok", "7"),
    ]

    found = thread(killed, after)

    assert [] == [*found.violations()]
    assert {
        "attempts": 2,
        "ok": 1,
        "unknown (killed)": 1,
        "labours started": 3,
    } == counts_of([found])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (Line(5, "start", "a"), "a ran again after its result was seen"),
        (Line(5, "ok", "8"), "it came to 8, not 7"),
        (
            Line(5, "fail", "StoreCorruptError: it is damaged"),
            "it failed: StoreCorruptError",
        ),
    ],
)
def test_a_promise_that_is_broken_is_found(line: Line, message: str) -> None:
    """A result that was lost, one that is wrong, an error that nobody asked for."""
    (violation,) = thread(BEFORE, [line]).violations()

    assert message in violation


def test_what_runs_after_the_end_is_found() -> None:
    """A run that is asked for again is looked up."""
    ended = [*BEFORE, Line(4, "ok", "7")]

    assert "b ran after the run had ended" in [
        *thread(ended, [Line(9, "start", "b")]).violations()
    ]


def test_what_async_may_lose_is_no_violation() -> None:
    """There a result that was seen may be on its way to the disk only."""
    assert [] == [
        *thread(BEFORE, [Line(5, "start", "a")], durability="async").violations()
    ]
