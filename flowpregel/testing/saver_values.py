"""What the rules of savers are written with, and the rules of values, names and deltas.

A saver keeps any value, unchanged, under any name, and as deltas.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from flowpregel._core import records
from flowpregel._core.records import Address, Delta, DeltaHistory, Version, Write
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.base import BaseCheckpointSaver as Saver
from flowpregel.errors import FlowPregelError, InvalidUpdateError, ValueEncodingError


def nth_id(number: int) -> str:
    """Return the checkpoint id with this number: a UUID as a run makes them, in order."""
    return f"1f0a0000-0000-6000-8000-{number:012x}"


def task_id(number: int) -> str:
    """Return the task id with this number."""
    return f"a0000000-0000-5000-8000-{number:012x}"


class Timeline:
    """A line of checkpoints in one thread and namespace, as a run makes one.

    Keeps every channel's version and the head, so that a rule says just what
    changes. `fork` starts another line from any checkpoint of this one.
    """

    clock = 1_700_000_000_000_000_000

    def __init__(self, saver: Saver, thread_id: str, namespace: str = "") -> None:
        self.saver = saver
        self.address = Address(thread_id, namespace)
        self.versions: dict[str, Version] = {}
        self.head: str | None = None
        self.step = -1

    def batch(
        self,
        number: int,
        values: Mapping[str, Any] | None = None,
        deltas: Mapping[str, tuple[Any, ...]] | None = None,
        *,
        emptied: tuple[str, ...] = (),
        source: records.Source = "loop",
        metadata: Mapping[str, Any] | None = None,
    ) -> records.Batch:
        """Return the batch of the next checkpoint, and go on from it."""
        values, deltas = values or {}, deltas or {}
        changed = (*values, *deltas, *emptied)
        before = dict(self.versions)
        Timeline.clock += 1_000
        self.versions = {**before, **dict.fromkeys(changed, Timeline.clock)}
        checkpoint = records.Checkpoint(
            id=nth_id(number),
            parent_id=self.head,
            at=Timeline.clock,
            step=self.step,
            source=source,
            channel_versions=dict(self.versions),
            versions_seen={"node": dict(before)},
            changed=changed,
            updated_channels=changed,
            values=values,
            deltas={name: Delta(before.get(name), writes) for name, writes in deltas.items()},
            metadata=metadata or {},
        )
        self.head = checkpoint.id
        self.step += 1
        return records.Batch(address=self.address, checkpoint=checkpoint)

    def commit(self, number: int, *args: Any, **kwargs: Any) -> None:
        """Commit the next checkpoint; the arguments are those of `batch`."""
        self.saver.commit([self.batch(number, *args, **kwargs)])

    def fork(self) -> Timeline:
        """Return a line that goes on from this one's head, apart from it."""
        twin = Timeline(self.saver, self.address.thread_id, self.address.namespace)
        twin.versions, twin.head, twin.step = dict(self.versions), self.head, self.step
        return twin

    def load(self, number: int | None = None) -> records.Saved:
        """Return a checkpoint of this thread and namespace that has to be there."""
        wanted = None if number is None else nth_id(number)
        saved = self.saver.load(replace(self.address, checkpoint_id=wanted))
        assert saved is not None, f"checkpoint {number} of {self.address} is not there"
        return saved


def ids(saver: Saver, thread_id: str, namespace: str = "") -> list[str]:
    """Return the ids of a thread and namespace, newest first."""
    return [each.checkpoint.id for each in saver.history(Address(thread_id, namespace))]


def writes(
    thread_id: str, number: int, *pairs: Write, task: int = 1, path: str = "p", namespace: str = ""
) -> records.Batch:
    """Return the batch that keeps a task's pending writes."""
    return records.Batch(
        address=Address(thread_id, namespace),
        writes=(records.TaskWrites(nth_id(number), task_id(task), path, pairs),),
    )


class SaverHooks:
    """What a subclass gives, and the fixture that all rules use."""

    def make_saver(self, folder: Path) -> Saver:
        """Return a new, empty saver; *folder* is its own and may stay unused."""
        raise NotImplementedError(f"{type(self).__name__} has to give make_saver(folder)")

    def reopen(self, saver: Saver, folder: Path) -> Saver:
        """Return a saver that has what *saver* has, from disk if it has one.

        *saver* may be closed for it. The default is for a saver without a disk.
        """
        return saver

    @pytest.fixture
    def saver(self, tmp_path: Path) -> Iterator[Saver]:
        """A new, empty saver, closed afterwards."""
        saver = self.make_saver(tmp_path)
        yield saver
        saver.close()

    @pytest.fixture
    def line(self, saver: Saver) -> Timeline:
        """The line of one thread."""
        return Timeline(saver, "t")


VALUES: tuple[Any, ...] = (
    None, True, -7, 2**200, 0.1, float("inf"), 1 + 2j, "ünï\0code", "\ud800", b"\0\xff",
    bytearray(b"x"), b"x" * 300_000, [1, [2, (3,)]], (1, (2,), [3]), (b"x",), (),
    {1: "a", (2, 3): "b", None: {}}, {1, "a"}, frozenset({(1, 2)}), range(3),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), InvalidUpdateError,
)  # fmt: skip

NAMES = (
    "", "\0", "a\0b", "a", "A", " ", "a|b", "a|", "a:b", "/../", "..", "\u00e9", "e\u0301",
    "\N{SNAKE}", "\ud800", "\udfff", "x" * 10_000, "x" * 10_000 + "y", "None", "0",
)  # fmt: skip

Step = dict[str, Any]


def _added(*writes: Any) -> Step:
    return {"deltas": {"d": writes}}


def _held(value: Any, channel: str = "d") -> Step:
    return {"values": {channel: value}}


DELTAS: dict[str, tuple[list[Step], dict[int, tuple[Any, ...]]]] = {
    "they are given oldest first": (
        [_added(1, 2), _added([3]), _added()],
        {1: (MISSING, (1, 2)), 3: (MISSING, (1, 2), ([3],), ())},
    ),
    "a channel that did not move keeps them": (
        [_added(1), _held(2, "a"), _held(3, "a")],
        {3: (MISSING, (1,))},
    ),
    "they start from the nearest snapshot": (
        [_held(["old"]), _added(2), _held(["new"]), _added(4), _added(5)],
        {2: (["old"], (2,)), 5: (["new"], (4,), (5,))},
    ),
    "at a snapshot a channel has its value": (
        [_added(1), _held([1, 2])],
        {1: (MISSING, (1,)), 2: ([1, 2],)},
    ),
    "None is a snapshot like any other": ([_held(None), _added(2)], {2: (None, (2,))}),
    "after an emptied channel they start empty": (
        [_held(["gone"]), {"emptied": ("d",)}, _added(3)],
        {3: (MISSING, (3,))},
    ),
}
"""What each superstep changes, and channel ``d`` then: its seed and its deltas; a value alone."""


class DeltaRules(SaverHooks):
    """A delta belongs to the version it made, and goes back to the nearest value."""

    @pytest.mark.parametrize("rule", DELTAS)
    def test_deltas_of_one_channel(self, line: Timeline, rule: str, tmp_path: Path) -> None:
        steps, expected = DELTAS[rule]
        for number, step in enumerate(steps, 1):
            line.commit(number, **step)

        line.saver = self.reopen(line.saver, tmp_path)

        for number, (seed, *deltas) in expected.items():
            saved = line.load(number)
            kept = {**saved.checkpoint.values, **saved.deltas}
            assert kept["d"] == (DeltaHistory(seed, (*deltas,)) if deltas else seed)
            assert ("d" in saved.deltas) != ("d" in saved.checkpoint.values)

    def test_a_delta_without_a_version_before_starts_empty(self, line: Timeline) -> None:
        line.commit(1, {"d": ["gone"]})
        batch: Any = line.batch(2, None, {"d": ("fresh",)})
        batch.checkpoint.deltas = {"d": Delta(None, ("fresh",))}
        line.saver.commit([batch])

        assert DeltaHistory(MISSING, (("fresh",),)) == line.load().deltas["d"]

    def test_channels_namespaces_and_threads_have_deltas_of_their_own(self, saver: Saver) -> None:
        lines = [Timeline(saver, "t"), Timeline(saver, "t", "child"), Timeline(saver, "u")]
        saver.commit([line.batch(1, None, {"d": (line.address,), "e": (1,)}) for line in lines])
        for line in lines:
            line.commit(2, {"e": ["snapshot"]}, {"d": (2,)})
            line.commit(3, None, {"e": (3,)})

        for line in lines:
            saved = line.load()
            assert DeltaHistory(MISSING, ((line.address,), (2,))) == saved.deltas["d"]
            assert DeltaHistory(["snapshot"], ((3,),)) == saved.deltas["e"]

    def test_many_deltas_are_all_there(self, line: Timeline) -> None:
        line.saver.commit([line.batch(number, None, {"d": (number,)}) for number in range(1, 301)])

        assert tuple((number,) for number in range(1, 301)) == line.load().deltas["d"].writes
        assert tuple((number,) for number in range(1, 151)) == line.load(150).deltas["d"].writes


class ValueRules(SaverHooks):
    """A value reads back as it was, whatever happens to the object since."""

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
    def test_a_value_reads_back_equal_and_of_its_type(
        self, line: Timeline, value: Any, tmp_path: Path
    ) -> None:
        line.saver.commit([line.batch(1, {"a": value}, metadata={"k": value})])
        line.saver.commit([writes("t", 1, ("a", value))])

        line.saver = self.reopen(line.saver, tmp_path)
        saved = line.load()

        for got in (saved.checkpoint.values["a"], saved.checkpoint.metadata["k"]):
            assert value == got
            assert type(value) is type(got)
        assert (records.PendingWrite(task_id(1), "a", value),) == saved.writes

    def test_an_exception_keeps_its_type_and_arguments(self, saver: Saver) -> None:
        Timeline(saver, "t").commit(1)
        saver.commit([writes("t", 1, ("__error__", InvalidUpdateError("what", 2)))])

        got = Timeline(saver, "t").load().writes[0].value

        assert InvalidUpdateError is type(got)
        assert isinstance(got, FlowPregelError)
        assert got.args == ("what", 2)

    def test_a_closure_can_be_kept(self, line: Timeline) -> None:
        addend = 40
        line.commit(1, {"a": lambda number: number + addend})

        assert line.load().checkpoint.values["a"](2) == 42

    def test_a_later_change_of_an_object_changes_no_history(self, saver: Saver) -> None:
        given: Any = Timeline(saver, "t").batch(
            1, {"a": [1]}, {"d": ([1],)}, metadata={"tags": [1]}
        )
        pending: list[Any] = [1]
        saver.commit([given, writes("t", 1, ("a", pending))])
        before = repr(Timeline(saver, "t").load())

        pending.append(2)
        _change_everything(given.checkpoint)
        given.checkpoint.deltas["d"].writes[0].append(2)
        found: Any = Timeline(saver, "t").load()
        assert before == repr(found)

        found.writes[0].value.append(2)
        _change_everything(found.checkpoint)
        found.deltas["d"].writes[0][0].append(2)
        assert before == repr(Timeline(saver, "t").load())

    def test_a_value_that_cannot_be_kept_is_named(self, saver: Saver) -> None:
        line, lock = Timeline(saver, "t"), threading.Lock()
        for batch, message in (
            (line.batch(1, {"my channel": lock}), "my channel"),
            (line.batch(1, None, {"my channel": (lock,)}), "my channel"),
            (writes("t", 1, ("my channel", lock), task=7), f"(?s){task_id(7)}.*my channel"),
        ):
            with pytest.raises(ValueEncodingError, match=message):
                saver.commit([batch])
        assert [*saver.namespaces()] == []


class NameRules(SaverHooks):
    """Threads, namespaces, channels and tasks may have any name, and no two are mixed up."""

    @pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[-9:]))
    def test_any_name_reads_back(self, saver: Saver, name: str, tmp_path: Path) -> None:
        Timeline(saver, name, name).commit(1, {name: name}, {f"{name}!": (name,)})
        pending = records.TaskWrites(nth_id(1), name, name, ((name, name),))
        saver.commit([records.Batch(address=Address(name, name), writes=(pending,))])

        saver = self.reopen(saver, tmp_path)
        saved = Timeline(saver, name, name).load()

        assert Address(name, name, nth_id(1)) == saved.address
        assert {name: name} == saved.checkpoint.values
        assert ((name,),) == saved.deltas[f"{name}!"].writes
        assert (records.PendingWrite(name, name, name),) == saved.writes
        assert [Address(name, name)] == [*saver.namespaces()]

    def test_no_two_threads_or_namespaces_are_mixed_up(self, saver: Saver) -> None:
        places = [Address(*place) for place in product(NAMES, NAMES)]
        lines = [Timeline(saver, place.thread_id, place.namespace) for place in places]
        batches = [line.batch(1, {"a": line.address}, {"d": (line.address,)}) for line in lines]
        saver.commit(batches)

        for line in lines:
            assert {"a": line.address} == line.load().checkpoint.values
            assert DeltaHistory(MISSING, ((line.address,),)) == line.load().deltas["d"]
        assert {*places} == {*saver.namespaces()}
        for gone in NAMES:
            assert {*NAMES} == {each.namespace for each in saver.namespaces(gone)}
            saver.delete_thread(gone)
            places = [place for place in places if place.thread_id != gone]
            assert {*places} == {*saver.namespaces()}

    def test_no_two_channels_are_mixed_up(self, line: Timeline) -> None:
        line.commit(1, {name: index for index, name in enumerate(NAMES)})
        line.commit(2, None, {name: (name,) for name in NAMES})

        deltas = line.load().deltas

        for index, name in enumerate(NAMES):
            assert DeltaHistory(index, ((name,),)) == deltas[name]

    def test_no_two_tasks_are_mixed_up(self, saver: Saver) -> None:
        Timeline(saver, "t").commit(1)
        names = [*product(NAMES, NAMES[:4])]
        pending = (
            records.TaskWrites(nth_id(1), f"{task}#{path}", path, (("a", (task, path)),))
            for task, path in names
        )
        saver.commit([records.Batch(address=Address("t"), writes=tuple(pending))])

        assert {*names} == {write.value for write in Timeline(saver, "t").load().writes}


def _change_everything(checkpoint: Any) -> None:
    checkpoint.values["a"].append(2)
    checkpoint.metadata["tags"].append(2)
    checkpoint.channel_versions["a"] = 0
    checkpoint.versions_seen["node"] = {}
