"""What every saver must do, as tests that anyone can run on theirs.

Subclass `SaverContract` in a test module of pytest, and define how a saver is made::

    class TestMySaver(SaverContract):
        def make_saver(self, folder):
            return MySaver(folder / "store")

        def reopen(self, saver, folder):   # only for a saver that keeps a file
            saver.close()
            return MySaver(folder / "store")
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Address, Batch, PendingWrite, Write
from flowpregel.checkpoint.base import BaseCheckpointSaver as Saver
from flowpregel.errors import ValueEncodingError
from flowpregel.testing import saver_values
from flowpregel.testing.saver_values import SaverHooks, Timeline, ids, nth_id, task_id, writes

__all__ = ["SaverContract"]

FAILED = (("__error__", "broken"), ("__error_source_node__", "node"))
PENDING: dict[str, tuple[list[tuple[Write, ...]], list[Write]]] = {
    "a write names its channel": ([(("a", 1), ("b", [2]))], [("a", 1), ("b", [2])]),
    "a write that is kept does not change": (
        [(("a", "first"),), (("a", "second"), ("b", "new"))],
        [("a", "first"), ("b", "new")],
    ),
    "a newer control write replaces the older": (
        [(("__resume__", "old"),), (("a", 1), ("__resume__", "new"))],
        [("__resume__", "new"), ("a", 1)],
    ),
    "a question replaces the one before": (
        [(("__interrupt__", "old"),), (("__interrupt__", "new"),)],
        [("__interrupt__", "new")],
    ),
    "an error replaces the one before": (
        [(("__error__", "old"),), (("__error__", "new"),)],
        [("__error__", "new")],
    ),
    "a failed attempt leaves the positions of the next one free": (
        [FAILED, (("a", 1), ("b", 2))],
        [FAILED[1], FAILED[0], ("a", 1), ("b", 2)],
    ),
    "no writes at all are kept as none": ([()], []),
}
"""Writes of one task, one commit after another, and what is pending then."""


class CommitRules(SaverHooks):
    """What belongs together is kept together, and read back by its address."""

    def test_an_unknown_thread_gives_none_and_leaves_no_trace(self, saver: Saver) -> None:
        assert saver.load(Address("unknown")) is None
        assert saver.load(Address("unknown", "", nth_id(1))) is None
        assert [*saver.history(Address("unknown"))] == []
        assert [*saver.namespaces()] == [*saver.namespaces("unknown")] == []

    def test_a_checkpoint_reads_back_as_it_was_committed(
        self, saver: Saver, tmp_path: Path
    ) -> None:
        line = Timeline(saver, "t", "ns")
        line.commit(1, {"a": 1, "b": 1})
        metadata = {"run_id": "r", "parents": {"": "x"}}
        batch = line.batch(2, {"a": [2]}, source="update", metadata=metadata)
        saver.commit([batch])

        line.saver = self.reopen(saver, tmp_path)
        got = line.load()

        assert Address("t", "ns", nth_id(2)) == got.address
        assert got.checkpoint.values == {"a": [2], "b": 1}
        for name in (
            "id", "parent_id", "at", "step", "source", "channel_versions", "versions_seen",
            "updated_channels", "metadata",
        ):  # fmt: skip
            assert getattr(batch.checkpoint, name) == getattr(got.checkpoint, name), name

    def test_load_gives_the_newest_a_named_one_or_one_before(self, line: Timeline) -> None:
        for number in (2, 3, 1):
            line.commit(number, {"a": number})

        def value_at(address: Address, before: str | None = None) -> Any:
            found = line.saver.load(address, before=before)
            return None if found is None else found.checkpoint.values["a"]

        assert value_at(Address("t")) == 3
        assert value_at(Address("t", "", nth_id(1))) == 1
        assert value_at(Address("t"), nth_id(3)) == 2
        assert value_at(Address("t"), nth_id(1)) is None
        assert value_at(Address("t", "", nth_id(9))) is None
        assert value_at(Address("t", "other")) is None

    @pytest.mark.parametrize("version", [1, 2**62, 1.5, "00000000000000000000000000000001.0.5"])
    def test_a_version_may_be_a_number_or_a_text(self, line: Timeline, version: Any) -> None:
        batch: Any = line.batch(1, {"a": "x"})
        batch.checkpoint.channel_versions = {"a": version}
        line.saver.commit([batch])

        found = line.load().checkpoint

        assert {"a": version} == found.channel_versions
        assert type(version) is type(found.channel_versions["a"])
        assert found.values == {"a": "x"}

    def test_writes_that_a_checkpoint_consumed_stay_readable(self, line: Timeline) -> None:
        first = line.batch(1).checkpoint
        line.saver.commit([Batch(line.address, writes("t", 1, ("a", 1)).writes, first)])
        line.commit(2, {"a": 1})

        assert (PendingWrite(task_id(1), "a", 1),) == line.load(1).writes
        assert line.load(2).writes == ()

    def test_several_batches_are_kept_in_their_order(self, line: Timeline) -> None:
        line.saver.commit([line.batch(number, {"a": number}) for number in range(1, 40)])

        assert [nth_id(number) for number in range(39, 0, -1)] == ids(line.saver, "t")
        assert line.load().checkpoint.values == {"a": 39}

    def test_nothing_is_kept_when_one_of_several_batches_fails(self, saver: Saver) -> None:
        root, child = Timeline(saver, "t"), Timeline(saver, "t", "child")
        root.commit(1, {"a": 1})
        bad = child.batch(3, {"lock": threading.Lock()})

        with pytest.raises(ValueEncodingError):
            saver.commit([writes("t", 1, ("a", 2)), root.batch(2, {"a": 2}), bad])

        assert [nth_id(1)] == ids(saver, "t")
        assert root.load(1).writes == ()
        assert [each.namespace for each in saver.namespaces("t")] == [""]

    def test_no_batch_at_all_is_no_error(self, saver: Saver) -> None:
        saver.commit([])
        saver.commit([Batch(address=Address("t"))])

        assert [*saver.namespaces()] == []

    def test_an_emptied_channel_has_no_value_and_its_past_keeps_it(self, line: Timeline) -> None:
        line.commit(1, {"a": 1, "b": 1})
        line.commit(2, emptied=("a",))

        assert line.load().checkpoint.values == {"b": 1}
        assert line.load(1).checkpoint.values == {"a": 1, "b": 1}

    def test_forks_do_not_see_each_other(self, line: Timeline) -> None:
        line.commit(1, {"a": 1, "b": 1})
        fork = line.fork()
        line.commit(2, {"a": 2})
        fork.commit(3, {"a": 3})
        line.commit(4, {"b": 4})

        assert line.load(3).checkpoint.values == {"a": 3, "b": 1}
        assert line.load(4).checkpoint.values == {"a": 2, "b": 4}
        assert nth_id(2) == line.load(4).checkpoint.parent_id


class PendingWriteRules(SaverHooks):
    """What a task wrote before its superstep ended."""

    @pytest.mark.parametrize("rule", PENDING)
    def test_pending_writes_of_one_task(self, line: Timeline, rule: str) -> None:
        commits, expected = PENDING[rule]
        line.commit(1)
        for pairs in commits:
            line.saver.commit([writes("t", 1, *pairs)])

        kept = line.load().writes

        assert expected == [(write.channel, write.value) for write in kept]
        assert {task_id(1)} >= {write.task_id for write in kept}

    def test_they_are_ordered_by_path_then_task_then_position(self, saver: Saver) -> None:
        Timeline(saver, "t").commit(1)
        many = [("a", number) for number in range(12)]
        saver.commit([writes("t", 1, ("late", 0), path="q")])
        saver.commit([writes("t", 1, ("second task", 0), task=3), writes("t", 1, *many, task=2)])

        order = [(write.channel, write.value) for write in Timeline(saver, "t").load().writes]

        assert [*many, ("second task", 0), ("late", 0)] == order

    def test_they_may_come_before_their_checkpoint(self, saver: Saver) -> None:
        saver.commit([writes("t", 1, ("a", 1))])
        assert saver.load(Address("t", "", nth_id(1))) is None
        assert [*saver.namespaces()] == []

        Timeline(saver, "t").commit(1)

        assert (PendingWrite(task_id(1), "a", 1),) == Timeline(saver, "t").load().writes

    def test_they_belong_to_one_checkpoint_of_one_namespace(self, saver: Saver) -> None:
        line, child = Timeline(saver, "t"), Timeline(saver, "t", "child")
        saver.commit([line.batch(1), line.batch(2), child.batch(1), writes("t", 1, ("a", 1))])

        assert [len(line.load(number).writes) for number in (1, 2)] == [1, 0]
        assert child.load(1).writes == ()


class HistoryRules(SaverHooks):
    """Which checkpoints a history has, and in which order."""

    @pytest.fixture
    def five(self, saver: Saver) -> Timeline:
        """Five checkpoints: odd ones of inputs, the first with a score."""
        five = Timeline(saver, "t")
        Timeline(saver, "t", "child").commit(9)
        for number in range(1, 6):
            metadata = {"run_id": f"r{number // 2}"} | ({"score": 42} if number == 1 else {})
            source = "input" if number % 2 else "loop"
            five.commit(number, {"a": number}, source=source, metadata=metadata)
        return five

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, [5, 4, 3, 2, 1]),
            ({"before": 3}, [2, 1]),
            ({"before": 1}, []),
            ({"before": 99}, [5, 4, 3, 2, 1]),
            ({"limit": 2}, [5, 4]),
            ({"limit": 0}, []),
            ({"limit": 99}, [5, 4, 3, 2, 1]),
            ({"filter": {}}, [5, 4, 3, 2, 1]),
            ({"filter": {"source": "loop"}}, [4, 2]),
            ({"filter": {"step": 0}}, [2]),
            ({"filter": {"run_id": "r1"}}, [3, 2]),
            ({"filter": {"source": "input", "score": 42}}, [1]),
            ({"filter": {"source": "loop", "score": 42}}, []),
            ({"filter": {"source": "fork"}}, []),
            ({"filter": {"no such key": 1}}, []),
            ({"filter": {"source": "input"}, "before": 5, "limit": 1}, [3]),
        ],
    )
    def test_a_history_is_newest_first_and_keeps_its_bounds(
        self, five: Timeline, options: dict[str, Any], expected: list[int]
    ) -> None:
        if "before" in options:
            options = {**options, "before": nth_id(options["before"])}

        found = [each.checkpoint.id for each in five.saver.history(Address("t"), **options)]

        assert [nth_id(number) for number in expected] == found

    def test_what_a_history_has_is_what_load_gives(self, five: Timeline) -> None:
        five.saver.commit([writes("t", 4, ("a", "pending"))])

        for saved in five.saver.history(Address("t")):
            assert five.saver.load(saved.address) == saved
            assert [saved] == [*five.saver.history(saved.address)]
            assert (saved.checkpoint.id == nth_id(5)) == saved.is_latest
            assert nth_id(5) == saved.newest_id

    def test_a_history_goes_on_while_its_thread_does(self, five: Timeline) -> None:
        going = five.saver.history(Address("t"))
        next(going)
        five.saver.delete_thread("u")
        five.commit(6, {"a": 6})

        assert {nth_id(1), nth_id(2)} <= {each.checkpoint.id for each in going}

    def test_namespaces_are_those_that_have_a_checkpoint(self, five: Timeline) -> None:
        Timeline(five.saver, "u").commit(3)
        five.saver.commit([writes("v", 4, ("a", 1))])

        of_one = [Address("t"), Address("t", "child")]
        assert {*of_one, Address("u")} == {*five.saver.namespaces()}
        assert {*of_one} == {*five.saver.namespaces("t")}


class SaverContract(
    CommitRules,
    PendingWriteRules,
    HistoryRules,
    saver_values.ValueRules,
    saver_values.NameRules,
    saver_values.DeltaRules,
):
    """Every rule of what a `BaseCheckpointSaver` has to do.

    A subclass gives `make_saver`, and `reopen` if the saver has something on disk.
    """
