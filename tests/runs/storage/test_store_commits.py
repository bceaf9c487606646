"""A commit of a store: one transaction for all that belongs together, or waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowpregel import _fault
from flowpregel._core.records import Address, Batch, TaskWrites
from flowpregel.checkpoint import output
from flowpregel.checkpoint.base import CallOutput
from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
from flowpregel.errors import ConfigurationError, LeaseLostError
from tests.runs.stores import commit, environment_of, id_of, step, until

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


@pytest.mark.parametrize("count", [1, 5, MANY])
def test_many_batches_of_one_request_are_one_transaction(
    path: Path, points: Path, count: int
) -> None:
    """As many runs on one event loop ask for it."""
    with LMDBSaver(path) as saver:
        saver.commit([superstep(str(n), 0) for n in range(count)])

        passed = [line.split("\t")[0] for line in points.read_text().splitlines()]
        assert 1 == passed.count("store.commit.after")
        assert [{"n": 0, "m": str(n)} for n in range(count)] == [
            values_of(saver, str(n)) for n in range(count)
        ]


def test_what_waits_for_a_commit_goes_along_with_the_next(
    path: Path, points: Path
) -> None:
    """Ten OS threads ask while one commits: they are one transaction more."""
    with LMDBSaver(path) as saver, closing(environment_of(path)) as environment:
        held, threads = threading.Event(), ThreadPoolExecutor(11)

        def hold(_: Any) -> None:
            held.set()
            until(lambda: 10 == len(environment.commits._queue))  # noqa: SLF001

        with threads:
            first = threads.submit(environment.commits.write, hold, timeout=20)
            assert held.wait(20)
            others = [
                threads.submit(saver.commit, [superstep(str(n), 0)]) for n in range(10)
            ]
            for each in (first, *others):
                each.result(20)

        passed = [line.split("\t")[0] for line in points.read_text().splitlines()]
        assert 2 == passed.count("store.commit.after")
        assert {str(n) for n in range(10)} == {
            place.thread_id for place in saver.namespaces()
        }


def test_what_a_commit_that_failed_made_of_a_state_is_forgotten(path: Path) -> None:
    """The state was taken for the new checkpoint, which then was not kept."""
    checkpoint = step(1)
    own_child = replace(checkpoint, parent_id=checkpoint.id)
    wrong = Batch(Address("wrong"), checkpoint=own_child)
    with LMDBSaver(path) as saver:
        saver.commit([Batch(Address("t"), checkpoint=step(0, {"n": 0, "m": 0}))])
        lost = Batch(
            Address("t"), checkpoint=step(1, {"n": "lost", "l": 1}, also={"m": 1})
        )
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
        assert [2, 1, 0] == [
            each.checkpoint.step for each in saver.history(Address("t"))
        ]
        assert saver.verify().ok


def test_ids_that_come_late_or_again_are_found(path: Path) -> None:
    """Smaller than the greatest there is, or the same."""
    with LMDBSaver(path) as saver:
        for number in (5, 3, 5, 4, 3, 6):
            checkpoint = step(number, {"n": number}, parent=False)
            saver.commit([Batch(Address("t"), checkpoint=checkpoint)])

        assert [6, 5, 4, 3] == [
            each.checkpoint.step for each in saver.history(Address("t"))
        ]
        assert saver.verify().ok


def printed(text: bytes) -> CallOutput:
    """Return what a task has printed."""
    return CallOutput(id_of(0), "task", "speak('a')", 1, text, b"", len(text))


def test_what_is_printed_while_a_commit_is_repeated_does_not_replace_what_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that meets the end of the map is begun anew, and takes along what
    came.
    """
    with (
        LMDBSaver(path, map_size=1) as saver,
        closing(environment_of(path)) as environment,
    ):
        grow = environment.grow

        def print_more() -> None:
            saver.keep_output(Address("t"), printed(b"second "))
            grow()

        monkeypatch.setattr(environment, "grow", print_more)
        saver.keep_output(Address("t"), printed(b"first "))
        commit(saver, 0, {"n": bytes(3 << 20)})
        (kept,) = saver.kept_output(Address("t"))

    assert kept.text.startswith("first second ")


def test_a_refused_commit_costs_no_other_run_what_its_tasks_have_printed(
    path: Path,
) -> None:
    """It waits for the next commit of the saver, whichever run that is of."""
    with LMDBSaver(path) as saver, saver.lease("lost") as lease:
        with saver.lease("lost", on_conflict="takeover"):
            saver.keep_output(Address("t"), printed(b"first "))
            with pytest.raises(LeaseLostError):
                commit(saver, 0, thread="lost", fence=lease.fence)
        saver.keep_output(Address("t"), printed(b"second"))
        commit(saver, 0)
        (kept,) = saver.kept_output(Address("t"))

    assert "first second" == kept.text


def test_what_is_printed_is_written_though_the_store_was_busy_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot write in time tries again when more comes, though nothing is
    committed.
    """
    monkeypatch.setattr(output, "PERIOD", 0.01)
    tried, flush = threading.Event(), output.OutputBuffer.flush

    def try_to(buffer: output.OutputBuffer) -> None:
        flush(buffer)
        tried.set()

    monkeypatch.setattr(output.OutputBuffer, "flush", try_to)
    with (
        LMDBSaver(path, options=StoreOptions(lock_timeout=0.01)) as saver,
        closing(environment_of(path)) as environment,
    ):
        with environment.exclusively(1.0):
            saver.keep_output(Address("t"), printed(b"first "))
            assert tried.wait(10)
        saver.keep_output(Address("t"), printed(b"second"))
        until(lambda: saver.kept_output(Address("t")))
        (kept,) = saver.kept_output(Address("t"))

    assert "first second" == kept.text
