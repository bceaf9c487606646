"""The history of a long DeltaChannel: each state is its own, and costs little more than one."""

import copy
import pickle
from typing import Any

import pytest

from flowpregel._core.records import Address, Batch, Checkpoint, Delta
from flowpregel.channels import DeltaChannel, LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.pregel import NodeBuilder, Pregel
from flowpregel.types import Overwrite
from tests.runs.stores import KEY, id_of

COUNT = 400
T = {"configurable": {"thread_id": "t"}}


@pytest.fixture(autouse=True)
def _store_key(monkeypatch):
    monkeypatch.setenv("FLOWPREGEL_STORE_KEY", KEY)


@pytest.fixture
def saver(tmp_path):
    with LMDBSaver(tmp_path / "store") as saver:
        yield saver


class Reducer:
    """Appends, changing the state it is given; counts what it is given."""

    def __init__(self) -> None:
        self.folded = 0

    def __call__(self, state: list[Any], writes: list[list[Any]]) -> list[Any]:
        self.folded += len(writes)
        for write in writes:
            state.extend(write)
        return state


def program(saver, reducer):
    node = NodeBuilder().subscribe_only("n").do(lambda _: None)
    return Pregel(
        nodes={"node": node},
        channels={"n": LastValue(int), "log": DeltaChannel(reducer, list)},
        input_channels="n",
        output_channels="n",
        checkpointer=saver,
        executor="inline",
    )


def fill(saver, item, count=COUNT, special=None):
    """Keep a thread of supersteps that each add an item."""
    batches = []
    for number in range(count):
        write = [item(number)]
        if special is not None and number in special:
            write = special[number]
        batches.append(
            Batch(
                address=Address("t"),
                checkpoint=Checkpoint(
                    id=id_of(number),
                    parent_id=id_of(number - 1) if number else None,
                    at=number,
                    step=number,
                    source="loop",
                    channel_versions={"log": number + 1},
                    versions_seen={},
                    changed=("log",),
                    deltas={"log": Delta(number or None, (write,))},
                ),
            )
        )
    saver.commit(batches)


def logs(app, limit=10):
    return [state.values["log"] for state in app.get_state_history(T, limit=limit)]


@pytest.mark.parametrize(
    "item", [str, lambda n: [n], lambda n: {"n": n}, ValueError, lambda n: (n, [n])],
    ids=["texts", "lists", "dicts", "errors", "tuples"],
)  # fmt: skip
def test_each_state_is_the_fold_of_its_own_deltas(saver, item):
    fill(saver, item)

    found = logs(program(saver, Reducer()), 100)

    expected = [[item(at) for at in range(COUNT - back)] for back in range(100)]
    assert list(map(repr, expected)) == list(map(repr, found))


def test_what_is_done_to_one_state_no_other_sees(saver):
    fill(saver, lambda n: {"n": n})
    states = program(saver, Reducer()).get_state_history(T, limit=3)

    newest = next(states).values["log"]
    for each in newest:
        each["n"] = "changed"
    newest.clear()

    assert [[{"n": at} for at in range(COUNT - back)] for back in (1, 2)] == [
        state.values["log"] for state in states
    ]


def test_the_common_deltas_are_folded_once(saver):
    fill(saver, str)
    reducer = Reducer()

    logs(program(saver, reducer), 20)

    assert COUNT <= reducer.folded < 1.2 * COUNT + 20 * 90


def test_an_overwrite_in_the_midst_starts_anew(saver):
    fill(saver, str, special={370: Overwrite(["new"])})

    found = logs(program(saver, Reducer()), 100)

    assert ["new", *map(str, range(371, COUNT))] == found[0]
    assert ["new"] == found[COUNT - 371]
    assert [*map(str, range(370))] == found[COUNT - 370]


def test_a_value_that_cannot_be_copied_is_folded_for_each_state(saver):
    class Fussy(list):
        def __reduce__(self):
            raise RuntimeError("not to be copied")

    def fold(state, writes):
        return Fussy([*state, *(item for write in writes for item in write)])

    fill(saver, str)

    assert [[*map(str, range(COUNT - back))] for back in range(5)] == logs(program(saver, fold), 5)


def test_a_reducer_that_fails_says_so(saver):
    def fold(state, writes):
        raise ZeroDivisionError("no")

    fill(saver, str)

    with pytest.raises(ZeroDivisionError) as raised:
        logs(program(saver, fold))
    assert any("channel 'log'" in note for note in raised.value.__notes__)


def test_a_damaged_class_is_an_error_of_the_state_that_needs_it(saver):
    from flowpregel.errors import ValueEncodingError

    fill(saver, str, special={5: [Unreadable()]})

    with pytest.raises(ValueEncodingError, match="what was added to channel 'log'"):
        logs(program(saver, Reducer()))


class Unreadable:
    """Is written, and never read."""

    def __reduce__(self):
        return divmod, (1, 0)


def test_it_is_the_same_in_memory(saver):
    memory = InMemorySaver()
    for each in (saver, memory):
        fill(each, lambda n: [n])

    assert logs(program(memory, Reducer())) == logs(program(saver, Reducer()))


def test_the_writes_of_a_history_compare_and_are_indexed_as_a_tuple(saver):
    fill(saver, str, 5)

    writes = next(saver.history(Address("t"))).deltas["log"].writes

    expected = tuple((([str(at)],)) for at in range(5))
    assert expected == writes
    assert (expected[0], expected[-1], expected[1:3]) == (writes[0], writes[-1], writes[1:3])
    assert 5 == len(writes)
    assert expected == pickle.loads(pickle.dumps(writes)) == copy.deepcopy(writes)
    assert repr(expected) == repr(writes)
    assert writes != expected[1:]
    assert writes != "no sequence of writes"
