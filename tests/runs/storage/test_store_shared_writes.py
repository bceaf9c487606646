"""What a superstep added to a channel is there whatever else is dropped or written
anew.
"""

from dataclasses import replace

from flowpregel._core.records import Address, Batch, Delta, DeltaHistory, TaskWrites
from flowpregel.channels.base import MISSING
from tests.runs.stores import id_of, step

T = Address("t")


def item(number):
    return [f"{number:04}" + "x" * 200]


def superstep(number, added, *, run="r", task="task"):
    """Return the batch of a superstep whose task wrote what was added to ``items``."""
    writes = TaskWrites(
        id_of(number - 1), task, "p", tuple(("items", each) for each in added)
    )
    deltas = {"items": Delta(number or None, tuple(added))}
    checkpoint = step(number, {}, deltas=deltas, also={"items": number + 1})
    checkpoint = replace(checkpoint, metadata={"run_id": run})
    return Batch(address=T, checkpoint=checkpoint, writes=(writes,) if number else ())


def fill(store, count=6):
    for number in range(count):
        run = "first" if number == 2 else "other"
        store.commit([superstep(number, [item(number), item(number + 100)], run=run)])


def whole(count=6):
    return tuple((item(number), item(number + 100)) for number in range(count))


def added(store, address=T):
    return store.load(address).deltas["items"]


def test_it_takes_its_own_room_as_a_write_and_as_what_was_added(store):
    fill(store, 50)

    assert added(store) == DeltaHistory(MISSING, whole(50))
    found = store.stats()
    assert found.bytes_of_channels["items"] < 50 * 2 * 270
    assert found.bytes_of_writes < 50 * 2 * 300
    assert found.bytes_of_checkpoints < 50 * 350


def test_it_is_there_when_the_writes_checkpoint_is_dropped(store):
    fill(store)
    store.delete_for_runs(["first"])

    assert added(store) == DeltaHistory(MISSING, whole())
    assert store.verify().ok


def test_it_is_there_when_all_before_is_dropped(store):
    fill(store)
    store.prune(["t"])

    assert added(store) == DeltaHistory(MISSING, whole())
    assert store.verify().ok


def test_it_is_there_in_a_copy(store):
    fill(store)
    store.copy_thread("t", "u")
    store.delete_thread("t")

    assert added(store, Address("u")) == DeltaHistory(MISSING, whole())


def test_it_is_there_when_the_writes_checkpoint_is_written_anew(store):
    fill(store)
    store.commit([superstep(2, [item(2), item(102)])])

    assert added(store) == DeltaHistory(MISSING, whole())
    assert store.verify().ok


def test_an_earlier_write_in_the_same_place_is_not_taken_for_it(store):
    store.commit([superstep(0, [item(0)])])
    earlier = TaskWrites(id_of(0), "task", "p", (("items", ["another" * 50]),))
    store.commit([Batch(address=T, writes=(earlier,))])
    store.commit([superstep(1, [item(1)])])

    assert added(store).writes == ((item(0),), (item(1),))


def test_small_items_and_none_come_back(store):
    store.commit([superstep(0, [1])])
    store.commit([superstep(1, [None, 2, ()])])
    store.commit([superstep(2, [])])

    assert added(store).writes == ((1,), (None, 2, ()), ())
