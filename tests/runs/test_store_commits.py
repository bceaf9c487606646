"""A commit of a store: work is done once, on what is known of the commit before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel import _fault
from flowpregel._core.records import Address, Batch, TaskWrites
from flowpregel._lmdb import journal
from flowpregel._lmdb.overlay import Counted, Draft
from flowpregel.checkpoint.lmdb import LMDBSaver, staterecord
from flowpregel.errors import ConfigurationError
from tests.runs.stores import commit, environment_of, id_of, step

MANY = 40


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file that gets a line for each fault point that is passed."""
    trace = tmp_path / "trace"
    with monkeypatch.context() as traced:
        traced.setenv(_fault.TRACE, str(trace))
        _fault.arm()
        yield trace
    _fault.arm()


def superstep(thread: str, number: int) -> Batch:
    """Return the batch of a superstep."""
    return Batch(Address(thread), checkpoint=step(number, {"n": number, "m": thread}))


def values_of(saver: LMDBSaver, thread: str) -> dict[str, Any]:
    """Return what a thread's channels hold now."""
    found = saver.load(Address(thread))
    assert found is not None
    return dict(found.checkpoint.values)


def test_what_says_that_it_is_large_is_lmdbs_at_once(path: Path) -> None:
    """No draft is begun that the journal could not hold."""
    seen = []
    with LMDBSaver(path):
        environment = environment_of(path)
        for size in (100, journal.SIZE - 2000, journal.SIZE):
            environment.write(lambda t: seen.append(type(t)), timeout=1, size=size)
        environment.close()

    assert [Draft, Draft, Counted] == seen


@pytest.mark.parametrize("count", [1, 5, MANY])
def test_a_large_group_in_one_request_is_not_begun_twice(
    path: Path, points: Path, count: int
) -> None:
    """As many runs on one event loop ask for it: the journal is for a few."""
    with LMDBSaver(path) as saver:
        saver.commit([superstep(str(n), 0) for n in range(count)])

        passed = {line.split("\t")[0] for line in points.read_text().splitlines()}
        assert ("store.write.begin" in passed) == (count < MANY)
        assert ("store.commit.begin" in passed) == (count == MANY)
        assert [{"n": 0, "m": str(n)} for n in range(count)] == [
            values_of(saver, str(n)) for n in range(count)
        ]


def test_a_large_value_is_not_begun_twice(path: Path, points: Path) -> None:
    """Also where it is a write, or what was added to a channel."""
    large = "x" * journal.SIZE
    with LMDBSaver(path) as saver:
        saver.commit([Batch(Address("t"), checkpoint=step(0, {"n": large}))])
        writes = (TaskWrites(id_of(0), "task", "path", (("n", large),)),)
        saver.commit([Batch(Address("t"), writes)])

    assert "store.write.begin" not in points.read_text()


def test_no_state_is_read_again_while_nobody_else_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether commits go into the journal or, large and many, to LMDB."""
    read = []
    change_of = staterecord.change_of

    def counted(*given: Any) -> Any:
        read.append(given[-1])
        return change_of(*given)

    monkeypatch.setattr(staterecord, "change_of", counted)
    with LMDBSaver(path) as saver:
        for number in range(0, 80, 2):
            saver.commit([superstep(str(n), number) for n in range(MANY)])
            for n in range(3):
                saver.commit([superstep(str(n), number + 1)])
            saver.commit([superstep(str(n), number + 1) for n in range(3, MANY)])

    assert not read


def test_what_a_commit_that_failed_made_of_a_state_is_forgotten(path: Path) -> None:
    """The state was taken for the new checkpoint, which then was not kept."""
    wrong = Batch(Address("wrong"), checkpoint=step(1))
    wrong.checkpoint.parent_id = wrong.checkpoint.id  # type: ignore[union-attr]
    with LMDBSaver(path) as saver:
        saver.commit([Batch(Address("t"), checkpoint=step(0, {"n": 0, "m": 0}))])
        lost = Batch(Address("t"), checkpoint=step(1, {"n": "lost", "l": 1}, also={"m": 1}))
        with pytest.raises(ConfigurationError, match="own parent"):
            saver.commit([lost, wrong])

        kept = Batch(Address("t"), checkpoint=step(1, {"n": "kept"}, also={"m": 1}))
        saver.commit([kept])

        assert {"n": "kept", "m": 0} == values_of(saver, "t")
        assert saver.verify().ok
    with LMDBSaver(path) as saver:
        assert {"n": "kept", "m": 0} == values_of(saver, "t")


def test_an_id_that_writes_mention_first_is_the_checkpoints(path: Path) -> None:
    """On a new thread too, of which it is known that it has no other."""
    writes = (TaskWrites(id_of(1), "task", "path", (("n", "early"),)),)
    with LMDBSaver(path) as saver:
        saver.commit([Batch(Address("t"), writes)])
        for number in range(3):
            commit(saver, number)
        found = saver.load(Address("t", checkpoint_id=id_of(1)))

        assert found is not None
        assert "early" in [write.value for write in found.writes]
        assert [2, 1, 0] == [each.checkpoint.step for each in saver.history(Address("t"))]
        assert saver.verify().ok


def test_ids_that_come_late_or_again_are_found(path: Path) -> None:
    """Smaller than the greatest there is, or the same."""
    with LMDBSaver(path) as saver:
        for number in (5, 3, 5, 4, 3, 6):
            checkpoint = step(number, {"n": number}, parent=False)
            saver.commit([Batch(Address("t"), checkpoint=checkpoint)])

        assert [6, 5, 4, 3] == [each.checkpoint.step for each in saver.history(Address("t"))]
        assert saver.verify().ok
