"""The three trips a newcomer reads: how many functions and files each passes
through.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house import trips


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "functions", "files"),
    [
        # A little above what they are, so that a change is made for a layer and not for
        # a digit: a condition belongs into the function that it guards, even if the
        # function is then entered in vain. What a call passes through beside its work:
        # its code is compared at both ends, what it sends is read by its run, and its
        # worker restores its process, and the one scheduler of tasks with and without
        # needs decides where it runs. Each file that held both ends of a link is two.
        # Whether the worker's other OS thread writes its output meanwhile is one or two
        # functions more or less.
        (trips.task_call, 139, 39),
        # The same and what it commits, before its result is seen.
        # Records, tables and group commit of a store are files of their own, which all
        # engines use. A new run looks up no records, and plain arguments no files.
        (trips.durable_task_call, 196, 60),
        # What a node wrote has the digest of its code beside it.
        # The conditions and reducers that it used have digests too. The functions of
        # the core are cut to the limits of complexity. What differs from a keyframe is
        # found, even if all channels are new. What a record has in common with that of
        # the parent is left out.
        (trips.superstep_commit, 140, 33),
        # A question is known by a digest of what it asks and of the code that asks it.
        # The parts of a run have a file each, and small functions decide how it starts.
        # At its end a run refuses the calls that still come. A retried chunk brings the
        # items that have ended. The keys of a store and its tables have a file each.
        (trips.interrupt_and_resume, 295, 61),
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
    # What another test has imported, or a plugin of pytest's, travels to workers: not
    # on this trip.
    monkeypatch.setattr("flowpregel.carried._OBSERVED", frozenset[str]())
    # Nor are the values that the code of another test has used.
    monkeypatch.setattr("flowpregel._core.run.UNSEEN", {})
    # Another test may have imported LangChain. Nodes then get its callback manager.
    monkeypatch.setattr("flowpregel.executors.attempt.MANAGER_MODULE", "")
    # The plugin checks the arguments of calls in tests; a program does not.
    monkeypatch.setenv("FLOWPREGEL_CHECK_MUTATIONS", "0")
    # A busy machine adds functions that wait: the shortest of three is the trip.
    found: list[trips.Trip] = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(make(folder))
    trip = min(found, key=lambda trip: len(trip.functions))

    assert len(trip.functions) <= functions, "\n".join(trip.functions)
    assert len(trip.files) <= files, trip.files
