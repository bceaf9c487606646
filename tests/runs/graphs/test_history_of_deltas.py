"""The history of a long DeltaChannel: each state is its own, and costs little more than
one.
"""

import copy
import pickle
from typing import Any

import pytest

from flowpregel._core.records import Address, Batch, Delta
from flowpregel.channels import DeltaChannel, LastValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.pregel import NodeBuilder, Pregel
from flowpregel.types import Overwrite
from tests.runs.stores import step

COUNT = 400
T = {"configurable": {"thread_id": "t"}}


class Reducer:
    """Appends, changing the state it is given; counts what it is given."""

    def __init__(self) -> None:
        self.folded = 0

    def __call__(self, state: list[Any], writes: list[list[Any]]) -> list[Any]:
        self.folded += len(writes)
        for write in writes:
            state.extend(write)
        return state


def program(store, reducer):
    node = NodeBuilder().subscribe_only("n").do(lambda _: None)
    return Pregel(
        nodes={"node": node},
        channels={"n": LastValue(int), "log": DeltaChannel(reducer, list)},
        input_channels="n",
        output_channels="n",
        checkpointer=store,
        executor="inline",
    )


def fill(store, item, count=COUNT, special=None):
    """Keep a thread of supersteps that each add an item."""
    batches = []
    for number in range(count):
        write = [item(number)]
        if special is not None and number in special:
            write = special[number]
        added = {"log": Delta(number or None, (write,))}
        checkpoint = step(number, {}, deltas=added, also={"log": number + 1})
        batches.append(Batch(address=Address("t"), checkpoint=checkpoint))
    store.commit(batches)


def logs(app, limit=10):
    return [state.values["log"] for state in app.get_state_history(T, limit=limit)]


@pytest.mark.parametrize(
    "item",
    [str, lambda n: [n], lambda n: {"n": n}, ValueError, lambda n: (n, [n])],
    ids=["texts", "lists", "dicts", "errors", "tuples"],
)
def test_each_state_is_the_fold_of_its_own_deltas(store, item):
    fill(store, item)

    found = logs(program(store, Reducer()), 100)

    expected = [[item(at) for at in range(COUNT - back)] for back in range(100)]
    assert list(map(repr, expected)) == list(map(repr, found))


def test_what_is_done_to_one_state_no_other_sees(store):
    fill(store, lambda n: {"n": n})
    states = program(store, Reducer()).get_state_history(T, limit=3)

    newest = next(states).values["log"]
    for each in newest:
        each["n"] = "changed"
    newest.clear()

    assert [[{"n": at} for at in range(COUNT - back)] for back in (1, 2)] == [
        state.values["log"] for state in states
    ]


def test_the_common_deltas_are_folded_once(store):
    fill(store, str)
    reducer = Reducer()

    logs(program(store, reducer), 20)

    assert COUNT <= reducer.folded < 1.2 * COUNT + 20 * 90


def test_an_overwrite_in_the_midst_starts_anew(store):
    fill(store, str, special={370: Overwrite(["new"])})

    found = logs(program(store, Reducer()), 100)

    assert ["new", *map(str, range(371, COUNT))] == found[0]
    assert ["new"] == found[COUNT - 371]
    assert [*map(str, range(370))] == found[COUNT - 370]


def test_a_value_that_cannot_be_copied_is_folded_for_each_state(store):
    class Fussy(list):
        def __reduce__(self):
            raise RuntimeError("not to be copied")

    def fold(state, writes):
        return Fussy([*state, *(item for write in writes for item in write)])

    fill(store, str)

    assert [[*map(str, range(COUNT - back))] for back in range(5)] == logs(
        program(store, fold), 5
    )


def test_a_reducer_that_fails_says_so(store):
    def fold(state, writes):
        raise ZeroDivisionError("no")

    fill(store, str)

    with pytest.raises(ZeroDivisionError) as raised:
        logs(program(store, fold))
    assert any("channel 'log'" in note for note in raised.value.__notes__)


def test_a_damaged_class_is_an_error_of_the_state_that_needs_it(store):
    from flowpregel.errors import ValueEncodingError

    fill(store, str, special={5: [Unreadable()]})

    with pytest.raises(ValueEncodingError, match="what was added to channel 'log'"):
        logs(program(store, Reducer()))


class Unreadable:
    """Is written, and never read."""

    def __reduce__(self):
        return divmod, (1, 0)


def test_it_is_the_same_in_memory(store):
    memory = InMemorySaver()
    for each in (store, memory):
        fill(each, lambda n: [n])

    assert logs(program(memory, Reducer())) == logs(program(store, Reducer()))


def test_the_writes_of_a_history_compare_and_are_indexed_as_a_tuple(store):
    fill(store, str, 5)

    writes = next(store.history(Address("t"))).deltas["log"].writes

    expected = tuple((([str(at)],)) for at in range(5))
    assert expected == writes
    assert (expected[0], expected[-1], expected[1:3]) == (
        writes[0],
        writes[-1],
        writes[1:3],
    )
    assert 5 == len(writes)
    assert expected == pickle.loads(pickle.dumps(writes)) == copy.deepcopy(writes)
    assert repr(expected) == repr(writes)
    assert writes != expected[1:]
    assert writes != "no sequence of writes"


def test_nothing_is_triggered_before_the_first_write():
    """A channel is empty then, and no news: also after an edit, which may have changed
    any.
    """
    reads = []
    write = NodeBuilder().subscribe_only("n").do(lambda _: [1]).write_to("log")
    read = NodeBuilder().subscribe_only("log").do(lambda log: reads.append([*log]))
    app = Pregel(
        nodes={"write": write, "read": read},
        channels={"n": LastValue(int), "log": DeltaChannel(Reducer(), list)},
        input_channels="n",
        output_channels="log",
        checkpointer=InMemorySaver(),
        executor="inline",
    )
    app.invoke(1, T)
    first = [*app.get_state_history(T)][-1]

    edited = app.update_state(first.config, 1, as_node="__input__")
    app.invoke(None, edited)

    assert ("write",) == first.next == app.get_state(edited).next
    assert [[1], [1]] == reads
