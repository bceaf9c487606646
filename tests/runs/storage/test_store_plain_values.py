"""Small plain values are kept in the checkpoint's record, and come back exactly."""

import math
from dataclasses import replace

import pytest

from flowpregel._core.records import Address, Batch, Checkpoint, Delta, TaskWrites
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import ConfigurationError, FlowPregelError
from tests.runs.stores import commit, id_of, step

T = Address("t")
PLAIN = [
    *(0, -1, 2**63, -(2**63) - 1, 10**200, True, False, None, 0.1, -0.0, math.inf),
    *("", "text", "\ud800 alone", "ß" * 300, "x" * 5000, 10**20_000),
]


def shown(values):
    """Return what tells 1 from True and 0.0 from -0.0, and how long a number is."""
    return {
        name: (
            type(value),
            str(hash(value) if isinstance(value, int) else repr(value)),
            value,
        )
        for name, value in values.items()
    }


def size(store):
    """Return the bytes of all records of checkpoints, and of what they hold."""
    found = store.stats()
    return (
        found.bytes_of_checkpoints
        + found.bytes_of_writes
        + sum(found.bytes_of_channels.values())
    )


def written(number, values):
    """Return the batch of a superstep whose task wrote *values*."""
    writes = TaskWrites(
        id_of(number - 1), "task", "~__pregel_pull, n", tuple(values.items())
    )
    return Batch(
        address=T, checkpoint=step(number, values), writes=(writes,) if number else ()
    )


@pytest.mark.parametrize(
    "other", [[], [[1, 2], ("a",), b"bytes"]], ids=["plain", "mixed"]
)
def test_values_of_plain_types_come_back_exactly(store, other):
    values = {f"c{at}": value for at, value in enumerate([*PLAIN, *other])}
    store.commit([written(0, values)])
    store.commit([written(1, values)])

    found = store.load(T)

    assert shown(values) == shown(found.checkpoint.values)
    before = store.load(Address("t", "", id_of(0)))
    assert shown(values) == shown(
        {write.channel: write.value for write in before.writes}
    )
    assert store.verify().ok


@pytest.mark.parametrize(
    "values",
    [
        {f"c{at}": at * 10**9 for at in range(300)},
        {f"c{at}": f"{at}" * 500 for at in range(300)},
        {f"c{at}": at if at % 2 else [at] for at in range(300)},
    ],
    ids=["numbers", "texts", "mixed"],
)
def test_a_wide_superstep_comes_back(store, values):
    store.commit([written(0, values)])
    store.commit([written(1, values)])

    assert values == store.load(T).checkpoint.values
    assert values == {
        write.channel: write.value
        for write in store.load(Address("t", "", id_of(0))).writes
    }


def test_a_wide_superstep_of_numbers_takes_a_few_bytes_each(tmp_path):
    values = {f"c{at}": at for at in range(300)}
    with LMDBSaver(tmp_path / "store") as store:
        store.commit([written(0, values)])
        before = size(store)
        store.commit([written(1, values)])

        # Both a value and the pending write that it comes from, with their names.
        assert size(store) - before < 300 * 50


def test_a_text_of_the_users_is_not_taken_for_an_encoded_value(store):
    commit(store, 0, {"a": "n", "b": "p\x80", "c": b"n", "d": b"i"})

    assert {"a": "n", "b": "p\x80", "c": b"n", "d": b"i"} == store.load(
        T
    ).checkpoint.values


def test_what_no_task_wrote_is_not_taken_for_a_none_that_one_wrote(store):
    store.commit([written(0, {"n": 0})])
    writes = TaskWrites(id_of(0), "task", "p", (("items", None),))
    delta = Delta(None, ([1],))
    checkpoint = replace(
        step(1),
        channel_versions={"n": 2, "items": 2},
        changed=("n", "items"),
        deltas={"items": delta},
    )
    store.commit([Batch(address=T, checkpoint=checkpoint, writes=(writes,))])

    assert (([1],),) == store.load(T).deltas["items"].writes


def test_values_are_there_when_the_checkpoint_that_holds_them_is_dropped(store):
    values = {"none": None, "zero": 0, "text": "", "real": 1.5, "list": [1]}
    store.commit([written(0, values)])
    for number in range(1, 4):
        more = step(number, {"n": number}, also=dict.fromkeys(values, 1).items())
        store.commit([Batch(address=T, checkpoint=more)])

    store.prune(["t"])

    assert {**values, "n": 3} == store.load(T).checkpoint.values
    assert id_of(2) == store.load(T).checkpoint.parent_id
    assert store.verify().ok


def test_a_codec_of_the_users_sees_every_value(tmp_path):
    class Codec:
        def encode(self, value):
            return repr(value).encode()[::-1]

        def decode(self, data):
            return eval(data[::-1].decode())

    with LMDBSaver(tmp_path / "store", codec=Codec()) as store:
        commit(store, 0, {"a": 12, "b": "text"})
        commit(store, 1, {"a": 13, "b": None})

        assert {"a": 13, "b": None} == store.load(T).checkpoint.values
    assert b"txet" in (tmp_path / "store" / "data.mdb").read_bytes()


@pytest.mark.parametrize("version", ["{:04}.7", 1.5], ids=["texts", "reals"])
def test_versions_that_are_no_whole_numbers_come_back(store, version):
    def at(number):
        return version.format(number) if isinstance(version, str) else version + number

    for number in range(3):
        checkpoint = Checkpoint(
            id=f"id{number}",
            parent_id=f"id{number - 1}" if number else None,
            at=number,
            step=number,
            source="loop",
            channel_versions={"a": at(number), "b": at(0)},
            versions_seen={"n": {"a": at(number - 1)}},
            changed=("a",),
            values={"a": number, **({} if number else {"b": 5})},
        )
        store.commit([Batch(address=T, checkpoint=checkpoint)])

    found = store.load(T).checkpoint

    assert {"a": at(2), "b": at(0)} == found.channel_versions
    assert {"n": {"a": at(1)}} == found.versions_seen
    assert ("id2", "id1", 2, {"a": 2, "b": 5}) == (
        found.id,
        found.parent_id,
        found.at,
        found.values,
    )


def test_a_commit_that_fails_leaves_nothing_behind_in_what_is_known_of_the_thread(
    store,
):
    for number in range(3):
        commit(store, number, {"n": number, "m": number})
    good = Batch(address=T, checkpoint=step(3, {"n": 33, "m": 33}))
    bad = Batch(address=T, checkpoint=replace(step(4), parent_id=id_of(4)))
    with pytest.raises(ConfigurationError):
        store.commit([good, bad])

    commit(store, 3, {"n": 3})

    found = store.load(T).checkpoint
    assert {"n": 3, "m": 2} == {**found.values, "m": found.values.get("m", 2)}
    assert {"n": 4} == found.channel_versions
    assert id_of(2) == found.parent_id


def test_a_branch_is_not_touched_by_what_the_other_wrote(store):
    commit(store, 0, {"n": 0, "m": 0})
    other = replace(step(1, {"n": 10}), channel_versions={"n": 2, "m": 1})
    store.commit([Batch(address=T, checkpoint=other)])
    fork = replace(
        step(2, {"m": 20}), parent_id=id_of(0), channel_versions={"n": 1, "m": 3}
    )
    store.commit([Batch(address=T, checkpoint=fork)])

    assert {"n": 0, "m": 20} == store.load(T).checkpoint.values
    assert {"n": 10, "m": 0} == store.load(Address("t", "", id_of(1))).checkpoint.values


def test_more_than_a_record_holds_still_comes_back(store):
    values = {f"c{at}": float(at) for at in range(16_384)}
    store.commit([written(0, values)])
    store.commit([written(1, values)])

    assert values == store.load(T).checkpoint.values


def test_a_value_that_cannot_be_kept_is_named_among_plain_ones(store):
    def generated():
        yield 1

    with pytest.raises(FlowPregelError, match="'c1'"):
        store.commit([written(0, {"c0": 1, "c1": generated(), "c2": 2})])


def test_metadata_that_differs_little_is_not_taken_for_the_last(store):
    kinds = [
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        {"a": True, "b": 2},
        {"a": [1]},
        {"a": [1]},
        {},
    ]
    changing = kinds[4]
    for number, metadata in enumerate(kinds):
        store.commit(
            [Batch(address=T, checkpoint=replace(step(number), metadata=metadata))]
        )
    changing["a"].append(2)
    store.commit([Batch(address=T, checkpoint=replace(step(6), metadata=changing))])

    found = [repr(each.checkpoint.metadata) for each in store.history(T)]

    assert ["{'a': [1, 2]}", "{}", "{'a': [1]}", "{'a': [1]}"] == found[:4]
    assert ["{'a': True, 'b': 2}", "{'b': 2, 'a': 1}", "{'a': 1, 'b': 2}"] == found[4:]
