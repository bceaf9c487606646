"""Our savers in LangGraph's shapes: every rule of `get_tuple`, `put`, `put_writes` and `list`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.integrations.langgraph import SaverAdapter
from flowpregel.testing.saver_records import Line, nth_id, task_id, writes


def config(thread_id: str, number: int | None = None, namespace: str | None = "") -> dict[str, Any]:
    """Return a config in LangGraph's shape; no namespace for None."""
    configurable: dict[str, Any] = {"thread_id": thread_id}
    if namespace is not None:
        configurable["checkpoint_ns"] = namespace
    if number is not None:
        configurable["checkpoint_id"] = nth_id(number)
    return {"configurable": configurable}


def classic(number: int, values: dict[str, Any], versions: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint in LangGraph's shape."""
    return {
        "v": 4,
        "id": nth_id(number),
        "ts": "2026-01-02T03:04:05.678901+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions),
        "versions_seen": {"node": dict(versions)},
        "updated_channels": None,
    }


@pytest.fixture(params=["memory", "lmdb"])
def saver(request, tmp_path):
    """Return one of our savers, adapted."""
    ours = InMemorySaver() if request.param == "memory" else LMDBSaver(tmp_path / "store")
    with ours:
        yield SaverAdapter(ours)


def test_an_unknown_thread_gives_none_and_leaves_no_trace(saver):
    assert saver.get_tuple(config("unknown")) is None
    assert saver.get_tuple(config("unknown", 1)) is None
    assert saver.get(config("unknown")) is None
    assert [*saver.saver.namespaces()] == []
    assert [*saver.list(None)] == []


def test_put_returns_the_config_of_the_new_checkpoint(saver):
    got = saver.put(config("t", namespace="a|b:1"), classic(1, {}, {}), {}, {})

    assert config("t", 1, "a|b:1") == got


def test_a_checkpoint_reads_back_as_it_was_put(saver):
    given = classic(1, {"a": 1, "b": "two"}, {"a": 1, "b": 2})
    given["updated_channels"] = ["a"]
    saver.put(config("t"), given, {}, {"a": 1, "b": 2})

    found = saver.get_tuple(config("t"))

    assert found is not None
    assert given == found.checkpoint
    assert given == saver.get(config("t"))
    assert config("t", 1) == found.config


def test_metadata_reads_back_with_what_the_user_gave(saver):
    metadata = {"source": "update", "step": 7, "parents": {"": "x"}, "run_id": "r", "mine": [1]}
    saver.put(config("t"), classic(1, {}, {}), metadata, {})

    found = saver.get_tuple(config("t"))

    assert found is not None
    assert metadata == found.metadata


def test_the_newest_is_the_one_with_the_greatest_id(saver):
    for number in (2, 3, 1):
        saver.put(config("t"), classic(number, {}, {}), {}, {})

    found = saver.get_tuple(config("t"))

    assert found is not None
    assert nth_id(3) == found.checkpoint["id"]


def test_the_config_may_name_any_checkpoint(saver):
    for number in (1, 2):
        saver.put(config("t"), classic(number, {"a": number}, {"a": number}), {}, {"a": number})

    found = saver.get_tuple(config("t", 1))

    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": 1}
    assert saver.get_tuple(config("t", 9)) is None
    assert saver.get_tuple(config("t", 1, "other")) is None


def test_the_config_of_a_put_names_the_parent(saver):
    saver.put(config("t"), classic(1, {}, {}), {}, {})
    saver.put(config("t", 1), classic(2, {}, {}), {}, {})

    first, second = saver.get_tuple(config("t", 1)), saver.get_tuple(config("t", 2))

    assert first is not None
    assert second is not None
    assert first.parent_config is None
    assert config("t", 1) == second.parent_config


def test_a_config_without_a_namespace_means_the_root(saver):
    saver.put(config("t", namespace=None), classic(1, {}, {}), {}, {})
    saver.put(config("t", namespace="child"), classic(2, {}, {}), {}, {})

    found = saver.get_tuple(config("t", namespace=None))

    assert found is not None
    assert config("t", 1, "") == found.config


def test_only_the_values_of_new_versions_are_kept_again(saver):
    saver.put(config("t"), classic(1, {"a": 1, "b": 1}, {"a": 1, "b": 1}), {}, {"a": 1, "b": 1})
    second = classic(2, {"a": 2, "b": "not looked at"}, {"a": 2, "b": 1})
    saver.put(config("t", 1), second, {}, {"a": 2})

    first, found = saver.get(config("t", 1)), saver.get(config("t", 2))

    assert first is not None
    assert found is not None
    assert first["channel_values"] == {"a": 1, "b": 1}
    assert found["channel_values"] == {"a": 2, "b": 1}


def test_a_new_version_without_a_value_is_an_empty_channel(saver):
    saver.put(config("t"), classic(1, {"a": 1}, {"a": 1}), {}, {"a": 1})
    saver.put(config("t", 1), classic(2, {}, {"a": 2}), {}, {"a": 2})

    found = saver.get(config("t"))

    assert found is not None
    assert found["channel_values"] == {}
    assert found["channel_versions"] == {"a": 2}


def test_a_new_version_that_the_checkpoint_does_not_name_is_not_read(saver):
    saver.put(config("t"), classic(1, {"a": 1, "b": 1}, {"a": 1}), {}, {"a": 1, "b": 1})

    found = saver.get(config("t"))

    assert found is not None
    assert found["channel_values"] == {"a": 1}


def test_a_channel_that_is_gone_has_no_value(saver):
    saver.put(config("t"), classic(1, {"a": 1, "b": 1}, {"a": 1, "b": 1}), {}, {"a": 1, "b": 1})
    saver.put(config("t", 1), classic(2, {"a": 1}, {"a": 1}), {}, {})

    found = saver.get(config("t"))

    assert found is not None
    assert found["channel_values"] == {"a": 1}


@pytest.mark.parametrize("version", [1, 2**62, 1.5, "00000000000000000000000000000001.0.5"])
def test_a_version_may_be_a_number_or_a_text(saver, version):
    saver.put(config("t"), classic(1, {"a": "x"}, {"a": version}), {}, {"a": version})

    found = saver.get(config("t"))

    assert found is not None
    assert {"a": version} == found["channel_versions"]
    assert type(version) is type(found["channel_versions"]["a"])
    assert found["channel_values"] == {"a": "x"}


def test_threads_and_namespaces_have_values_of_their_own(saver):
    places = [("t", ""), ("t", "child"), ("u", ""), ("u", "child")]
    for place in places:
        given = classic(1, {"a": place}, {"a": 1})
        saver.put(config(place[0], namespace=place[1]), given, {}, {"a": 1})

    for place in places:
        found = saver.get(config(place[0], namespace=place[1]))
        assert found is not None
        assert {"a": place} == found["channel_values"]


def test_a_channel_kept_as_deltas_has_no_value(saver):
    line = Line(saver.saver, "t")
    line.commit(1, {"a": 1, "d": ["seed"]})
    line.commit(2, None, {"d": (2,)})

    assert saver.get(config("t"))["channel_values"] == {"a": 1}


def test_a_config_without_a_thread_is_refused(saver):
    with pytest.raises(ConfigurationError, match="thread"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(ConfigurationError, match="thread"):
        saver.put({"configurable": {"checkpoint_ns": ""}}, classic(1, {}, {}), {}, {})


def test_a_new_version_is_greater_than_the_one_before(saver):
    first = saver.get_next_version(None, None)
    second = saver.get_next_version(first, None)

    assert first < second


def test_the_async_forms_do_the_same(saver):
    async def use():
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


def pending(saver, number=1):
    """Return the pending writes of a checkpoint of thread ``t``."""
    found = saver.get_tuple(config("t", number))
    assert found is not None
    assert found.pending_writes is not None
    return found.pending_writes


def start(saver):
    """Put a checkpoint that pending writes can be kept on."""
    saver.put(config("t"), classic(1, {}, {}), {}, {})


def test_writes_name_their_task_and_channel(saver):
    start(saver)
    saver.put_writes(config("t", 1), [("a", 1), ("b", [2])], task_id(1), "p")

    assert [(task_id(1), "a", 1), (task_id(1), "b", [2])] == pending(saver)


def test_a_write_that_is_kept_does_not_change(saver):
    start(saver)
    saver.put_writes(config("t", 1), [("a", "first")], task_id(1), "p")
    saver.put_writes(config("t", 1), [("a", "second"), ("b", "new")], task_id(1), "p")

    assert [value for _, _, value in pending(saver)] == ["first", "new"]


@pytest.mark.parametrize("channel", ["__error__", "__interrupt__", "__resume__"])
def test_a_newer_control_write_replaces_the_older(saver, channel):
    start(saver)
    saver.put_writes(config("t", 1), [(channel, "old")], task_id(1), "p")
    saver.put_writes(config("t", 1), [("a", 1), (channel, "new")], task_id(1), "p")

    assert {(task_id(1), "a", 1), (task_id(1), channel, "new")} == {*pending(saver)}


def test_a_failed_try_leaves_the_places_of_the_next_one_free(saver):
    start(saver)
    failed = [("__error__", "broken"), ("__error_source_node__", "node")]
    saver.put_writes(config("t", 1), failed, task_id(1), "p")
    saver.put_writes(config("t", 1), [("a", 1), ("b", 2)], task_id(1), "p")

    kept = {channel: value for _, channel, value in pending(saver)}

    assert kept == {"a": 1, "b": 2, "__error__": "broken", "__error_source_node__": "node"}


def test_writes_are_ordered_by_path_then_task_then_position(saver):
    start(saver)
    many = [("a", number) for number in range(12)]
    saver.put_writes(config("t", 1), [("late", 0)], task_id(1), "q")
    saver.put_writes(config("t", 1), [("second task", 0)], task_id(3), "p")
    saver.put_writes(config("t", 1), many, task_id(2), "p")

    order = [(channel, value) for _, channel, value in pending(saver)]

    assert [*many, ("second task", 0), ("late", 0)] == order


def test_writes_may_come_before_their_checkpoint(saver):
    saver.put_writes(config("t", 1), [("a", 1)], task_id(1), "p")
    assert saver.get_tuple(config("t", 1)) is None
    assert [*saver.saver.namespaces()] == []

    start(saver)

    assert [(task_id(1), "a", 1)] == pending(saver)


def test_writes_belong_to_one_checkpoint(saver):
    start(saver)
    saver.put_writes(config("t", 1), [("a", 1)], task_id(1), "p")
    saver.put(config("t", 1), classic(2, {}, {}), {}, {})

    assert pending(saver, 2) == []
    assert [(task_id(1), "a", 1)] == pending(saver, 1)


def test_writes_belong_to_one_namespace(saver):
    start(saver)
    saver.put(config("t", namespace="child"), classic(1, {}, {}), {}, {})
    saver.put_writes(config("t", 1, "child"), [("a", 1)], task_id(1), "p")

    assert pending(saver) == []


def test_no_writes_at_all_are_kept_as_none(saver):
    start(saver)
    saver.put_writes(config("t", 1), [], task_id(1), "p")

    assert pending(saver) == []


def test_a_config_without_a_checkpoint_is_refused(saver):
    with pytest.raises(ConfigurationError, match="checkpoint_id"):
        saver.put_writes(config("t"), [("a", 1)], task_id(1), "p")


@pytest.fixture
def listed(saver):
    """A saver with checkpoints 1, 2, 4 in the root of ``t``, 3 in a child, 5 in ``u``."""
    ours = saver.saver
    root, child, other = Line(ours, "t"), Line(ours, "t", "child"), Line(ours, "u")
    root.commit(1, {"a": 1}, source="input", metadata={"run_id": "r1", "score": 42})
    root.commit(2, {"a": 2}, metadata={"run_id": "r1"})
    child.commit(3, {"a": 3}, source="input", metadata={"run_id": "r1"})
    root.commit(4, {"a": 4}, metadata={"run_id": "r2"})
    other.commit(5, {"a": 5}, metadata={"run_id": "r3"})
    return saver


def numbers(saver, of, **options):
    """Return the numbers of the checkpoints that `list` yields."""
    return [int(each.checkpoint["id"][-12:], 16) for each in saver.list(of, **options)]


def test_the_newest_comes_first_over_all_namespaces(listed):
    assert numbers(listed, config("t", namespace=None)) == [4, 3, 2, 1]


def test_a_namespace_is_listed_alone(listed):
    assert numbers(listed, config("t")) == [4, 2, 1]
    assert numbers(listed, config("t", namespace="child")) == [3]
    assert numbers(listed, config("t", namespace="unknown")) == []


def test_no_config_lists_every_thread(listed):
    assert numbers(listed, None) == [5, 4, 3, 2, 1]


def test_an_unknown_thread_lists_nothing(listed):
    assert numbers(listed, config("unknown", namespace=None)) == []


def test_a_config_may_name_one_checkpoint(listed):
    assert numbers(listed, config("t", 2)) == [2]
    assert numbers(listed, config("t", 3, None)) == [3]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"source": "input"}, [3, 1]),
        ({"step": 0}, [2]),
        ({"run_id": "r1"}, [3, 2, 1]),
        ({"score": 42}, [1]),
        ({"source": "input", "score": 42}, [1]),
        ({"source": "loop", "score": 42}, []),
        ({"source": "fork"}, []),
        ({"no such key": 1}, []),
        ({}, [4, 3, 2, 1]),
    ],
)
def test_a_filter_compares_metadata(listed, wanted, expected):
    assert expected == numbers(listed, config("t", namespace=None), filter=wanted)


def test_before_takes_smaller_ids_only(listed):
    of = config("t", namespace=None)

    assert numbers(listed, of, before=config("t", 3)) == [2, 1]
    assert numbers(listed, of, before=config("t", 1)) == []
    assert numbers(listed, of, before=config("t", 99)) == [4, 3, 2, 1]
    assert numbers(listed, of, before=config("t")) == [4, 3, 2, 1]


@pytest.mark.parametrize(("limit", "expected"), [(0, []), (1, [4]), (3, [4, 3, 2]), (9, 4)])
def test_a_limit_counts_over_all_namespaces(listed, limit, expected):
    got = numbers(listed, config("t", namespace=None), limit=limit)

    assert expected == (len(got) if isinstance(expected, int) else got)


def test_filter_before_and_limit_work_together(listed):
    got = numbers(
        listed,
        config("t", namespace=None),
        filter={"run_id": "r1"},
        before=config("t", 3),
        limit=1,
    )

    assert got == [2]


def test_what_is_listed_is_what_get_tuple_gives(listed):
    listed.saver.commit([writes("t", 4, ("a", "pending"))])

    for each in listed.list(None):
        assert listed.get_tuple(each.config) == each
    newest = next(listed.list(config("t")))
    assert [(task_id(1), "a", "pending")] == newest.pending_writes


def test_a_list_goes_on_while_the_thread_does(listed):
    going = listed.list(config("t"))
    next(going)
    listed.delete_thread("u")
    Line(listed.saver, "t").commit(6, {"a": 6})

    assert {1, 2} <= {int(each.checkpoint["id"][-12:], 16) for each in going}
