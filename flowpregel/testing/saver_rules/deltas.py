"""Rules of channels that are kept as deltas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from flowpregel._core.records import Batch, Delta, DeltaHistory
from flowpregel.channels.base import MISSING
from flowpregel.checkpoint.transactional import TransactionalSaver
from flowpregel.testing.saver_rules.records import Hooks, Line, config, loaded


class DeltaRules(Hooks):
    """A delta belongs to the version it made, and goes back to the nearest value."""

    def deltas(self, line: Line, number: int | None = None) -> DeltaHistory:
        """Return how to rebuild channel ``d`` at a checkpoint, which has no value of it."""
        saved = line.load(number)
        assert "d" not in saved.checkpoint.values
        return saved.deltas["d"]

    def test_deltas_are_given_oldest_first(self, saver: TransactionalSaver, tmp_path: Path) -> None:
        line = Line(saver, "t")
        line.commit(1, None, {"d": (1, 2)})
        line.commit(2, None, {"d": ([3],)})
        line.commit(3, None, {"d": ()})

        line.saver = self.reopen(saver, tmp_path)

        assert DeltaHistory(MISSING, ((1, 2), ([3],), ())) == self.deltas(line)
        assert DeltaHistory(MISSING, ((1, 2),)) == self.deltas(line, 1)

    def test_a_channel_that_did_not_move_keeps_its_deltas(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, {"a": 1}, {"d": (1,)})
        for number in range(2, 6):
            line.commit(number, {"a": number})

        assert DeltaHistory(MISSING, ((1,),)) == self.deltas(line)
        assert line.load().checkpoint.values == {"a": 5}

    def test_the_nearest_snapshot_is_what_deltas_start_from(
        self, saver: TransactionalSaver
    ) -> None:
        line = Line(saver, "t")
        line.commit(1, {"d": ["old snapshot"]})
        line.commit(2, None, {"d": (2,)})
        line.commit(3, {"d": ["snapshot"]})
        line.commit(4, None, {"d": (4,)})
        line.commit(5, None, {"d": (5,)})

        assert DeltaHistory(["snapshot"], ((4,), (5,))) == self.deltas(line)
        assert DeltaHistory(["old snapshot"], ((2,),)) == self.deltas(line, 2)

    def test_none_is_a_snapshot_like_any_other(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, {"d": None})
        line.commit(2, None, {"d": (2,)})

        assert DeltaHistory(None, ((2,),)) == self.deltas(line)

    def test_at_its_snapshot_a_channel_has_its_value(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, None, {"d": (1,)})
        line.commit(2, {"d": [1, 2]})

        saved = line.load()

        assert saved.checkpoint.values == {"d": [1, 2]}
        assert "d" not in saved.deltas

    def test_a_delta_without_a_version_before_starts_empty(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, {"d": ["gone"]})
        batch = line.batch(2, None, {"d": ("fresh",)})
        assert batch.checkpoint is not None
        fresh = {"d": Delta(None, ("fresh",))}
        restarted = _with_deltas(batch, fresh)
        saver.commit([restarted])

        assert DeltaHistory(MISSING, (("fresh",),)) == self.deltas(line)

    def test_deltas_after_an_emptied_channel_start_empty(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, {"d": ["gone"]})
        line.commit(2, emptied=("d",))
        line.commit(3, None, {"d": (3,)})

        assert DeltaHistory(MISSING, ((3,),)) == self.deltas(line)

    def test_forks_from_one_checkpoint_have_deltas_of_their_own(
        self, saver: TransactionalSaver
    ) -> None:
        line = Line(saver, "t")
        line.commit(1, {"d": ["seed"]})
        line.commit(2, None, {"d": ("shared",)})
        left, right = line.fork(), line.fork()
        left.commit(3, None, {"d": ("left",)})
        right.commit(4, None, {"d": ("right",)})
        left.commit(5, None, {"d": ("more",)})

        assert DeltaHistory(["seed"], (("shared",), ("left",), ("more",))) == self.deltas(left, 5)
        assert DeltaHistory(["seed"], (("shared",), ("right",))) == self.deltas(left, 4)
        assert DeltaHistory(["seed"], (("shared",),)) == self.deltas(left, 2)

    def test_channels_have_deltas_of_their_own(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, None, {"d": (1,), "e": (10,)})
        line.commit(2, {"e": ["snapshot"]}, {"d": (2,)})
        line.commit(3, None, {"e": (30,)})

        saved = line.load()

        assert DeltaHistory(MISSING, ((1,), (2,))) == saved.deltas["d"]
        assert DeltaHistory(["snapshot"], ((30,),)) == saved.deltas["e"]

    def test_namespaces_and_threads_have_deltas_of_their_own(
        self, saver: TransactionalSaver
    ) -> None:
        lines = [Line(saver, "t"), Line(saver, "t", "child"), Line(saver, "u")]
        saver.commit([line.batch(1, None, {"d": (line.address.thread_id,)}) for line in lines])
        for index, line in enumerate(lines):
            line.commit(2, None, {"d": (index,)})

        for index, line in enumerate(lines):
            expected = DeltaHistory(MISSING, ((line.address.thread_id,), (index,)))
            assert expected == self.deltas(line)

    def test_many_deltas_are_all_there(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        saver.commit([line.batch(number, None, {"d": (number,)}) for number in range(1, 301)])

        assert tuple((number,) for number in range(1, 301)) == self.deltas(line).writes
        assert tuple((number,) for number in range(1, 151)) == self.deltas(line, 150).writes

    def test_the_delta_history_in_the_classic_form_is_the_same(
        self, saver: TransactionalSaver
    ) -> None:
        line = Line(saver, "t")
        line.commit(1, {"a": 1, "d": ["seed"]})
        line.commit(2, None, {"d": (2,)})

        got = saver.get_delta_channel_history(config=config("t"), channels=["a", "d", "none"])
        found = saver.get_tuple(config("t"))

        assert DeltaHistory(["seed"], ((2,),)) == got["d"]
        assert DeltaHistory(1, ()) == got["a"]
        assert DeltaHistory(MISSING, ()) == got["none"]
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": 1}
        nothing = saver.get_delta_channel_history(config=config("unknown"), channels=["d"])
        assert nothing == {}


class DeltaForgettingRules(Hooks):
    """What is kept reads as before, whatever of its past is forgotten."""

    def grow(self, saver: TransactionalSaver) -> Line:
        """Commit a line of five checkpoints with a snapshot at 2, and a fork 6 from 3."""
        line = Line(saver, "t")
        line.commit(1, {"a": 1}, {"d": (1,)}, metadata={"run_id": "r1"})
        line.commit(2, {"d": ["snapshot"]}, metadata={"run_id": "r1"})
        line.commit(3, None, {"d": (3,)}, metadata={"run_id": "r2"})
        fork = line.fork()
        line.commit(4, None, {"d": (4,)}, metadata={"run_id": "r3"})
        line.commit(5, None, {"d": (5,)}, metadata={"run_id": "r4"})
        fork.commit(6, None, {"d": (6,)}, metadata={"run_id": "r5"})
        return line

    def view(self, saver: TransactionalSaver, line: Line, number: int) -> tuple[Any, Any]:
        """Return the values and deltas of a checkpoint of *line*."""
        saved = loaded(saver, line.address, number)
        return saved.checkpoint.values, saved.deltas

    def test_prune_keeps_the_deltas_that_the_newest_needs(
        self, saver: TransactionalSaver, tmp_path: Path
    ) -> None:
        line = self.grow(saver)
        before = self.view(saver, line, 6)

        saver.prune(["t"])
        saver = self.reopen(saver, tmp_path)

        assert before == self.view(saver, line, 6)
        assert DeltaHistory(["snapshot"], ((3,), (6,))) == before[1]["d"]

    def test_a_pruned_line_goes_on(self, saver: TransactionalSaver) -> None:
        line = Line(saver, "t")
        line.commit(1, {"d": ["seed"]})
        line.commit(2, None, {"d": (2,)})
        saver.prune(["t"])
        line.commit(3, None, {"d": (3,)})
        saver.prune(["t"])
        line.commit(4, {"a": 4})

        assert DeltaHistory(["seed"], ((2,), (3,))) == line.load().deltas["d"]

    def test_deleting_the_runs_before_keeps_what_a_later_one_needs(
        self, saver: TransactionalSaver
    ) -> None:
        line = self.grow(saver)
        before = {number: self.view(saver, line, number) for number in (5, 6)}

        saver.delete_for_runs(["r1", "r2", "r3"])

        assert before == {number: self.view(saver, line, number) for number in (5, 6)}

    def test_deleting_one_branch_keeps_the_other(self, saver: TransactionalSaver) -> None:
        line = self.grow(saver)
        before = self.view(saver, line, 5)

        saver.delete_for_runs(["r5", "r1"])

        assert before == self.view(saver, line, 5)

    def test_a_copy_reads_the_same_when_its_source_is_gone(self, saver: TransactionalSaver) -> None:
        line = self.grow(saver)
        before = {number: self.view(saver, line, number) for number in range(1, 7)}

        saver.copy_thread("t", "copy")
        saver.delete_thread("t")
        copy = Line(saver, "copy")

        assert before == {number: self.view(saver, copy, number) for number in range(1, 7)}

    def test_a_copy_and_its_source_go_on_apart(self, saver: TransactionalSaver) -> None:
        line = self.grow(saver)
        saver.copy_thread("t", "copy")
        copy = line.fork()
        copy.address = Line(saver, "copy").address
        line.commit(7, None, {"d": ("source",)})
        copy.commit(8, None, {"d": ("copy",)})
        saver.prune(["t"])

        assert line.load().deltas["d"].writes[-1] == ("source",)
        assert copy.load().deltas["d"].writes == ((3,), (4,), (5,), ("copy",))


def _with_deltas(batch: Batch, deltas: dict[str, Delta]) -> Batch:
    """Return *batch* with these deltas in its checkpoint."""
    assert batch.checkpoint is not None
    return replace(batch, checkpoint=replace(batch.checkpoint, deltas=deltas))
