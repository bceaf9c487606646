"""Rules of `delete_thread`, `delete_for_runs`, `prune` and `copy_thread`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowpregel.checkpoint.transactional import TransactionalSaver
from flowpregel.errors import ConfigurationError
from flowpregel.testing.saver_rules.records import Hooks, Line, classic, config, ids, nth_id, writes


class ForgettingRules(Hooks):
    """What is forgotten, and that nothing else is."""

    @pytest.fixture
    def grown(self, saver: TransactionalSaver) -> TransactionalSaver:
        """A saver with two namespaces of ``t``, one of ``u``, each with a pending write."""
        for thread_id, namespace in (("t", ""), ("t", "child"), ("u", "")):
            line = Line(saver, thread_id, namespace)
            for number in (1, 2, 3):
                line.commit(number, {"a": number, "b": 0}, metadata={"run_id": f"r{number}"})
                pending = writes(thread_id, number, ("a", number), namespace=namespace)
                saver.commit([pending])
        return saver

    def everything(self, saver: TransactionalSaver, thread_id: str) -> list[Any]:
        """Return all that is kept of a thread, without its name."""
        return [
            (each.config["configurable"]["checkpoint_ns"], each.checkpoint, each.metadata,
             each.pending_writes)
            for each in saver.list(config(thread_id, namespace=None))
        ]  # fmt: skip

    def test_a_deleted_thread_is_gone_in_every_namespace(
        self, grown: TransactionalSaver, tmp_path: Path
    ) -> None:
        other = self.everything(grown, "u")

        grown.delete_thread("t")
        grown = self.reopen(grown, tmp_path)

        assert self.everything(grown, "t") == []
        assert [*grown.namespaces("t")] == []
        assert other == self.everything(grown, "u")

    def test_a_thread_that_starts_again_after_a_delete_is_new(
        self, grown: TransactionalSaver
    ) -> None:
        grown.delete_thread("t")
        line = Line(grown, "t")
        line.commit(1)

        assert line.load().checkpoint.values == {}
        assert line.load().writes == ()

    def test_deleting_what_is_not_there_is_no_error(self, grown: TransactionalSaver) -> None:
        before = self.everything(grown, "t")

        grown.delete_thread("unknown")
        grown.delete_for_runs([])
        grown.delete_for_runs(["unknown"])
        grown.prune([])
        grown.prune(["unknown"])
        grown.copy_thread("unknown", "new")

        assert before == self.everything(grown, "t")
        assert {"t", "u"} == {each.thread_id for each in grown.namespaces()}

    def test_deleting_for_runs_takes_their_checkpoints_everywhere(
        self, grown: TransactionalSaver
    ) -> None:
        grown.delete_for_runs(["r1", "r3"])

        for thread_id, namespace in (("t", ""), ("t", "child"), ("u", "")):
            assert [nth_id(2)] == ids(grown, thread_id, namespace)
            saved = Line(grown, thread_id, namespace).load()
            assert saved.checkpoint.values == {"a": 2, "b": 0}
            assert [write.value for write in saved.writes] == [2]
            assert saved.is_latest

    def test_a_checkpoint_that_comes_again_has_none_of_its_old_writes(
        self, grown: TransactionalSaver
    ) -> None:
        grown.delete_for_runs(["r1"])
        Line(grown, "t").commit(1)

        assert Line(grown, "t").load(1).writes == ()

    def test_a_thread_whose_runs_are_all_deleted_is_gone(self, grown: TransactionalSaver) -> None:
        grown.delete_for_runs(["r1", "r2", "r3"])

        assert [*grown.namespaces()] == []
        assert grown.get_tuple(config("t")) is None

    def test_prune_keeps_the_newest_of_each_namespace(self, grown: TransactionalSaver) -> None:
        newest = [each for each in self.everything(grown, "t") if each[1]["id"] == nth_id(3)]
        other = self.everything(grown, "u")

        grown.prune(["t"])

        assert newest == self.everything(grown, "t")
        assert other == self.everything(grown, "u")

    def test_prune_can_delete_everything(self, grown: TransactionalSaver) -> None:
        grown.prune(["t", "unknown"], strategy="delete")

        assert self.everything(grown, "t") == []
        assert self.everything(grown, "u")

    def test_an_unknown_strategy_is_refused(self, grown: TransactionalSaver) -> None:
        strategy: Any = "everything"

        with pytest.raises(ConfigurationError, match="everything"):
            grown.prune(["t"], strategy=strategy)
        assert len(self.everything(grown, "t")) == 6

    def test_a_copy_has_all_that_its_source_has(
        self, grown: TransactionalSaver, tmp_path: Path
    ) -> None:
        before = self.everything(grown, "t")

        grown.copy_thread("t", "copy")
        grown = self.reopen(grown, tmp_path)

        assert before == self.everything(grown, "copy")
        assert before == self.everything(grown, "t")
        for each in grown.list(config("copy", namespace=None)):
            assert each.config["configurable"]["thread_id"] == "copy"

    def test_a_copy_and_its_source_change_apart(self, grown: TransactionalSaver) -> None:
        grown.copy_thread("t", "copy")
        source = self.everything(grown, "t")
        grown.commit([writes("copy", 3, ("new", 1), task=9)])
        Line(grown, "copy").commit(4, {"a": "copy"})

        assert source == self.everything(grown, "t")
        assert len(self.everything(grown, "copy")) == 7

    def test_a_copy_and_its_source_may_use_the_same_versions(
        self, grown: TransactionalSaver
    ) -> None:
        grown.copy_thread("t", "copy")
        for thread_id in ("t", "copy"):
            given = classic(4, {"a": thread_id}, {"a": 4})
            grown.put(config(thread_id, 3), given, {}, {"a": 4})

        for thread_id in ("t", "copy"):
            assert Line(grown, thread_id).load().checkpoint.values == {"a": thread_id}

    def test_a_copy_onto_a_thread_that_has_checkpoints_is_refused(
        self, grown: TransactionalSaver
    ) -> None:
        before = self.everything(grown, "u")

        with pytest.raises(ConfigurationError, match="'u'"):
            grown.copy_thread("t", "u")
        with pytest.raises(ConfigurationError, match="'t'"):
            grown.copy_thread("t", "t")
        assert before == self.everything(grown, "u")
