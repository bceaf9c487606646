"""The contract of a saver, as tests that you can run on your own saver.

Subclass `SaverContract` in a pytest module, and define how to create a saver::

    class TestMySaver(SaverContract):
        def make_saver(self, folder):
            return MySaver(folder / "store")

        def reopen(self, saver, folder):   # only for a saver that keeps a file
            saver.close()
            return MySaver(folder / "store")
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Address, Batch, PendingWrite, Write
from flowpregel.checkpoint.base import BaseCheckpointSaver as Saver
from flowpregel.errors import ValueEncodingError
from flowpregel.testing.saver_hooks import (
    SaverHooks,
    Timeline,
    ids,
    nth_id,
    nth_task_id,
    writes,
)
from flowpregel.testing.saver_values import DeltaRules, NameRules, ValueRules

__all__ = ["SaverContract"]

FAILED = (
    ("__error__", "broken"),
    ("__error_source_node__", "node"),
)


@dataclass(frozen=True, slots=True)
class PendingCase:
    """The commits of one task, and the pending writes that the saver must have after
    them.
    """

    commits: Sequence[tuple[Write, ...]]
    pending: Sequence[Write]


PENDING: dict[str, PendingCase] = {
    "a write names its channel": PendingCase(
        commits=[
            (("a", 1), ("b", [2])),
        ],
        pending=[
            ("a", 1),
            ("b", [2]),
        ],
    ),
    "a write that is kept does not change": PendingCase(
        commits=[
            (("a", "first"),),
            (("a", "second"), ("b", "new")),
        ],
        pending=[
            ("a", "first"),
            ("b", "new"),
        ],
    ),
    "a newer control write replaces the older": PendingCase(
        commits=[
            (("__resume__", "old"),),
            (("a", 1), ("__resume__", "new")),
        ],
        pending=[
            ("__resume__", "new"),
            ("a", 1),
        ],
    ),
    "a question replaces the one before": PendingCase(
        commits=[
            (("__interrupt__", "old"),),
            (("__interrupt__", "new"),),
        ],
        pending=[
            ("__interrupt__", "new"),
        ],
    ),
    "an error replaces the one before": PendingCase(
        commits=[
            (("__error__", "old"),),
            (("__error__", "new"),),
        ],
        pending=[
            ("__error__", "new"),
        ],
    ),
    "a failed attempt leaves the positions of the next one free": PendingCase(
        commits=[
            FAILED,
            (("a", 1), ("b", 2)),
        ],
        pending=[
            FAILED[1],
            FAILED[0],
            ("a", 1),
            ("b", 2),
        ],
    ),
    "no writes at all are kept as none": PendingCase(
        commits=[()],
        pending=[],
    ),
}


def _address_of(number: int) -> Address:
    """Return the address of a checkpoint in the thread ``t``."""
    return Address(
        thread_id="t",
        namespace="",
        checkpoint_id=nth_id(number),
    )


def _pairs(pending: Sequence[PendingWrite]) -> list[Write]:
    """Return the channel and the value of each write."""
    return [(write.channel, write.value) for write in pending]


class CommitRules(SaverHooks):
    """Rules for commits: the records of one commit are stored together, and each is
    read back by its address.
    """

    def test_an_unknown_thread_gives_none_and_leaves_no_trace(
        self,
        saver: Saver,
    ) -> None:
        unknown = Address("unknown")

        assert saver.load(unknown) is None
        assert saver.load(Address("unknown", "", nth_id(1))) is None
        assert list(saver.history(unknown)) == []
        assert list(saver.namespaces()) == []
        assert list(saver.namespaces("unknown")) == []

    def test_a_checkpoint_reads_back_as_it_was_committed(
        self,
        saver: Saver,
        tmp_path: Path,
    ) -> None:
        line = Timeline(saver, "t", "ns")
        line.commit(1, {"a": 1, "b": 1})
        batch: Any = line.batch(
            2,
            {"a": [2]},
            source="update",
            metadata={"run_id": "r", "parents": {"": "x"}},
        )
        saver.commit([batch])
        expected = batch.checkpoint

        line.saver = self.reopen(saver, tmp_path)
        saved = line.load()
        checkpoint = saved.checkpoint

        assert Address("t", "ns", nth_id(2)) == saved.address
        assert checkpoint.values == {"a": [2], "b": 1}
        assert expected.id == checkpoint.id
        assert expected.parent_id == checkpoint.parent_id
        assert expected.at == checkpoint.at
        assert expected.step == checkpoint.step
        assert expected.source == checkpoint.source
        assert expected.channel_versions == checkpoint.channel_versions
        assert expected.versions_seen == checkpoint.versions_seen
        assert expected.updated_channels == checkpoint.updated_channels
        assert expected.metadata == checkpoint.metadata

    def test_load_gives_the_newest_a_named_one_or_one_before(
        self,
        line: Timeline,
    ) -> None:
        for number in (2, 3, 1):
            line.commit(number, {"a": number})
        newest = Address("t")

        def value_at(address: Address, before: str | None = None) -> Any:
            saved = line.saver.load(address, before=before)
            if saved is None:
                return None
            return saved.checkpoint.values["a"]

        assert value_at(newest) == 3
        assert value_at(_address_of(1)) == 1
        assert value_at(newest, before=nth_id(3)) == 2
        assert value_at(newest, before=nth_id(1)) is None
        assert value_at(_address_of(9)) is None
        assert value_at(Address("t", "other")) is None

    @pytest.mark.parametrize(
        "version",
        [
            1,
            2**62,
            1.5,
            "00000000000000000000000000000001.0.5",
        ],
    )
    def test_a_version_may_be_a_number_or_a_text(
        self,
        line: Timeline,
        version: Any,
    ) -> None:
        batch: Any = line.batch(1, {"a": "x"})
        batch.checkpoint = replace(batch.checkpoint, channel_versions={"a": version})
        line.saver.commit([batch])

        checkpoint = line.load().checkpoint

        assert {"a": version} == checkpoint.channel_versions
        assert type(version) is type(checkpoint.channel_versions["a"])
        assert checkpoint.values == {"a": "x"}

    def test_writes_that_a_checkpoint_consumed_stay_readable(
        self,
        line: Timeline,
    ) -> None:
        pending = writes("t", 1, ("a", 1)).writes
        first = line.batch(1)
        line.saver.commit([replace(first, writes=pending)])
        line.commit(2, {"a": 1})

        first_write = PendingWrite(nth_task_id(1), "a", 1)
        assert (first_write,) == line.load(1).writes
        assert line.load(2).writes == ()

    def test_several_batches_are_kept_in_their_order(self, line: Timeline) -> None:
        numbers = range(1, 40)
        batches = [line.batch(number, {"a": number}) for number in numbers]
        line.saver.commit(batches)

        newest_first = [nth_id(number) for number in reversed(numbers)]
        assert newest_first == ids(line.saver, "t")
        assert line.load().checkpoint.values == {"a": 39}

    def test_nothing_is_kept_when_one_of_several_batches_fails(
        self,
        saver: Saver,
    ) -> None:
        root = Timeline(saver, "t")
        child = Timeline(saver, "t", "child")
        root.commit(1, {"a": 1})
        batches = [
            writes("t", 1, ("a", 2)),
            root.batch(2, {"a": 2}),
            child.batch(3, {"lock": threading.Lock()}),
        ]

        with pytest.raises(ValueEncodingError):
            saver.commit(batches)

        assert [nth_id(1)] == ids(saver, "t")
        assert root.load(1).writes == ()
        namespaces = [address.namespace for address in saver.namespaces("t")]
        assert namespaces == [""]

    def test_no_batch_at_all_is_no_error(self, saver: Saver) -> None:
        saver.commit([])
        saver.commit([Batch(address=Address("t"))])

        assert list(saver.namespaces()) == []

    def test_an_emptied_channel_has_no_value_and_its_past_keeps_it(
        self,
        line: Timeline,
    ) -> None:
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
    """Rules for pending writes, which are saved before the superstep of a task ends."""

    @pytest.mark.parametrize("rule", PENDING)
    def test_pending_writes_of_one_task(self, line: Timeline, rule: str) -> None:
        case = PENDING[rule]
        line.commit(1)
        for pairs in case.commits:
            line.saver.commit([writes("t", 1, *pairs)])

        pending = line.load().writes

        assert case.pending == _pairs(pending)
        assert {nth_task_id(1)} >= {write.task_id for write in pending}

    def test_they_are_ordered_by_path_then_task_then_position(
        self,
        saver: Saver,
    ) -> None:
        line = Timeline(saver, "t")
        line.commit(1)
        many = [("a", number) for number in range(12)]
        late = ("late", 0)
        second = ("second task", 0)
        saver.commit([writes("t", 1, late, path="q")])
        batches = [
            writes("t", 1, second, task=3),
            writes("t", 1, *many, task=2),
        ]
        saver.commit(batches)

        order = _pairs(line.load().writes)

        assert [*many, second, late] == order

    def test_they_may_come_before_their_checkpoint(self, saver: Saver) -> None:
        saver.commit([writes("t", 1, ("a", 1))])
        assert saver.load(_address_of(1)) is None
        assert list(saver.namespaces()) == []

        line = Timeline(saver, "t")
        line.commit(1)

        early_write = PendingWrite(nth_task_id(1), "a", 1)
        assert (early_write,) == line.load().writes

    def test_they_belong_to_one_checkpoint_of_one_namespace(
        self,
        saver: Saver,
    ) -> None:
        line = Timeline(saver, "t")
        child = Timeline(saver, "t", "child")
        batches = [
            line.batch(1),
            line.batch(2),
            child.batch(1),
            writes("t", 1, ("a", 1)),
        ]
        saver.commit(batches)

        assert len(line.load(1).writes) == 1
        assert line.load(2).writes == ()
        assert child.load(1).writes == ()


HISTORIES = [
    pytest.param(
        {},
        [5, 4, 3, 2, 1],
        id="all",
    ),
    pytest.param(
        {"before": 3},
        [2, 1],
        id="before one",
    ),
    pytest.param(
        {"before": 1},
        [],
        id="before the oldest",
    ),
    pytest.param(
        {"before": 99},
        [5, 4, 3, 2, 1],
        id="before an unknown one",
    ),
    pytest.param(
        {"limit": 2},
        [5, 4],
        id="limit",
    ),
    pytest.param(
        {"limit": 0},
        [],
        id="limit of none",
    ),
    pytest.param(
        {"limit": 99},
        [5, 4, 3, 2, 1],
        id="limit above all",
    ),
    pytest.param(
        {"filter": {}},
        [5, 4, 3, 2, 1],
        id="empty filter",
    ),
    pytest.param(
        {"filter": {"source": "loop"}},
        [4, 2],
        id="by source",
    ),
    pytest.param(
        {"filter": {"step": 0}},
        [2],
        id="by step",
    ),
    pytest.param(
        {"filter": {"run_id": "r1"}},
        [3, 2],
        id="by run",
    ),
    pytest.param(
        {
            "filter": {
                "source": "input",
                "score": 42,
            },
        },
        [1],
        id="by two keys",
    ),
    pytest.param(
        {
            "filter": {
                "source": "loop",
                "score": 42,
            },
        },
        [],
        id="by two keys that exclude each other",
    ),
    pytest.param(
        {"filter": {"source": "fork"}},
        [],
        id="by a source that none has",
    ),
    pytest.param(
        {"filter": {"no such key": 1}},
        [],
        id="by an unknown key",
    ),
    pytest.param(
        {"filter": {"source": "input"}, "before": 5, "limit": 1},
        [3],
        id="filter, before and limit",
    ),
]
"""Test cases: the options of `history`, and the numbers of the checkpoints that it must
yield.
"""


class HistoryRules(SaverHooks):
    """Rules for histories: a history has the checkpoints within its bounds, newest
    first.
    """

    @pytest.fixture
    def five(self, saver: Saver) -> Timeline:
        """A timeline of five checkpoints. Those with an odd number have the source
        ``"input"``, and the metadata of the first has a ``score``.

        Args:
            saver: The saver under test.
        """
        five = Timeline(saver, "t")
        child = Timeline(saver, "t", "child")
        child.commit(9)
        for number in range(1, 6):
            metadata: dict[str, Any] = {"run_id": f"r{number // 2}"}
            if number == 1:
                metadata["score"] = 42
            five.commit(
                number,
                {"a": number},
                source="input" if number % 2 else "loop",
                metadata=metadata,
            )
        return five

    @pytest.mark.parametrize(("options", "expected"), HISTORIES)
    def test_a_history_is_newest_first_and_keeps_its_bounds(
        self,
        five: Timeline,
        options: dict[str, Any],
        expected: list[int],
    ) -> None:
        options = dict(options)
        if "before" in options:
            options["before"] = nth_id(options["before"])

        history = five.saver.history(Address("t"), **options)

        checkpoint_ids = [saved.checkpoint.id for saved in history]
        assert [nth_id(number) for number in expected] == checkpoint_ids

    def test_what_a_history_has_is_what_load_gives(self, five: Timeline) -> None:
        saver = five.saver
        saver.commit([writes("t", 4, ("a", "pending"))])

        for saved in saver.history(Address("t")):
            is_newest = saved.checkpoint.id == nth_id(5)
            assert saver.load(saved.address) == saved
            assert [saved] == list(saver.history(saved.address))
            assert is_newest == saved.is_latest
            assert nth_id(5) == saved.newest_id

    def test_a_history_goes_on_while_its_thread_does(self, five: Timeline) -> None:
        history = five.saver.history(Address("t"))
        next(history)
        five.saver.delete_thread("u")
        five.commit(6, {"a": 6})

        rest = {saved.checkpoint.id for saved in history}
        assert {nth_id(1), nth_id(2)} <= rest

    def test_namespaces_are_those_that_have_a_checkpoint(self, five: Timeline) -> None:
        saver = five.saver
        other = Timeline(saver, "u")
        other.commit(3)
        saver.commit([writes("v", 4, ("a", 1))])

        of_one_thread = {Address("t"), Address("t", "child")}
        assert of_one_thread | {Address("u")} == set(saver.namespaces())
        assert of_one_thread == set(saver.namespaces("t"))


class SaverContract(
    CommitRules,
    PendingWriteRules,
    HistoryRules,
    ValueRules,
    NameRules,
    DeltaRules,
):
    """All rules of the contract of a `BaseCheckpointSaver`.

    A subclass defines `make_saver`, and `reopen` if the saver has files on disk.

    Example:
        >>> from flowpregel.checkpoint.memory import InMemorySaver
        >>> class TestMySaver(SaverContract):
        ...     def make_saver(self, folder):
        ...         return InMemorySaver()
    """
