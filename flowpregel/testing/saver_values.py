"""The rules for values, names and deltas in the saver contract."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core.records import (
    Address,
    Batch,
    Delta,
    DeltaHistory,
    PendingWrite,
    TaskWrites,
)
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.base import BaseCheckpointSaver as Saver
from flowpregel.errors import (
    FlowPregelError,
    InvalidUpdateError,
    ValueEncodingError,
)
from flowpregel.testing.saver_hooks import (
    SaverHooks,
    Timeline,
    nth_id,
    nth_task_id,
    writes,
)

VALUES: tuple[Any, ...] = (
    None,
    True,
    -7,
    2**200,
    0.1,
    float("inf"),
    1 + 2j,
    "ünï\0code",
    "\ud800",
    b"\0\xff",
    bytearray(b"x"),
    b"x" * 300_000,
    [1, [2, (3,)]],
    (1, (2,), [3]),
    (b"x",),
    (),
    {1: "a", (2, 3): "b", None: {}},
    {1, "a"},
    frozenset({(1, 2)}),
    range(3),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    InvalidUpdateError,
)

NAMES = (
    "",
    "\0",
    "a\0b",
    "a",
    "A",
    " ",
    "a|b",
    "a|",
    "a:b",
    "/../",
    "..",
    "\u00e9",
    "e\u0301",
    "\N{SNAKE}",
    "\ud800",
    "\udfff",
    "x" * 10_000,
    "x" * 10_000 + "y",
    "None",
    "0",
)

Step = dict[str, Any]


def _added(*writes: Any) -> Step:
    return {"deltas": {"d": writes}}


def _set(value: Any, channel: str = "d") -> Step:
    return {"values": {channel: value}}


@dataclass(frozen=True, slots=True)
class DeltaCase:
    """The changes of each superstep, and the expected contents of channel ``d``."""

    steps: Sequence[Step]
    expected: Mapping[int, object]
    """The value or the deltas of ``d``, by the number of the checkpoint."""


DELTAS: dict[str, DeltaCase] = {
    "they are given oldest first": DeltaCase(
        steps=[
            _added(1, 2),
            _added([3]),
            _added(),
        ],
        expected={
            1: DeltaHistory(MISSING, ((1, 2),)),
            3: DeltaHistory(MISSING, ((1, 2), ([3],), ())),
        },
    ),
    "a channel that did not move keeps them": DeltaCase(
        steps=[
            _added(1),
            _set(2, "a"),
            _set(3, "a"),
        ],
        expected={
            3: DeltaHistory(MISSING, ((1,),)),
        },
    ),
    "they start from the nearest snapshot": DeltaCase(
        steps=[
            _set(["old"]),
            _added(2),
            _set(["new"]),
            _added(4),
            _added(5),
        ],
        expected={
            2: DeltaHistory(["old"], ((2,),)),
            5: DeltaHistory(["new"], ((4,), (5,))),
        },
    ),
    "at a snapshot a channel has its value": DeltaCase(
        steps=[
            _added(1),
            _set([1, 2]),
        ],
        expected={
            1: DeltaHistory(MISSING, ((1,),)),
            2: [1, 2],
        },
    ),
    "None is a snapshot like any other": DeltaCase(
        steps=[
            _set(None),
            _added(2),
        ],
        expected={
            2: DeltaHistory(None, ((2,),)),
        },
    ),
    "after an emptied channel they start empty": DeltaCase(
        steps=[
            _set(["gone"]),
            {"emptied": ("d",)},
            _added(3),
        ],
        expected={
            3: DeltaHistory(MISSING, ((3,),)),
        },
    ),
}


class DeltaRules(SaverHooks):
    """Rules for deltas (the writes of a superstep, stored in place of the channel's
    value): a delta belongs to the version of the channel that its writes made. It is
    applied to the nearest earlier value that is stored.
    """

    @pytest.mark.parametrize("rule", DELTAS)
    def test_deltas_of_one_channel(
        self,
        line: Timeline,
        rule: str,
        tmp_path: Path,
    ) -> None:
        case = DELTAS[rule]
        for number, step in enumerate(case.steps, 1):
            line.commit(number, **step)

        line.saver = self.reopen(line.saver, tmp_path)

        for number, expected in case.expected.items():
            saved = line.load(number)
            values = saved.checkpoint.values
            if isinstance(expected, DeltaHistory):
                assert "d" not in values
                assert saved.deltas["d"] == expected
            else:
                assert "d" not in saved.deltas
                assert values["d"] == expected

    def test_a_delta_without_a_version_before_starts_empty(
        self,
        line: Timeline,
    ) -> None:
        fresh = ("fresh",)
        line.commit(1, {"d": ["gone"]})
        batch: Any = line.batch(
            2,
            deltas={"d": fresh},
        )
        deltas = {"d": Delta(None, fresh)}
        batch.checkpoint = replace(batch.checkpoint, deltas=deltas)
        line.saver.commit([batch])

        assert DeltaHistory(MISSING, (fresh,)) == line.load().deltas["d"]

    def test_channels_namespaces_and_threads_have_deltas_of_their_own(
        self,
        saver: Saver,
    ) -> None:
        lines = [
            Timeline(saver, "t"),
            Timeline(saver, "t", "child"),
            Timeline(saver, "u"),
        ]
        batches = []
        for line in lines:
            deltas = {
                "d": (line.address,),
                "e": (1,),
            }
            batches.append(line.batch(1, deltas=deltas))
        saver.commit(batches)
        for line in lines:
            line.commit(
                2,
                values={"e": ["snapshot"]},
                deltas={"d": (2,)},
            )
            line.commit(3, deltas={"e": (3,)})

        for line in lines:
            deltas_of_d = ((line.address,), (2,))
            saved = line.load()
            assert saved.deltas == {
                "d": DeltaHistory(MISSING, deltas_of_d),
                "e": DeltaHistory(["snapshot"], ((3,),)),
            }

    def test_many_deltas_are_all_there(self, line: Timeline) -> None:
        deltas = [(number,) for number in range(1, 301)]
        batches = []
        for number, delta in enumerate(deltas, 1):
            batch = line.batch(number, deltas={"d": delta})
            batches.append(batch)
        line.saver.commit(batches)

        newest = line.load().deltas["d"]
        middle = line.load(150).deltas["d"]

        assert tuple(deltas) == newest.writes
        assert tuple(deltas[:150]) == middle.writes


class ValueRules(SaverHooks):
    """Rules for values: a value reads back unchanged, even if the object has changed
    since.
    """

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
    def test_a_value_reads_back_equal_and_of_its_type(
        self,
        line: Timeline,
        value: Any,
        tmp_path: Path,
    ) -> None:
        batch = line.batch(1, {"a": value}, metadata={"k": value})
        line.saver.commit([batch])
        line.saver.commit([writes("t", 1, ("a", value))])

        line.saver = self.reopen(line.saver, tmp_path)
        saved = line.load()
        checkpoint = saved.checkpoint

        for got in (checkpoint.values["a"], checkpoint.metadata["k"]):
            assert value == got
            assert type(value) is type(got)
        pending = PendingWrite(nth_task_id(1), "a", value)
        assert (pending,) == saved.writes

    def test_an_exception_keeps_its_type_and_arguments(self, saver: Saver) -> None:
        line = Timeline(saver, "t")
        line.commit(1)
        error = InvalidUpdateError("what", 2)
        saver.commit([writes("t", 1, ("__error__", error))])

        got = line.load().writes[0].value

        assert InvalidUpdateError is type(got)
        assert isinstance(got, FlowPregelError)
        assert got.args == ("what", 2)

    def test_a_closure_can_be_kept(self, line: Timeline) -> None:
        addend = 40
        line.commit(1, {"a": lambda number: number + addend})

        add = line.load().checkpoint.values["a"]

        assert add(2) == 42

    def test_a_later_change_of_an_object_changes_no_history(
        self,
        saver: Saver,
    ) -> None:
        line = Timeline(saver, "t")
        batch: Any = line.batch(
            1,
            values={"a": [1]},
            deltas={"d": ([1],)},
            metadata={"tags": [1]},
        )
        pending: list[Any] = [1]
        batches = [
            batch,
            writes("t", 1, ("a", pending)),
        ]
        saver.commit(batches)
        before = repr(line.load())

        pending.append(2)
        _change_everything(batch.checkpoint)
        batch.checkpoint.deltas["d"].writes[0].append(2)
        saved: Any = line.load()
        assert before == repr(saved)

        saved.writes[0].value.append(2)
        _change_everything(saved.checkpoint)
        saved.deltas["d"].writes[0][0].append(2)
        assert before == repr(line.load())

    def test_a_value_that_cannot_be_kept_is_named(self, saver: Saver) -> None:
        line = Timeline(saver, "t")
        lock = threading.Lock()
        batches = [
            line.batch(1, values={"my channel": lock}),
            line.batch(1, deltas={"my channel": (lock,)}),
        ]
        for batch in batches:
            with pytest.raises(ValueEncodingError, match="my channel"):
                saver.commit([batch])
        pending = writes("t", 1, ("my channel", lock), task=7)
        message = f"(?s){nth_task_id(7)}.*my channel"
        with pytest.raises(ValueEncodingError, match=message):
            saver.commit([pending])

        assert list(saver.namespaces()) == []

    def test_a_large_write_is_read_with_its_value_after_its_superstep(
        self,
        line: Timeline,
    ) -> None:
        """A store may keep the value only once for the pending write and the
        checkpoint, but a reader gets it from both.
        """
        value = "large" * 100
        line.commit(1, {"a": 1})
        pending = writes("t", 1, ("a", value)).writes
        second = line.batch(2, {"a": value})
        line.saver.commit([replace(second, writes=pending)])

        first_write = PendingWrite(nth_task_id(1), "a", value)
        assert (first_write,) == line.load(1).writes
        history = line.saver.history(Address("t"))
        assert [(), (first_write,)] == [saved.writes for saved in history]
        assert line.load(2).checkpoint.values == {"a": value}


class NameRules(SaverHooks):
    """Rules for names: threads, namespaces, channels and tasks may have any name, and
    are never mixed up.
    """

    @pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[-9:]))
    def test_any_name_reads_back(
        self,
        saver: Saver,
        name: str,
        tmp_path: Path,
    ) -> None:
        address = Address(name, name)
        delta_name = f"{name}!"
        line = Timeline(saver, name, name)
        line.commit(
            1,
            values={name: name},
            deltas={delta_name: (name,)},
        )
        pending = TaskWrites(
            nth_id(1),
            task_id=name,
            path=name,
            writes=((name, name),),
        )
        saver.commit([Batch(address=address, writes=(pending,))])

        line.saver = self.reopen(saver, tmp_path)
        saved = line.load()

        assert Address(name, name, nth_id(1)) == saved.address
        assert {name: name} == saved.checkpoint.values
        assert ((name,),) == saved.deltas[delta_name].writes
        assert (PendingWrite(name, name, name),) == saved.writes
        assert [address] == list(line.saver.namespaces())

    def test_no_two_threads_or_namespaces_are_mixed_up(self, saver: Saver) -> None:
        lines = [
            Timeline(saver, thread_id, namespace)
            for thread_id, namespace in product(NAMES, NAMES)
        ]
        batches = []
        for line in lines:
            batch = line.batch(
                1,
                values={"a": line.address},
                deltas={"d": (line.address,)},
            )
            batches.append(batch)
        saver.commit(batches)

        for line in lines:
            saved = line.load()
            delta = (line.address,)
            assert {"a": line.address} == saved.checkpoint.values
            assert DeltaHistory(MISSING, (delta,)) == saved.deltas["d"]
        addresses = {line.address for line in lines}
        assert addresses == set(saver.namespaces())
        for name in NAMES:
            of_thread = {address for address in addresses if address.thread_id == name}
            assert set(NAMES) == {address.namespace for address in of_thread}
            assert of_thread == set(saver.namespaces(name))
            saver.delete_thread(name)
            addresses -= of_thread
            assert addresses == set(saver.namespaces())

    def test_no_two_channels_are_mixed_up(self, line: Timeline) -> None:
        values = {name: index for index, name in enumerate(NAMES)}
        new_deltas = {name: (name,) for name in NAMES}
        line.commit(1, values)
        line.commit(2, deltas=new_deltas)

        deltas = line.load().deltas

        for name, index in values.items():
            history = DeltaHistory(index, ((name,),))
            assert history == deltas[name]

    def test_no_two_tasks_are_mixed_up(self, saver: Saver) -> None:
        line = Timeline(saver, "t")
        line.commit(1)
        names = list(product(NAMES, NAMES[:4]))
        pending = []
        for task, path in names:
            writes_of_task = TaskWrites(
                nth_id(1),
                task_id=f"{task}#{path}",
                path=path,
                writes=(("a", (task, path)),),
            )
            pending.append(writes_of_task)
        batch = Batch(address=Address("t"), writes=tuple(pending))
        saver.commit([batch])

        assert set(names) == {write.value for write in line.load().writes}


def _change_everything(checkpoint: Any) -> None:
    checkpoint.values["a"].append(2)
    checkpoint.metadata["tags"].append(2)
    checkpoint.channel_versions["a"] = 0
    checkpoint.versions_seen["node"] = {}
