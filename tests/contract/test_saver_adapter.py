"""Our savers in LangGraph's shapes: every rule of `get_tuple`, `put` and
`put_writes`.
"""

from __future__ import annotations

import asyncio

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.testing.saver_hooks import Timeline, nth_id, nth_task_id
from tests.contract.langgraph_shapes import classic, config


def test_an_unknown_thread_gives_none_and_leaves_no_trace(adapter):
    assert adapter.get_tuple(config("unknown")) is None
    assert adapter.get_tuple(config("unknown", 1)) is None
    assert adapter.get(config("unknown")) is None
    assert [*adapter.saver.namespaces()] == []
    assert [*adapter.list(None)] == []


def test_put_returns_the_config_of_the_new_checkpoint(adapter):
    got = adapter.put(config("t", namespace="a|b:1"), classic(1, {}, {}), {}, {})

    assert config("t", 1, "a|b:1") == got


def test_a_checkpoint_reads_back_as_it_was_put(adapter):
    given = classic(1, {"a": 1, "b": "two"}, {"a": 1, "b": 2})
    given["updated_channels"] = ["a"]
    adapter.put(config("t"), given, {}, {"a": 1, "b": 2})

    found = adapter.get_tuple(config("t"))

    assert found is not None
    assert given == found.checkpoint
    assert given == adapter.get(config("t"))
    assert config("t", 1) == found.config


def test_metadata_reads_back_with_what_the_user_gave(adapter):
    metadata = {
        "source": "update",
        "step": 7,
        "parents": {"": "x"},
        "run_id": "r",
        "mine": [1],
    }
    adapter.put(config("t"), classic(1, {}, {}), metadata, {})

    found = adapter.get_tuple(config("t"))

    assert found is not None
    assert metadata == found.metadata


def test_the_newest_is_the_one_with_the_greatest_id(adapter):
    for number in (2, 3, 1):
        adapter.put(config("t"), classic(number, {}, {}), {}, {})

    found = adapter.get_tuple(config("t"))

    assert found is not None
    assert nth_id(3) == found.checkpoint["id"]


def test_the_config_may_name_any_checkpoint(adapter):
    for number in (1, 2):
        adapter.put(
            config("t"),
            classic(number, {"a": number}, {"a": number}),
            {},
            {"a": number},
        )

    found = adapter.get_tuple(config("t", 1))

    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": 1}
    assert adapter.get_tuple(config("t", 9)) is None
    assert adapter.get_tuple(config("t", 1, "other")) is None


def test_the_config_of_a_put_names_the_parent(adapter):
    adapter.put(config("t"), classic(1, {}, {}), {}, {})
    adapter.put(config("t", 1), classic(2, {}, {}), {}, {})

    first, second = adapter.get_tuple(config("t", 1)), adapter.get_tuple(config("t", 2))

    assert first is not None
    assert second is not None
    assert first.parent_config is None
    assert config("t", 1) == second.parent_config


def test_a_config_without_a_namespace_means_the_root(adapter):
    adapter.put(config("t", namespace=None), classic(1, {}, {}), {}, {})
    adapter.put(config("t", namespace="child"), classic(2, {}, {}), {}, {})

    found = adapter.get_tuple(config("t", namespace=None))

    assert found is not None
    assert config("t", 1, "") == found.config


def test_only_the_values_of_new_versions_are_kept_again(adapter):
    adapter.put(
        config("t"),
        classic(1, {"a": 1, "b": 1}, {"a": 1, "b": 1}),
        {},
        {"a": 1, "b": 1},
    )
    second = classic(2, {"a": 2, "b": "not looked at"}, {"a": 2, "b": 1})
    adapter.put(config("t", 1), second, {}, {"a": 2})

    first, found = adapter.get(config("t", 1)), adapter.get(config("t", 2))

    assert first is not None
    assert found is not None
    assert first["channel_values"] == {"a": 1, "b": 1}
    assert found["channel_values"] == {"a": 2, "b": 1}


def test_a_new_version_without_a_value_is_an_empty_channel(adapter):
    adapter.put(config("t"), classic(1, {"a": 1}, {"a": 1}), {}, {"a": 1})
    adapter.put(config("t", 1), classic(2, {}, {"a": 2}), {}, {"a": 2})

    found = adapter.get(config("t"))

    assert found is not None
    assert found["channel_values"] == {}
    assert found["channel_versions"] == {"a": 2}


def test_a_new_version_that_the_checkpoint_does_not_name_is_not_read(adapter):
    adapter.put(
        config("t"), classic(1, {"a": 1, "b": 1}, {"a": 1}), {}, {"a": 1, "b": 1}
    )

    found = adapter.get(config("t"))

    assert found is not None
    assert found["channel_values"] == {"a": 1}


def test_a_channel_that_is_gone_has_no_value(adapter):
    adapter.put(
        config("t"),
        classic(1, {"a": 1, "b": 1}, {"a": 1, "b": 1}),
        {},
        {"a": 1, "b": 1},
    )
    adapter.put(config("t", 1), classic(2, {"a": 1}, {"a": 1}), {}, {})

    found = adapter.get(config("t"))

    assert found is not None
    assert found["channel_values"] == {"a": 1}


@pytest.mark.parametrize(
    "version", [1, 2**62, 1.5, "00000000000000000000000000000001.0.5"]
)
def test_a_version_may_be_a_number_or_a_text(adapter, version):
    adapter.put(config("t"), classic(1, {"a": "x"}, {"a": version}), {}, {"a": version})

    found = adapter.get(config("t"))

    assert found is not None
    assert {"a": version} == found["channel_versions"]
    assert type(version) is type(found["channel_versions"]["a"])
    assert found["channel_values"] == {"a": "x"}


def test_threads_and_namespaces_have_values_of_their_own(adapter):
    places = [("t", ""), ("t", "child"), ("u", ""), ("u", "child")]
    for place in places:
        given = classic(1, {"a": place}, {"a": 1})
        adapter.put(config(place[0], namespace=place[1]), given, {}, {"a": 1})

    for place in places:
        found = adapter.get(config(place[0], namespace=place[1]))
        assert found is not None
        assert {"a": place} == found["channel_values"]


def test_a_channel_kept_as_deltas_has_no_value(adapter):
    line = Timeline(adapter.saver, "t")
    line.commit(1, {"a": 1, "d": ["seed"]})
    line.commit(2, None, {"d": (2,)})

    assert adapter.get(config("t"))["channel_values"] == {"a": 1}


def test_a_config_without_a_thread_is_refused(adapter):
    with pytest.raises(ConfigurationError, match="thread"):
        adapter.get_tuple({"configurable": {}})
    with pytest.raises(ConfigurationError, match="thread"):
        adapter.put({"configurable": {"checkpoint_ns": ""}}, classic(1, {}, {}), {}, {})


def test_a_new_version_is_greater_than_the_one_before(adapter):
    first = adapter.get_next_version(None, None)
    second = adapter.get_next_version(first, None)

    assert first < second


def test_the_async_forms_do_the_same(adapter):
    async def use():
        stored = await adapter.aput(
            config("t"), classic(1, {"a": 1}, {"a": 1}), {}, {"a": 1}
        )
        await adapter.aput_writes(stored, [("a", 2)], nth_task_id(1))
        found = await adapter.aget_tuple(config("t"))
        listed = [each async for each in adapter.alist(config("t"))]
        checkpoint = await adapter.aget(config("t"))
        await adapter.acopy_thread("t", "u")
        await adapter.aprune(["u"])
        await adapter.adelete_for_runs(["no such run"])
        await adapter.adelete_thread("t")
        assert found is not None
        return [
            found.pending_writes,
            [found] == listed,
            found.checkpoint == checkpoint,
            await adapter.aget(config("t")),
            await adapter.aget(config("u")) == checkpoint,
        ]

    assert [[(nth_task_id(1), "a", 2)], True, True, None, True] == asyncio.run(use())


def pending(adapter, number=1):
    """Return the pending writes of a checkpoint of thread ``t``."""
    found = adapter.get_tuple(config("t", number))
    assert found is not None
    assert found.pending_writes is not None
    return found.pending_writes


def start(adapter):
    """Put a checkpoint that pending writes can be kept on."""
    adapter.put(config("t"), classic(1, {}, {}), {}, {})


def test_writes_name_their_task_and_channel(adapter):
    start(adapter)
    adapter.put_writes(config("t", 1), [("a", 1), ("b", [2])], nth_task_id(1), "p")

    assert [(nth_task_id(1), "a", 1), (nth_task_id(1), "b", [2])] == pending(adapter)


def test_a_write_that_is_kept_does_not_change(adapter):
    start(adapter)
    adapter.put_writes(config("t", 1), [("a", "first")], nth_task_id(1), "p")
    adapter.put_writes(
        config("t", 1), [("a", "second"), ("b", "new")], nth_task_id(1), "p"
    )

    assert [value for _, _, value in pending(adapter)] == ["first", "new"]


@pytest.mark.parametrize("channel", ["__error__", "__interrupt__", "__resume__"])
def test_a_newer_control_write_replaces_the_older(adapter, channel):
    start(adapter)
    adapter.put_writes(config("t", 1), [(channel, "old")], nth_task_id(1), "p")
    adapter.put_writes(
        config("t", 1), [("a", 1), (channel, "new")], nth_task_id(1), "p"
    )

    assert {(nth_task_id(1), "a", 1), (nth_task_id(1), channel, "new")} == {
        *pending(adapter)
    }


def test_a_failed_try_leaves_the_places_of_the_next_one_free(adapter):
    start(adapter)
    failed = [("__error__", "broken"), ("__error_source_node__", "node")]
    adapter.put_writes(config("t", 1), failed, nth_task_id(1), "p")
    adapter.put_writes(config("t", 1), [("a", 1), ("b", 2)], nth_task_id(1), "p")

    kept = {channel: value for _, channel, value in pending(adapter)}

    assert kept == {
        "a": 1,
        "b": 2,
        "__error__": "broken",
        "__error_source_node__": "node",
    }


def test_writes_are_ordered_by_path_then_task_then_position(adapter):
    start(adapter)
    many = [("a", number) for number in range(12)]
    adapter.put_writes(config("t", 1), [("late", 0)], nth_task_id(1), "q")
    adapter.put_writes(config("t", 1), [("second task", 0)], nth_task_id(3), "p")
    adapter.put_writes(config("t", 1), many, nth_task_id(2), "p")

    order = [(channel, value) for _, channel, value in pending(adapter)]

    assert [*many, ("second task", 0), ("late", 0)] == order


def test_writes_may_come_before_their_checkpoint(adapter):
    adapter.put_writes(config("t", 1), [("a", 1)], nth_task_id(1), "p")
    assert adapter.get_tuple(config("t", 1)) is None
    assert [*adapter.saver.namespaces()] == []

    start(adapter)

    assert [(nth_task_id(1), "a", 1)] == pending(adapter)


def test_writes_belong_to_one_checkpoint(adapter):
    start(adapter)
    adapter.put_writes(config("t", 1), [("a", 1)], nth_task_id(1), "p")
    adapter.put(config("t", 1), classic(2, {}, {}), {}, {})

    assert pending(adapter, 2) == []
    assert [(nth_task_id(1), "a", 1)] == pending(adapter, 1)


def test_writes_belong_to_one_namespace(adapter):
    start(adapter)
    adapter.put(config("t", namespace="child"), classic(1, {}, {}), {}, {})
    adapter.put_writes(config("t", 1, "child"), [("a", 1)], nth_task_id(1), "p")

    assert pending(adapter) == []


def test_no_writes_at_all_are_kept_as_none(adapter):
    start(adapter)
    adapter.put_writes(config("t", 1), [], nth_task_id(1), "p")

    assert pending(adapter) == []


def test_a_config_without_a_checkpoint_is_refused(adapter):
    with pytest.raises(ConfigurationError, match="checkpoint_id"):
        adapter.put_writes(config("t"), [("a", 1)], nth_task_id(1), "p")
