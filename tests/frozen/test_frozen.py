"""What was recorded one day is found and read by every later version: digests, ids and
a whole store.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowpregel.storage.codec import PythonCodec
from flowpregel.types import Command
from tests.frozen import program
from tests.frozen.digests import DIGESTS, STORE, digests


@pytest.fixture
def flows(tmp_path: Path) -> Iterator[program.Flows]:
    """Return the program's flows on the recorded store."""
    with tarfile.open(STORE) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "store").chmod(0o700)
    program.EXECUTED.clear()
    program.BROKEN[0] = True
    flows = program.Flows(tmp_path)
    yield flows
    flows.close()


def test_over_five_hundred_digests_and_ids_are_those_that_were_recorded() -> None:
    recorded = json.loads(DIGESTS.read_text())

    computed = digests()

    assert 500 <= len(recorded)
    changed = {name: computed.get(name) for name in recorded}
    assert recorded == changed


def test_a_finished_run_of_a_recorded_store_gives_its_result(
    flows: program.Flows,
) -> None:
    result = flows.finished.run([1, 2, 3], id="finished")

    assert ([2, 4, 6], program.Part("wheel", [1.5, 2.5])) == result
    assert [] == program.EXECUTED


def test_a_failed_run_of_a_recorded_store_repeats_only_what_failed(
    flows: program.Flows,
) -> None:
    program.BROKEN[0] = False

    result = flows.failed.run([1, 2, 3], id="failed")

    assert ([3, 6, 9], {"name": "r", "data": [0, 1, 2]}, 7) == result
    assert ["fragile(7)"] == program.EXECUTED


def test_a_question_of_a_recorded_store_can_be_answered(flows: program.Flows) -> None:
    result = flows.asking.invoke(Command(resume="yes"), thread_id="asking")

    assert "Ann 42 yes" == result
    assert [] == program.EXECUTED


def test_a_graph_of_a_recorded_store_is_continued(flows: program.Flows) -> None:
    before = flows.graph.get_state(thread_id="graph")
    assert {"total": 11, "log": [5, 1]} == before.values
    assert ("two",) == before.next

    result = flows.answer_graph(4)

    assert {"total": 15, "log": [5, 1, 4]} == result
    history = [*flows.graph.get_state_history(thread_id="graph")]
    assert [[5, 1, 4], [5, 1], [5], []] == [
        state.values.get("log", []) for state in history
    ]


def test_items_and_shared_results_of_a_recorded_store_are_read(
    flows: program.Flows,
) -> None:
    item = flows.store.get(("users", "ann"), "profile")

    assert item is not None
    assert {"age": 41} == item.value
    assert [4, 9] == flows.squares.invoke([2, 3])
    assert [] == program.EXECUTED


class OrderError(Exception):
    """An error whose class takes other arguments than it passes on."""

    def __init__(self, order: int) -> None:
        super().__init__(f"order {order} failed")
        self.order = order


def test_an_error_is_read_that_names_an_earlier_module_of_the_codec() -> None:
    codec = PythonCodec()
    module, earlier = b"flowpregel.storage.codec", b"flowpregel._lmdb.codec"
    data = codec.encode(OrderError(7))
    # A short text of a pickle has its length before it, and no frame is needed.
    name = bytes((len(module),)) + module
    start = data.index(b"\x80\x05")
    recorded = data[:start] + data[start:].replace(
        name, bytes((len(earlier),)) + earlier
    )
    frame = recorded.index(b"\x95", start)
    recorded = recorded[:frame] + recorded[frame + 9 :]

    error = codec.decode(recorded)

    assert earlier in recorded
    assert ("order 7 failed", 7) == (str(error), error.order)
