"""A saver compared with plain dicts, by a rule-based state machine of hypothesis.

Subclass `SaverMachine`, give `make_saver`, and let pytest run its ``TestCase``::

    class MyMachine(SaverMachine):
        def make_saver(self):
            return MySaver(...)

    TestMySaver = MyMachine.TestCase
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowpregel._core.records import (
    Address,
    Batch,
    Checkpoint,
    Delta,
    DeltaHistory,
    PendingWrite,
    Saved,
    TaskWrites,
    Version,
)
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver
from flowpregel.errors import ConfigurationError, ValueEncodingError

StepId: TypeAlias = tuple[str, str]
"""(thread, namespace)."""
Change: TypeAlias = tuple[Literal["value", "delta", "empty"], Any]
"""What a superstep does to a channel, and with what."""

THREADS = ("t", "u", "v")
NAMESPACES = ("", "child")
CHANNELS = ("a", "b", "c")
RUNS = ("r1", "r2", "r3")
TASKS = ("task 1", "task 2")
WRITTEN = ("a", "b", "__resume__", "__error__", "__error_source_node__")

_places = st.tuples(st.sampled_from(THREADS), st.sampled_from(NAMESPACES))
_SIZED = ("text of some length " * 5, "larger than what is kept beside others " * 150)
_values = st.one_of(
    st.integers(0, 9),
    st.lists(st.integers(0, 9), max_size=2),
    st.none(),
    st.sampled_from(_SIZED),
)
_changes = st.dictionaries(
    st.sampled_from(CHANNELS),
    st.one_of(
        st.tuples(st.just("value"), _values),
        st.tuples(st.just("delta"), st.lists(_values, max_size=2).map(tuple)),
        st.tuples(st.just("empty"), st.none()),
    ),
    max_size=3,
)
_pairs = st.lists(st.tuples(st.sampled_from(WRITTEN), _values), max_size=3).map(tuple)


@dataclass
class ModelCheckpoint:
    """A checkpoint with all its state, and no sharing."""

    parent_id: str | None
    run_id: str
    versions: dict[str, Version]
    values: dict[str, Any]
    deltas: dict[str, DeltaHistory]
    seen: dict[str, dict[str, Version]]


@dataclass
class ModelThreadData:
    """One thread and namespace."""

    checkpoints: dict[str, ModelCheckpoint] = field(default_factory=dict)
    writes: dict[str, dict[tuple[str, str, int], PendingWrite]] = field(
        default_factory=dict
    )
    """By checkpoint, then by (path, task, index)."""

    def note(self, written: TaskWrites) -> None:
        """Keep pending writes: control writes replace, the others are there once."""
        task, path = written.task_id, written.path
        places = self.writes.setdefault(written.checkpoint_id, {})
        for index, (channel, value) in enumerate(written.writes):
            slot = WRITES_IDX_MAP.get(channel, index)
            if slot < 0 or (path, task, slot) not in places:
                places[path, task, slot] = PendingWrite(task, channel, value)


def next_state(
    before: ModelCheckpoint | None, changes: dict[str, Change], version: Version
) -> tuple[dict[str, Any], dict[str, DeltaHistory], dict[str, Version]]:
    """Return the values, deltas and versions after a superstep's *changes*."""
    values = dict(before.values) if before else {}
    deltas = dict(before.deltas) if before else {}
    versions = dict(before.versions) if before else {}
    for name, (kind, what) in changes.items():
        value, history = values.pop(name, MISSING), deltas.pop(name, None)
        versions[name] = version
        if kind == "value":
            values[name] = what
        elif kind == "delta":
            seed, writes = (
                (value, ()) if history is None else (history.seed, history.writes)
            )
            deltas[name] = DeltaHistory(seed, (*writes, what))
    return values, deltas, versions


class SaverMachine(RuleBasedStateMachine):
    """Does the same to a saver and to plain dicts, and compares all that can be
    read.
    """

    unchanged_channels = 0
    """The number of channels that the first checkpoint of each line writes, and no
    later one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.saver = self.make_saver()
        self.model: dict[StepId, ModelThreadData] = {}
        self.count = 0

    def make_saver(self) -> BaseCheckpointSaver:
        """Return a new, empty saver."""
        raise NotImplementedError(f"{type(self).__name__} must define make_saver()")

    def reopen(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Return a saver with the same contents, from disk if it has one."""
        return saver

    def teardown(self) -> None:
        """Close the saver."""
        self.saver.close()

    # -------------------------------------------------------- what is done

    @rule(place=_places, changes=_changes, run_id=st.sampled_from(RUNS), data=st.data())
    def commit(
        self,
        place: StepId,
        changes: dict[str, Change],
        run_id: str,
        data: st.DataObject,
    ) -> None:
        """Commit a checkpoint as a child of any one: a line that goes on, or a fork."""
        known = self.model.get(place, ModelThreadData()).checkpoints
        parent = data.draw(st.sampled_from([None, *known]), label="parent")
        self.saver.commit([self._checkpoint(place, parent, changes, run_id)])

    @rule(places=st.lists(_places, min_size=2, max_size=3), changes=_changes)
    def commit_several(self, places: list[StepId], changes: dict[str, Change]) -> None:
        """Commit to several places at once, each going on from its newest."""
        batches = []
        for place in places:
            known = self.model.get(place, ModelThreadData()).checkpoints
            batches.append(
                self._checkpoint(place, max(known, default=None), changes, "r1")
            )
        self.saver.commit(batches)

    @rule(place=_places, changes=_changes)
    def commit_nothing(self, place: StepId, changes: dict[str, Change]) -> None:
        """Fail to commit: the last of the batches holds what cannot be kept."""
        batch = self._checkpoint(place, None, changes, "r1", keep=False)
        bad = self._checkpoint(
            place, None, {"a": ("value", iter_forever())}, "r1", keep=False
        )
        try:
            self.saver.commit([batch, bad])
        except ValueEncodingError:
            return
        raise AssertionError("a generator was kept")

    @rule(place=_places, task=st.sampled_from(TASKS), pairs=_pairs, data=st.data())
    def write(
        self,
        place: StepId,
        task: str,
        pairs: tuple[tuple[str, Any], ...],
        data: st.DataObject,
    ) -> None:
        """Keep pending writes on any checkpoint."""
        space = self.model.get(place)
        if space is None or not space.checkpoints:
            return
        checkpoint_id = data.draw(
            st.sampled_from([*space.checkpoints]), label="checkpoint"
        )
        written = TaskWrites(checkpoint_id, task, f"path of {task}", pairs)
        space.note(written)
        self.saver.commit([Batch(address=Address(*place), writes=(written,))])

    @rule(
        place=_places,
        tasks=st.lists(st.tuples(st.sampled_from(TASKS), _pairs), max_size=3),
        kinds=st.dictionaries(
            st.sampled_from(CHANNELS), st.sampled_from(["value", "delta"])
        ),
        data=st.data(),
    )
    def end_superstep(
        self,
        place: StepId,
        tasks: list[tuple[str, tuple[tuple[str, Any], ...]]],
        kinds: dict[str, str],
        data: st.DataObject,
    ) -> None:
        """Commit pending writes together with the checkpoint that they lead to."""
        known = self.model.get(place, ModelThreadData()).checkpoints
        if not known:
            return
        choice = st.just(max(known)) | st.sampled_from([*known])
        parent: str = data.draw(choice, label="parent")
        written = [
            TaskWrites(parent, task, f"path of {task}", pairs) for task, pairs in tasks
        ]
        changes: dict[str, Change] = {}
        for channel, kind in kinds.items():
            values = [
                value for _, pairs in tasks for name, value in pairs if name == channel
            ]
            if values:
                is_value = kind == "value"
                changes[channel] = (
                    ("value", values[-1]) if is_value else ("delta", tuple(values))
                )
        batch = self._checkpoint(place, parent, changes, "r2")
        for each in written:
            self.model[place].note(each)
        self.saver.commit([replace(batch, writes=tuple(written))])

    @rule(thread_id=st.sampled_from(THREADS))
    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        self.saver.delete_thread(thread_id)
        self._drop(thread_id)

    @rule(run_ids=st.sets(st.sampled_from(RUNS), max_size=2))
    def delete_for_runs(self, run_ids: set[str]) -> None:
        """Forget what some runs made."""
        self.saver.delete_for_runs([*run_ids])
        for space in self.model.values():
            gone = [
                id for id, each in space.checkpoints.items() if each.run_id in run_ids
            ]
            self._forget(space, gone)

    @rule(
        thread_id=st.sampled_from(THREADS),
        strategy=st.sampled_from(["keep_latest", "delete"]),
    )
    def prune(self, thread_id: str, strategy: Literal["keep_latest", "delete"]) -> None:
        """Forget a thread's history."""
        self.saver.prune([thread_id], strategy=strategy)
        if strategy == "delete":
            self._drop(thread_id)
        for place, space in self.model.items():
            if place[0] == thread_id:
                self._forget(space, sorted(space.checkpoints)[:-1])

    @rule(threads=st.tuples(st.sampled_from(THREADS), st.sampled_from(THREADS)))
    def copy_thread(self, threads: tuple[str, str]) -> None:
        """Copy a thread, if the target has nothing."""
        source, target = threads
        there = {place[0] for place, space in self.model.items() if space.checkpoints}
        refused = source in there and target in there
        try:
            self.saver.copy_thread(source, target)
        except ConfigurationError:
            assert refused
            return
        assert not refused
        for (thread_id, namespace), space in [*self.model.items()]:
            if thread_id == source and source in there:
                self.model[target, namespace] = ModelThreadData(
                    dict(space.checkpoints),
                    {id: dict(writes) for id, writes in space.writes.items()},
                )

    @precondition(lambda self: self.count % 7 == 0)
    @rule()
    def reopen_it(self) -> None:
        """Read on from disk, for a saver that has one."""
        self.saver = self.reopen(self.saver)

    # -------------------------------------------------------- what is compared

    @invariant()
    def the_same_places_are_there(self) -> None:
        """`namespaces` yields those with a checkpoint."""
        expected = {place for place, space in self.model.items() if space.checkpoints}
        assert expected == {
            (each.thread_id, each.namespace) for each in self.saver.namespaces()
        }

    @invariant()
    def every_checkpoint_reads_the_same(self) -> None:
        """`history` and `load` give what was committed."""
        for place, space in self.model.items():
            newest_first = sorted(space.checkpoints, reverse=True)
            found = [*self.saver.history(Address(*place))]
            assert newest_first == [each.checkpoint.id for each in found]
            for saved in found:
                self._compare(saved, space, newest_first[0])
            if newest_first:
                assert found[0] == self.saver.load(Address(*place))
                assert found[-1] == self.saver.load(Address(*place, newest_first[-1]))
            else:
                assert self.saver.load(Address(*place)) is None

    def _compare(self, saved: Saved, space: ModelThreadData, newest: str) -> None:
        checkpoint = saved.checkpoint
        expected = space.checkpoints[checkpoint.id]
        assert expected.parent_id == checkpoint.parent_id
        assert expected.versions == checkpoint.channel_versions
        assert expected.seen == checkpoint.versions_seen
        assert expected.values == checkpoint.values
        assert expected.deltas == saved.deltas
        assert {"run_id": expected.run_id} == checkpoint.metadata
        ordered = sorted(
            space.writes.get(checkpoint.id, {}).items(), key=lambda item: item[0]
        )
        assert tuple(write for _, write in ordered) == saved.writes
        assert (checkpoint.id == newest) == saved.is_latest

    # -------------------------------------------------------- inner

    def _checkpoint(
        self,
        place: StepId,
        parent_id: str | None,
        changes: dict[str, Change],
        run_id: str,
        keep: bool = True,
    ) -> Batch:
        self.count += 1
        space = (
            self.model.setdefault(place, ModelThreadData())
            if keep
            else ModelThreadData()
        )
        before = space.checkpoints[parent_id] if parent_id else None
        if before is None:
            names = [f"unchanged {number}" for number in range(self.unchanged_channels)]
            changes = {**dict.fromkeys(names, ("value", self.count)), **changes}
        values, deltas, versions = next_state(before, changes, self.count)
        ran = f"node {self.count % 3}"
        triggers = {name: versions[name] for name in changes}
        nodes = {**before.seen, ran: triggers} if before else {ran: triggers}
        checkpoint_id = f"1f0a0000-0000-6000-8000-{self.count:012x}"
        space.checkpoints[checkpoint_id] = ModelCheckpoint(
            parent_id, run_id, versions, values, deltas, nodes
        )
        seen = before.versions if before else {}
        return Batch(
            address=Address(*place),
            checkpoint=Checkpoint(
                id=checkpoint_id,
                parent_id=parent_id,
                at=self.count * 1_000,
                step=self.count,
                source="loop",
                channel_versions=versions,
                versions_seen=nodes,
                changed=tuple(changes),
                values={
                    name: what
                    for name, (kind, what) in changes.items()
                    if kind == "value"
                },
                deltas={
                    name: Delta(seen.get(name), what)
                    for name, (kind, what) in changes.items()
                    if kind == "delta"
                },
                metadata={"run_id": run_id},
            ),
        )

    def _forget(self, space: ModelThreadData, checkpoint_ids: list[str]) -> None:
        for checkpoint_id in checkpoint_ids:
            del space.checkpoints[checkpoint_id]
            space.writes.pop(checkpoint_id, None)

    def _drop(self, thread_id: str) -> None:
        for place in [place for place in self.model if place[0] == thread_id]:
            del self.model[place]


def iter_forever() -> Any:
    """Return a value that no saver can keep: a generator."""
    return (number for number in iter(int, 1))
