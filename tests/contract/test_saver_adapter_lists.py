"""Our savers in LangGraph's shapes: every rule of `list`."""

from __future__ import annotations

import pytest

from flowpregel.testing.saver_hooks import Timeline, nth_task_id, writes
from tests.contract.langgraph_shapes import config


@pytest.fixture
def listed(adapter):
    """A adapter with checkpoints 1, 2, 4 in the root of ``t``, 3 in a child, 5 in
    ``u``.
    """
    ours = adapter.saver
    root, child, other = (
        Timeline(ours, "t"),
        Timeline(ours, "t", "child"),
        Timeline(ours, "u"),
    )
    root.commit(1, {"a": 1}, source="input", metadata={"run_id": "r1", "score": 42})
    root.commit(2, {"a": 2}, metadata={"run_id": "r1"})
    child.commit(3, {"a": 3}, source="input", metadata={"run_id": "r1"})
    root.commit(4, {"a": 4}, metadata={"run_id": "r2"})
    other.commit(5, {"a": 5}, metadata={"run_id": "r3"})
    return adapter


def numbers(adapter, of, **options):
    """Return the numbers of the checkpoints that `list` yields."""
    return [
        int(each.checkpoint["id"][-12:], 16) for each in adapter.list(of, **options)
    ]


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


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, []), (1, [4]), (3, [4, 3, 2]), (9, 4)]
)
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
    assert [(nth_task_id(1), "a", "pending")] == newest.pending_writes


def test_a_list_goes_on_while_the_thread_does(listed):
    going = listed.list(config("t"))
    next(going)
    listed.delete_thread("u")
    Timeline(listed.saver, "t").commit(6, {"a": 6})

    assert {1, 2} <= {int(each.checkpoint["id"][-12:], 16) for each in going}
