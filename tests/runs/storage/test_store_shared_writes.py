"""What a superstep wrote is there whatever else is dropped or written anew, though it
is stored once.
"""

from dataclasses import replace

import pytest

from flowpregel._core.records import Address, Batch, Delta, DeltaHistory, TaskWrites
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.durable import Retention
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


def written(store, number):
    """Return the values of the writes on a checkpoint."""
    saved = store.load(Address("t", "", id_of(number)))
    return [write.value for write in saved.writes]


def rewritten(number):
    """Return the batch of a superstep whose task wrote the whole value of ``text``."""
    text = {"text": f"{number:04}" + "x" * 1_000}
    writes = TaskWrites(id_of(number - 1), "task", "p", tuple(text.items()))
    return Batch(
        address=T,
        checkpoint=step(number, text),
        writes=(writes,) if number else (),
    )


def replace_run(batch, run):
    """Return *batch* with the id of its run."""
    checkpoint = replace(batch.checkpoint, metadata={"run_id": run})
    return replace(batch, checkpoint=checkpoint)


def test_it_takes_its_room_once_as_a_write_and_as_what_was_added(store):
    fill(store, 50)

    assert added(store) == DeltaHistory(MISSING, whole(50))
    assert [[item(8), item(108)]] == [written(store, 7)]
    found = store.stats()
    assert found.bytes_of_channels["items"] < 50 * 2 * 270
    assert found.bytes_of_writes < 50 * 2 * 80
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


def test_a_whole_value_takes_its_room_once(store):
    for number in range(50):
        store.commit([rewritten(number)])

    assert ["0008" + "x" * 1_000] == written(store, 7)
    found = store.stats()
    assert found.bytes_of_channels["text"] < 50 * 1_100
    assert found.bytes_of_writes < 50 * 160


@pytest.mark.parametrize("batch_of", [rewritten, lambda n: superstep(n, [item(n)])])
def test_a_write_outlives_the_checkpoint_that_it_led_to(store, batch_of):
    for number in range(4):
        store.commit([replace_run(batch_of(number), "gone" if number == 3 else "r")])
    before = written(store, 2)

    store.delete_for_runs(["gone"])

    assert before == written(store, 2)
    assert 1 == len(before)
    assert store.verify().ok


@pytest.mark.parametrize("batch_of", [rewritten, lambda n: superstep(n, [item(n)])])
def test_a_write_outlives_the_replacement_of_the_checkpoint_that_it_led_to(
    store, batch_of
):
    for number in range(4):
        store.commit([batch_of(number)])
    before = written(store, 2)

    store.commit([Batch(address=T, checkpoint=step(3, {"other": 1}))])
    store.commit([Batch(address=T, checkpoint=step(4, {"other": 2}))])
    store.sweep(Retention(keep_last=3))

    assert before == written(store, 2)
    assert store.verify().ok


@pytest.mark.parametrize("batch_of", [rewritten, lambda n: superstep(n, [item(n)])])
def test_a_write_outlives_other_values_of_the_checkpoint_that_it_led_to(
    store, batch_of
):
    for number in range(4):
        store.commit([batch_of(number)])
    before = written(store, 2)

    other = "redacted" * 100
    if batch_of is rewritten:
        checkpoint = step(3, {"text": other})
    else:
        deltas = {"items": Delta(3, ([other],))}
        checkpoint = step(3, {}, deltas=deltas, also={"items": 4})
    store.commit([Batch(address=T, checkpoint=checkpoint)])

    assert before == written(store, 2)
    assert store.verify().ok


def test_the_metadata_of_a_run_takes_its_room_once(store):
    metadata = {"run_id": "r" * 100, "user": "u" * 100}
    for number in range(50):
        checkpoint = replace(step(number, {"n": number}), metadata=metadata)
        store.commit([Batch(address=T, checkpoint=checkpoint)])
    other = {"run_id": "s" * 100, "user": "u" * 100}
    for number in range(50, 53):
        also = {**other, "extra": number} if number == 52 else other
        checkpoint = replace(step(number, {"n": number}), metadata=also)
        store.commit([Batch(address=T, checkpoint=checkpoint)])

    history = [saved.checkpoint.metadata for saved in store.history(T)]

    assert [{**other, "extra": 52}, other, other, *[metadata] * 50] == history
    assert store.stats().bytes_of_checkpoints < 50 * 250
    store.delete_for_runs(["s" * 100])
    assert metadata == store.load(T).checkpoint.metadata
    store.copy_thread("t", "u")
    store.prune(["t"])
    assert metadata == store.load(T).checkpoint.metadata
    assert metadata == store.load(Address("u")).checkpoint.metadata
    assert store.verify().ok


def test_a_task_may_write_twice_in_one_batch(store):
    store.commit([rewritten(0)])
    batch = rewritten(1)
    (first,) = batch.writes
    other = replace(first, writes=(*first.writes, ("other", "y" * 1_000)))

    store.commit([replace(batch, writes=(first, other))])

    assert ["0001" + "x" * 1_000, "y" * 1_000] == written(store, 0)


def test_a_write_on_another_checkpoint_outlives_the_one_of_the_batch(store):
    for number in range(3):
        store.commit([rewritten(number)])
    batch = rewritten(3)
    elsewhere = replace(batch.writes[0], checkpoint_id=id_of(0), task_id="elsewhere")

    store.commit([replace_run(replace(batch, writes=(elsewhere,)), "gone")])
    store.delete_for_runs(["gone"])

    assert {"0001" + "x" * 1_000, "0003" + "x" * 1_000} == {*written(store, 0)}
    assert store.verify().ok


@pytest.mark.parametrize("batch_of", [rewritten, lambda n: superstep(n, [item(n)])])
def test_a_write_on_a_deleted_checkpoint_outlives_the_one_that_it_led_to(
    store, batch_of, tmp_path
):
    """The checkpoint was deleted while the task was running."""
    batches = [batch_of(number) for number in range(5)]
    for number in (0, 1):
        store.commit([replace_run(batches[number], "gone")])
    store.commit([replace(batches[3], writes=(), address=T)])
    store.delete_for_runs(["gone"])
    (task,) = batches[2].writes
    store.commit([replace_run(batches[2], "gone too")])
    store.delete_for_runs(["gone too"])

    store.copy_thread("t", "u")
    store.export_thread("t", tmp_path / "t.run")
    store.import_thread(tmp_path / "t.run", "v")
    assert store.verify().ok
    for thread in "tuv":
        store.commit([replace(batches[1], writes=(), address=Address(thread))])
        saved = store.load(Address(thread, "", id_of(1)))
        assert list(task.writes) == [(w.channel, w.value) for w in saved.writes]
