"""Rules of `get_tuple`, `put` and `put_writes`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowpregel.checkpoint.transactional import TransactionalSaver
from flowpregel.errors import ConfigurationError
from flowpregel.testing.saver_rules.records import Hooks, classic, config, nth_id, task_id


class ClassicRules(Hooks):
    """LangGraph's interface, one checkpoint at a time."""

    def test_an_unknown_thread_gives_none_and_leaves_no_trace(
        self, saver: TransactionalSaver
    ) -> None:
        assert saver.get_tuple(config("unknown")) is None
        assert saver.get_tuple(config("unknown", 1)) is None
        assert saver.get(config("unknown")) is None
        assert [*saver.namespaces()] == []
        assert [*saver.list(None)] == []

    def test_put_returns_the_config_of_the_new_checkpoint(self, saver: TransactionalSaver) -> None:
        got = saver.put(config("t", namespace="a|b:1"), classic(1, {}, {}), {}, {})

        assert config("t", 1, "a|b:1") == got

    def test_a_checkpoint_reads_back_as_it_was_put(self, saver: TransactionalSaver) -> None:
        given = classic(1, {"a": 1, "b": "two"}, {"a": 1, "b": 2})
        given["updated_channels"] = ["a"]
        saver.put(config("t"), given, {}, {"a": 1, "b": 2})

        found = saver.get_tuple(config("t"))

        assert found is not None
        assert given == found.checkpoint
        assert given == saver.get(config("t"))
        assert config("t", 1) == found.config

    def test_metadata_reads_back_with_what_the_user_gave(self, saver: TransactionalSaver) -> None:
        metadata = {"source": "update", "step": 7, "parents": {"": "x"}, "run_id": "r", "mine": [1]}
        saver.put(config("t"), classic(1, {}, {}), metadata, {})

        found = saver.get_tuple(config("t"))

        assert found is not None
        assert metadata == found.metadata

    def test_the_newest_is_the_one_with_the_greatest_id(self, saver: TransactionalSaver) -> None:
        for number in (2, 3, 1):
            saver.put(config("t"), classic(number, {}, {}), {}, {})

        found = saver.get_tuple(config("t"))

        assert found is not None
        assert nth_id(3) == found.checkpoint["id"]

    def test_the_config_may_name_any_checkpoint(self, saver: TransactionalSaver) -> None:
        for number in (1, 2):
            saver.put(config("t"), classic(number, {"a": number}, {"a": number}), {}, {"a": number})

        found = saver.get_tuple(config("t", 1))

        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": 1}
        assert saver.get_tuple(config("t", 9)) is None
        assert saver.get_tuple(config("t", 1, "other")) is None

    def test_the_config_of_a_put_names_the_parent(self, saver: TransactionalSaver) -> None:
        saver.put(config("t"), classic(1, {}, {}), {}, {})
        saver.put(config("t", 1), classic(2, {}, {}), {}, {})

        first, second = saver.get_tuple(config("t", 1)), saver.get_tuple(config("t", 2))

        assert first is not None
        assert second is not None
        assert first.parent_config is None
        assert config("t", 1) == second.parent_config

    def test_a_config_without_a_namespace_means_the_root(self, saver: TransactionalSaver) -> None:
        saver.put(config("t", namespace=None), classic(1, {}, {}), {}, {})
        saver.put(config("t", namespace="child"), classic(2, {}, {}), {}, {})

        found = saver.get_tuple(config("t", namespace=None))

        assert found is not None
        assert config("t", 1, "") == found.config

    def test_only_the_values_of_new_versions_are_kept_again(
        self, saver: TransactionalSaver
    ) -> None:
        saver.put(config("t"), classic(1, {"a": 1, "b": 1}, {"a": 1, "b": 1}), {}, {"a": 1, "b": 1})
        second = classic(2, {"a": 2, "b": "not looked at"}, {"a": 2, "b": 1})
        saver.put(config("t", 1), second, {}, {"a": 2})

        first, found = saver.get(config("t", 1)), saver.get(config("t", 2))

        assert first is not None
        assert found is not None
        assert first["channel_values"] == {"a": 1, "b": 1}
        assert found["channel_values"] == {"a": 2, "b": 1}

    def test_a_new_version_without_a_value_is_an_empty_channel(
        self, saver: TransactionalSaver
    ) -> None:
        saver.put(config("t"), classic(1, {"a": 1}, {"a": 1}), {}, {"a": 1})
        saver.put(config("t", 1), classic(2, {}, {"a": 2}), {}, {"a": 2})

        found = saver.get(config("t"))

        assert found is not None
        assert found["channel_values"] == {}
        assert found["channel_versions"] == {"a": 2}

    def test_a_new_version_that_the_checkpoint_does_not_name_is_not_read(
        self, saver: TransactionalSaver
    ) -> None:
        saver.put(config("t"), classic(1, {"a": 1, "b": 1}, {"a": 1}), {}, {"a": 1, "b": 1})

        found = saver.get(config("t"))

        assert found is not None
        assert found["channel_values"] == {"a": 1}

    def test_a_channel_that_is_gone_has_no_value(self, saver: TransactionalSaver) -> None:
        saver.put(config("t"), classic(1, {"a": 1, "b": 1}, {"a": 1, "b": 1}), {}, {"a": 1, "b": 1})
        saver.put(config("t", 1), classic(2, {"a": 1}, {"a": 1}), {}, {})

        found = saver.get(config("t"))

        assert found is not None
        assert found["channel_values"] == {"a": 1}

    @pytest.mark.parametrize("version", [1, 2**62, 1.5, "00000000000000000000000000000001.0.5"])
    def test_a_version_may_be_a_number_or_a_text(
        self, saver: TransactionalSaver, version: Any
    ) -> None:
        saver.put(config("t"), classic(1, {"a": "x"}, {"a": version}), {}, {"a": version})

        found = saver.get(config("t"))

        assert found is not None
        assert {"a": version} == found["channel_versions"]
        assert type(version) is type(found["channel_versions"]["a"])
        assert found["channel_values"] == {"a": "x"}

    def test_threads_and_namespaces_have_values_of_their_own(
        self, saver: TransactionalSaver
    ) -> None:
        places = [("t", ""), ("t", "child"), ("u", ""), ("u", "child")]
        for place in places:
            given = classic(1, {"a": place}, {"a": 1})
            saver.put(config(place[0], namespace=place[1]), given, {}, {"a": 1})

        for place in places:
            found = saver.get(config(place[0], namespace=place[1]))
            assert found is not None
            assert {"a": place} == found["channel_values"]

    def test_a_config_without_a_thread_is_refused(self, saver: TransactionalSaver) -> None:
        with pytest.raises(ConfigurationError, match="thread"):
            saver.get_tuple({"configurable": {}})
        with pytest.raises(ConfigurationError, match="thread"):
            saver.put({"configurable": {"checkpoint_ns": ""}}, classic(1, {}, {}), {}, {})

    def test_a_new_version_is_greater_than_the_one_before(self, saver: TransactionalSaver) -> None:
        first: Any = saver.get_next_version(None, None)
        second: Any = saver.get_next_version(first, None)

        assert first < second

    def test_the_async_forms_do_the_same(self, saver: TransactionalSaver) -> None:
        async def use() -> list[Any]:
            stored = await saver.aput(config("t"), classic(1, {"a": 1}, {"a": 1}), {}, {"a": 1})
            await saver.aput_writes(stored, [("a", 2)], task_id(1))
            found = await saver.aget_tuple(config("t"))
            listed = [each async for each in saver.alist(config("t"))]
            checkpoint = await saver.aget(config("t"))
            await saver.acopy_thread("t", "u")
            await saver.aprune(["u"])
            await saver.adelete_for_runs(["no such run"])
            await saver.adelete_thread("t")
            assert found is not None
            return [
                found.pending_writes,
                [found] == listed,
                found.checkpoint == checkpoint,
                await saver.aget(config("t")),
                await saver.aget(config("u")) == checkpoint,
            ]

        assert [[(task_id(1), "a", 2)], True, True, None, True] == asyncio.run(use())


class PendingWriteRules(Hooks):
    """What a task wrote before its superstep ended."""

    def pending(self, saver: TransactionalSaver, number: int = 1) -> list[tuple[str, str, Any]]:
        """Return the pending writes of a checkpoint of thread ``t``."""
        found = saver.get_tuple(config("t", number))
        assert found is not None
        assert found.pending_writes is not None
        return found.pending_writes

    def start(self, saver: TransactionalSaver) -> None:
        """Put a checkpoint that pending writes can be kept on."""
        saver.put(config("t"), classic(1, {}, {}), {}, {})

    def test_writes_name_their_task_and_channel(self, saver: TransactionalSaver) -> None:
        self.start(saver)
        saver.put_writes(config("t", 1), [("a", 1), ("b", [2])], task_id(1), "p")

        assert [(task_id(1), "a", 1), (task_id(1), "b", [2])] == self.pending(saver)

    def test_a_write_that_is_kept_does_not_change(self, saver: TransactionalSaver) -> None:
        self.start(saver)
        saver.put_writes(config("t", 1), [("a", "first")], task_id(1), "p")
        saver.put_writes(config("t", 1), [("a", "second"), ("b", "new")], task_id(1), "p")

        assert [value for _, _, value in self.pending(saver)] == ["first", "new"]

    @pytest.mark.parametrize("channel", ["__error__", "__interrupt__", "__resume__"])
    def test_a_newer_control_write_replaces_the_older(
        self, saver: TransactionalSaver, channel: str
    ) -> None:
        self.start(saver)
        saver.put_writes(config("t", 1), [(channel, "old")], task_id(1), "p")
        saver.put_writes(config("t", 1), [("a", 1), (channel, "new")], task_id(1), "p")

        assert {(task_id(1), "a", 1), (task_id(1), channel, "new")} == {*self.pending(saver)}

    def test_a_failed_try_leaves_the_places_of_the_next_one_free(
        self, saver: TransactionalSaver
    ) -> None:
        self.start(saver)
        failed = [("__error__", "broken"), ("__error_source_node__", "node")]
        saver.put_writes(config("t", 1), failed, task_id(1), "p")
        saver.put_writes(config("t", 1), [("a", 1), ("b", 2)], task_id(1), "p")

        kept = {channel: value for _, channel, value in self.pending(saver)}

        assert kept == {"a": 1, "b": 2, "__error__": "broken", "__error_source_node__": "node"}

    def test_writes_are_ordered_by_path_then_task_then_position(
        self, saver: TransactionalSaver
    ) -> None:
        self.start(saver)
        many = [("a", number) for number in range(12)]
        saver.put_writes(config("t", 1), [("late", 0)], task_id(1), "q")
        saver.put_writes(config("t", 1), [("second task", 0)], task_id(3), "p")
        saver.put_writes(config("t", 1), many, task_id(2), "p")

        order = [(channel, value) for _, channel, value in self.pending(saver)]

        assert [*many, ("second task", 0), ("late", 0)] == order

    def test_writes_may_come_before_their_checkpoint(self, saver: TransactionalSaver) -> None:
        saver.put_writes(config("t", 1), [("a", 1)], task_id(1), "p")
        assert saver.get_tuple(config("t", 1)) is None
        assert [*saver.namespaces()] == []

        self.start(saver)

        assert [(task_id(1), "a", 1)] == self.pending(saver)

    def test_writes_belong_to_one_checkpoint(self, saver: TransactionalSaver) -> None:
        self.start(saver)
        saver.put_writes(config("t", 1), [("a", 1)], task_id(1), "p")
        saver.put(config("t", 1), classic(2, {}, {}), {}, {})

        assert self.pending(saver, 2) == []
        assert [(task_id(1), "a", 1)] == self.pending(saver, 1)

    def test_writes_belong_to_one_namespace(self, saver: TransactionalSaver) -> None:
        self.start(saver)
        saver.put(config("t", namespace="child"), classic(1, {}, {}), {}, {})
        saver.put_writes(config("t", 1, "child"), [("a", 1)], task_id(1), "p")

        assert self.pending(saver) == []

    def test_no_writes_at_all_are_kept_as_none(self, saver: TransactionalSaver) -> None:
        self.start(saver)
        saver.put_writes(config("t", 1), [], task_id(1), "p")

        assert self.pending(saver) == []

    def test_a_config_without_a_checkpoint_is_refused(self, saver: TransactionalSaver) -> None:
        with pytest.raises(ConfigurationError, match="checkpoint_id"):
            saver.put_writes(config("t"), [("a", 1)], task_id(1), "p")
