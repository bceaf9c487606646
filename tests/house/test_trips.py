"""The three trips a newcomer reads: how many functions and files each passes through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house import trips


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "functions", "files"),
    [
        # A tenth above what they were when the gate was set, so that no change is made for a digit.
        # Code is looked up at the call, and compared at both ends: two files more.
        (trips.task_call, 106, 31),
        # What a node wrote has the digest of its code beside it: a file more on each trip, and
        # a run that goes on compares the nodes that have finished, and looks for renamed classes.
        (trips.superstep_commit, 105, 26),
        # A question is known by a digest of what it asks and of the code that asks it.
        (trips.interrupt_and_resume, 220, 45),
    ],
)
def test_a_trip_is_short(
    make: Callable[[Path], trips.Trip],
    functions: int,
    files: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layers are what a reader pays for first, and the machine too."""
    # What another test has imported, or a plugin of pytest's, travels to workers: not on this trip.
    monkeypatch.setattr("flowpregel.carried._OBSERVED", frozenset[str]())
    trip = make(tmp_path)

    assert len(trip.functions) <= functions, "\n".join(trip.functions)
    assert len(trip.files) <= files, trip.files
