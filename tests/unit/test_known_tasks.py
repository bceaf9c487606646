"""What is known of very many tasks is found again, and what is not known is found
missing.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowpregel._inspection.call_rows import CallState
from flowpregel._inspection.cursors import DIGEST, TaskEntry, TaskTable

DIGESTS = st.binary(min_size=1, max_size=1).map(lambda byte: byte * DIGEST)
STATES = st.sampled_from([None, "failed", "waiting", "unfinished", "done"])
CHECKSUMS = st.binary(min_size=16, max_size=16)
BATCHES = st.lists(
    st.dictionaries(DIGESTS, st.tuples(CHECKSUMS, STATES), max_size=9), max_size=8
)
Model = dict[bytes, tuple[bytes, CallState | None]]


def known_from(batches: list[Model]) -> tuple[TaskTable, Model]:
    known, model = TaskTable(), Model()
    for batch in batches:
        before = known.update(
            [TaskEntry(digest, *batch[digest]) for digest in sorted(batch)]
        )

        assert [
            model[each][1] if each in model else None for each in sorted(batch)
        ] == before
        model |= batch
    return known, model


@given(BATCHES, st.sets(DIGESTS, max_size=9), st.integers(0, 20), st.integers(0, 20))
def test_those_are_wanted_that_are_not_known_to_be_done(
    batches: list[Model], others: set[bytes], begin: int, end: int
) -> None:
    """Of any part of the keys; each with the checksum that its record had."""
    known, model = known_from(batches)
    part = sorted({*model} | others)[begin:end]
    keys = [b"place " + digest for digest in part]

    sums = [model.get(digest, (b"", None)) for digest in part]
    every = [(key, checksum) for key, (checksum, _) in zip(keys, sums, strict=True)]
    open_ones = [
        each for each, (_, state) in zip(every, sums, strict=True) if state != "done"
    ]
    assert every == known.keys_to_read(keys, with_done=True)
    assert open_ones == known.keys_to_read(keys, with_done=False)


@given(BATCHES, st.sampled_from(["failed", "waiting", "done"]), st.integers(1, 5))
def test_the_tasks_in_a_state_are_found(
    batches: list[Model], state: CallState, most: int
) -> None:
    """The first of them, in order."""
    known, model = known_from(batches)

    expected = sorted(digest for digest, (_, found) in model.items() if found == state)
    assert expected[:most] == known.digests(state, most)
