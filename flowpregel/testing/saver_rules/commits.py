"""Rules of `load` and `commit`, and of the values that are kept."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import Address, Batch, PendingWrite
from flowpregel.checkpoint.transactional import TransactionalSaver
from flowpregel.errors import FlowPregelError, InvalidUpdateError, ValueEncodingError
from flowpregel.testing.saver_rules.records import Hooks, Line, ids, nth_id, task_id, writes


class CommitRules(Hooks):
    """What belongs together is kept together."""

    def test_a_checkpoint_reads_back_as_it_was_committed(
        self, saver: TransactionalSaver, tmp_path: Path
    ) -> None:
        line = Line(saver, "t", "ns")
        line.commit(1, {"a": 1, "b": 1})
        batch = line.batch(
            2, {"a": [2]}, source="update", metadata={"run_id": "r", "parents": {"": "x"}}
        )
        saver.commit([batch])
        given = batch.checkpoint
        assert given is not None

        line.saver = self.reopen(saver, tmp_path)
        got = line.load().checkpoint

        assert got.values == {"a": [2], "b": 1}
        for name in (
            "id", "parent_id", "at", "step", "source", "channel_versions", "versions_seen",
            "updated_channels", "metadata",
        ):  # fmt: skip
            assert getattr(given, name) == getattr(got, name), name

    def test_load_gives_the_newest_a_named_one_or_one_before(
        self, saver: TransactionalSaver
    ) -> None:
        line = Line(saver, "t")
        for number in (1, 2, 3):
            line.commit(number, {"a": number})

        def value_at(address: Address, before: str | None = None) -> Any:
            found = saver.load(address, before=before)
            return None if found is None else found.checkpoint.values["a"]

        assert value_at(Address("t")) == 3
        assert value_at(Address("t", "", nth_id(1))) == 1
        assert value_at(Address("t"), nth_id(3)) == 2
        assert value_at(Address("t"), nth_id(1)) is None
        assert value_at(Address("t", "", nth_id(9))) is None
        assert value_at(Address("t", "other")) is None

    def test_what_is_loaded_names_its_own_address(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t", "ns")
        line.commit(1)

        assert Address("t", "ns", nth_id(1)) == line.load().address

    def test_writes_and_their_checkpoint_are_kept_together(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        checkpoint = line.batch(1, {"a": 1}).checkpoint
        pending = writes("t", 1, ("a", 2), ("__resume__", [3])).writes
        saver.commit([Batch(address=Address("t"), writes=pending, checkpoint=checkpoint)])

        saved = line.load()

        assert saved.checkpoint.values == {"a": 1}
        expected = {("a", 2): 1, ("__resume__", 3): 1}
        got = {(w.channel, w.value if w.channel == "a" else w.value[0]): 1 for w in saved.writes}
        assert expected == got

    def test_writes_that_a_checkpoint_consumed_stay_readable(
        self, saver: TransactionalSaver
    ) -> None:
        line = Line(saver, "t")
        line.commit(1)
        saver.commit([writes("t", 1, ("a", 1)), line.batch(2, {"a": 1})])

        assert (PendingWrite(task_id(1), "a", 1),) == line.load(1).writes
        assert line.load(2).writes == ()

    def test_several_batches_are_kept_in_their_order(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        saver.commit([line.batch(number, {"a": number}) for number in range(1, 40)])

        assert [nth_id(number) for number in range(39, 0, -1)] == ids(saver, "t")
        assert line.load().checkpoint.values == {"a": 39}

    def test_nothing_is_kept_when_one_of_several_batches_fails(
        self, saver: TransactionalSaver
    ) -> None:
        root, child = Line(saver, "t"), Line(saver, "t", "child")
        root.commit(1, {"a": 1})
        bad = child.batch(3, {"lock": threading.Lock()})

        with pytest.raises(ValueEncodingError):
            saver.commit([writes("t", 1, ("a", 2)), root.batch(2, {"a": 2}), bad])

        assert [nth_id(1)] == ids(saver, "t")
        assert root.load(1).writes == ()
        assert [each.namespace for each in saver.namespaces("t")] == [""]

    def test_no_batch_at_all_is_no_error(self, saver: TransactionalSaver) -> None:
        saver.commit([])
        saver.commit([Batch(address=Address("t"))])

        assert [*saver.namespaces()] == []

    def test_an_emptied_channel_has_no_value_and_its_past_keeps_it(
        self, saver: TransactionalSaver
    ) -> None:
        line = Line(saver, "t")
        line.commit(1, {"a": 1, "b": 1})
        line.commit(2, emptied=("a",))

        assert line.load().checkpoint.values == {"b": 1}
        assert line.load(1).checkpoint.values == {"a": 1, "b": 1}

    def test_forks_do_not_see_each_other(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, {"a": 1, "b": 1})
        fork = line.fork()
        line.commit(2, {"a": 2})
        fork.commit(3, {"a": 3})
        line.commit(4, {"b": 4})

        assert line.load(3).checkpoint.values == {"a": 3, "b": 1}
        assert line.load(4).checkpoint.values == {"a": 2, "b": 4}
        assert nth_id(2) == line.load(4).checkpoint.parent_id


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "int": -7,
    "long": 2**200,
    "float": 0.1,
    "infinity": float("inf"),
    "complex": 1 + 2j,
    "text": "ünï\0code",
    "surrogate": "\ud800",
    "bytes": b"\0\xff",
    "bytearray": bytearray(b"x"),
    "large": b"x" * 300_000,
    "list": [1, [2, (3,)]],
    "tuple": (1, (2,), [3]),
    "one": (b"x",),
    "empty": (),
    "dict": {1: "a", (2, 3): "b", None: {}},
    "set": {1, "a"},
    "frozenset": frozenset({(1, 2)}),
    "range": range(3),
    "time": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "class": InvalidUpdateError,
}


class ValueRules(Hooks):
    """A value reads back as it was, whatever happens to the object since."""

    @pytest.mark.parametrize("kind", VALUES)
    def test_a_value_reads_back_equal_and_of_its_type(
        self, saver: TransactionalSaver, kind: str, tmp_path: Path
    ) -> None:
        value = VALUES[kind]
        line = Line(saver, "t")
        saver.commit([line.batch(1, {"a": value}, metadata={"k": value})])
        saver.commit([writes("t", 1, ("a", value))])

        line.saver = self.reopen(saver, tmp_path)
        saved = line.load()

        for got in (saved.checkpoint.values["a"], saved.checkpoint.metadata["k"]):
            assert value == got
            assert type(value) is type(got)
        assert (PendingWrite(task_id(1), "a", value),) == saved.writes

    def test_an_exception_keeps_its_type_and_arguments(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1)
        saver.commit([writes("t", 1, ("__error__", InvalidUpdateError("what", 2)))])

        got = line.load().writes[0].value

        assert InvalidUpdateError is type(got)
        assert isinstance(got, FlowPregelError)
        assert got.args == ("what", 2)

    def test_a_closure_can_be_kept(self, saver: TransactionalSaver) -> None:
        addend = 40
        line = Line(saver, "t")
        line.commit(1, {"a": lambda number: number + addend})

        assert line.load().checkpoint.values["a"](2) == 42

    def test_a_later_change_of_an_object_changes_no_history(
        self, saver: TransactionalSaver
    ) -> None:
        value, pending, metadata = [1], [1], {"tags": [1]}
        line = Line(saver, "t")
        batch = line.batch(1, {"a": value}, {"d": (value,)}, metadata=metadata)
        saver.commit([batch])
        saver.commit([writes("t", 1, ("a", pending))])
        value.append(2)
        pending.append(2)
        metadata["tags"].append(2)
        versions: Any = batch.checkpoint.channel_versions if batch.checkpoint else {}
        before = dict(versions)
        versions["a"] = 0

        saved = line.load()

        assert saved.checkpoint.values["a"] == [1]
        assert saved.deltas["d"].writes == (([1],),)
        assert saved.writes[0].value == [1]
        assert saved.checkpoint.metadata == {"tags": [1]}
        assert saved.checkpoint.channel_versions == before

    def test_a_change_of_what_was_read_changes_no_history(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        saver.commit([line.batch(1, {"a": [1]}, {"d": ([1],)}), writes("t", 1, ("a", [1]))])
        found: Any = line.load()
        before = repr(found)
        found.checkpoint.values["a"].append(2)
        found.checkpoint.channel_versions["a"] = 0
        found.checkpoint.versions_seen["node"]["a"] = 0
        found.deltas["d"].writes[0][0].append(2)
        found.writes[0].value.append(2)

        assert before == repr(line.load())

    def test_a_value_that_cannot_be_kept_is_named(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")

        with pytest.raises(ValueEncodingError, match="my channel"):
            saver.commit([line.batch(1, {"my channel": threading.Lock()})])
        with pytest.raises(ValueEncodingError, match="my channel"):
            saver.commit([line.batch(1, None, {"my channel": (threading.Lock(),)})])
        with pytest.raises(ValueEncodingError, match=f"(?s){task_id(7)}.*my channel"):
            saver.commit([writes("t", 1, ("my channel", threading.Lock()), task=7)])
        assert [*saver.namespaces()] == []
