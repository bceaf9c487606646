"""What a superstep added to a channel is not kept twice, and never missing."""

import pytest

from flowpregel._core.records import Address, Batch, Checkpoint, Delta, DeltaHistory, TaskWrites
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.lmdb import LMDBSaver
from tests.runs.stores import KEY, id_of

T = Address("t")


@pytest.fixture
def saver(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", KEY)
    with LMDBSaver(tmp_path / "store") as saver:
        yield saver


def item(number):
    return [f"{number:04}" + "x" * 200]


def superstep(number, added, *, run="r", task="task"):
    """Return the batch of a superstep whose task wrote what was added to ``items``."""
    writes = TaskWrites(id_of(number - 1), task, "p", tuple(("items", each) for each in added))
    checkpoint = Checkpoint(
        id=id_of(number),
        parent_id=id_of(number - 1) if number else None,
        at=number,
        step=number,
        source="loop",
        channel_versions={"items": number + 1},
        versions_seen={},
        changed=("items",),
        deltas={"items": Delta(number or None, tuple(added))},
        metadata={"run_id": run},
    )
    return Batch(address=T, checkpoint=checkpoint, writes=(writes,) if number else ())


def fill(saver, count=6):
    for number in range(count):
        run = "first" if number == 2 else "other"
        saver.commit([superstep(number, [item(number), item(number + 100)], run=run)])


def whole(count=6):
    return tuple((item(number), item(number + 100)) for number in range(count))


def added(saver, address=T):
    return saver.load(address).deltas["items"]


def test_it_is_kept_once(saver):
    fill(saver, 50)

    assert added(saver) == DeltaHistory(MISSING, whole(50))
    found = saver.stats()
    assert found.bytes_of_channels["items"] < 50 * 2 * 230
    assert found.bytes_of_channels["items"] + found.bytes_of_writes < 50 * 2 * 230
    assert found.bytes_of_checkpoints < 50 * 250


def test_it_is_there_when_the_writes_checkpoint_is_dropped(saver):
    fill(saver)
    saver.delete_for_runs(["first"])

    assert added(saver) == DeltaHistory(MISSING, whole())
    assert saver.verify().ok


def test_it_is_there_when_all_before_is_dropped(saver):
    fill(saver)
    saver.prune(["t"])

    assert added(saver) == DeltaHistory(MISSING, whole())
    assert saver.verify().ok


def test_it_is_there_in_a_copy(saver):
    fill(saver)
    saver.copy_thread("t", "u")
    saver.delete_thread("t")

    assert added(saver, Address("u")) == DeltaHistory(MISSING, whole())


def test_it_is_there_when_the_writes_checkpoint_is_written_anew(saver):
    fill(saver)
    saver.commit([superstep(2, [item(2), item(102)])])

    assert added(saver) == DeltaHistory(MISSING, whole())
    assert saver.verify().ok


def test_an_earlier_write_in_the_same_place_is_not_taken_for_it(saver):
    saver.commit([superstep(0, [item(0)])])
    earlier = TaskWrites(id_of(0), "task", "p", (("items", ["another" * 50]),))
    saver.commit([Batch(address=T, writes=(earlier,))])
    saver.commit([superstep(1, [item(1)])])

    assert added(saver).writes == ((item(0),), (item(1),))


def test_small_items_and_none_come_back(saver):
    saver.commit([superstep(0, [1])])
    saver.commit([superstep(1, [None, 2, ()])])
    saver.commit([superstep(2, [])])

    assert added(saver).writes == ((1,), (None, 2, ()), ())
