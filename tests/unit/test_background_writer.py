"""The background writer: what it commits together, and for whom it waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from flowpregel._core.records import Address, Batch, Durability
from flowpregel._engine import background_writer
from flowpregel._engine.background_writer import ENOUGH, MOST_BEHIND, BackgroundWriter
from flowpregel._engine.commits import Committers
from flowpregel.checkpoint.memory import InMemorySaver

LONG = 3600.0


class Gated(InMemorySaver):
    """Notes the size of each commit; lets none through while the gate is closed, or
    refuses it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.sizes: list[int] = []
        self.refusal: Exception | None = None

    def commit(self, batches: Sequence[Batch]) -> None:
        """Commit *batches*, once the gate is open."""
        self.sizes.append(len(batches))
        self.arrived.release()
        assert self.gate.wait(30)
        if self.refusal is not None:
            raise self.refusal
        super().commit(batches)


@pytest.fixture
def saver() -> Gated:
    """A saver with an open gate."""
    return Gated()


@pytest.fixture
def patient(saver: Gated) -> Iterator[BackgroundWriter]:
    """A writer that waits for others as good as for ever."""
    writer = BackgroundWriter(saver, LONG)
    yield writer
    saver.gate.set()
    writer.close()


def put(writer: BackgroundWriter, count: int) -> None:
    """Hand over *count* batches."""
    for number in range(count):
        writer.put(Batch(address=Address(str(number))))


def test_what_comes_close_together_is_one_transaction(
    saver: Gated, patient: BackgroundWriter
) -> None:
    """None begins before there are enough."""
    put(patient, ENOUGH)
    assert saver.arrived.acquire(timeout=30)

    assert [ENOUGH] == saver.sizes


def test_a_batch_that_stays_alone_is_committed_after_a_moment(saver: Gated) -> None:
    """Nobody has to ask for it."""
    writer = BackgroundWriter(saver)
    put(writer, 1)

    assert saver.arrived.acquire(timeout=30)
    writer.close()
    assert [1] == saver.sizes


def test_who_waits_for_all_of_them_does_not_wait_for_others_to_come(
    saver: Gated, patient: BackgroundWriter
) -> None:
    """Nor who waits for what comes after that."""
    for _ in range(2):
        put(patient, 2)
        patient.flush()

    assert [2, 2] == saver.sizes


def test_the_end_does_not_wait_for_others_to_come(saver: Gated) -> None:
    """What was handed over is committed, at once."""
    writer = BackgroundWriter(saver, LONG)
    put(writer, 3)
    writer.close()

    assert [3] == saver.sizes


def test_no_more_than_so_many_are_ever_behind(
    saver: Gated, patient: BackgroundWriter
) -> None:
    """Those on their way to the disk are counted with those that wait."""
    saver.gate.clear()
    put(patient, ENOUGH)
    assert saver.arrived.acquire(timeout=30)
    put(patient, MOST_BEHIND - ENOUGH)
    assert patient.is_full

    saver.gate.set()
    put(patient, 1)
    patient.flush()
    assert MOST_BEHIND + 1 == sum(saver.sizes)


def test_the_run_is_not_far_ahead_of_a_slow_disk(
    saver: Gated, patient: BackgroundWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a commit that takes long, however few wait behind that."""
    monkeypatch.setattr(background_writer, "LONGEST_BEHIND", 0.0)
    saver.gate.clear()
    put(patient, ENOUGH)
    assert saver.arrived.acquire(timeout=30)
    later = threading.Thread(target=put, args=(patient, ENOUGH))
    later.start()
    assert patient.is_full

    saver.gate.set()
    assert saver.arrived.acquire(timeout=30)
    later.join()
    assert [ENOUGH, ENOUGH] == saver.sizes


def test_what_a_commit_raises_is_raised_where_the_run_waits(saver: Gated) -> None:
    """At the next batch, and at the end; nothing is committed after it."""
    saver.refusal = OSError("the disk is gone")
    writer = BackgroundWriter(saver, LONG)
    put(writer, 1)
    for wait in (writer.flush, lambda: put(writer, 1), writer.flush, writer.close):
        with pytest.raises(OSError, match="the disk is gone"):
            wait()

    assert [1] == saver.sizes


def test_of_several_savers_that_failed_the_first_one_is_told_of() -> None:
    """It is that of the outermost run."""
    committers = Committers()
    for name in ("outer", "nested"):
        saver = Gated()
        committer = committers.of(saver, Durability.ASYNC)
        committer.writer = BackgroundWriter(saver)
        saver.refusal = OSError(name)
        put(committer.writer, 1)

    with pytest.raises(OSError, match="outer"):
        committers.close()
