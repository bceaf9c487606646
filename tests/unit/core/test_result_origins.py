"""The tasks of the results that a body has read, known by identity."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest

from flowpregel._core.previews import (
    MOST_BYTES,
    MOST_ITEMS,
    MOST_ORIGINS,
    ResultOrigins,
    note_result,
    sources_among,
    with_sources,
)


class Model:
    """An object whose comparison must not run."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = object.__hash__


def noted(result: Any) -> ResultOrigins:
    """Return the origins of one result of the task ``load``."""
    return note_result(None, result, "load") or {}


def tasks_of(value: Any, origins: ResultOrigins) -> list[str]:
    """Return the tasks from whose results a value comes."""
    return [name for _, name in sources_among([("value", value)], origins, {})]


@pytest.mark.parametrize(
    "result", [1_000, 0.5, "text", [1], {"a": 1}, (1,), b"bytes", {1}, Model(), object]
)
def test_a_result_is_known(result: Any) -> None:
    origins = noted(result)

    assert ["load"] == tasks_of(result, origins)
    assert ["load"] == tasks_of([0, result], origins)
    assert ["load"] == tasks_of({"key": result}, origins)
    assert [] == tasks_of(Model(), origins)


@pytest.mark.parametrize("result", [None, True, 0, 256, "", "a", [], (), {}])
def test_an_object_that_the_interpreter_shares_is_no_source(result: Any) -> None:
    assert {} == noted(result)


def test_a_list_at_the_address_of_a_freed_result_is_no_source() -> None:
    result = [1, 2, 3]
    address = id(result)
    origins = noted(result)
    del result

    # The interpreter gives the memory of a list to the next list.
    other = ["other"]
    assert address == id(other)
    assert [] == tasks_of(other, origins)


def test_an_object_is_not_kept_alive() -> None:
    result = Model()
    reference = ref(result)
    noted(result)
    del result
    gc.collect()

    assert reference() is None


def test_the_first_items_of_a_result_are_known() -> None:
    items = [f"item {number}" for number in range(MOST_ITEMS + 1)]
    origins = noted(items)

    assert ["load"] == tasks_of(items[MOST_ITEMS - 1], origins)
    assert [] == tasks_of(items[MOST_ITEMS], origins)


def test_the_number_of_known_results_is_bounded() -> None:
    origins: ResultOrigins = {}
    texts = [f"text {number}" for number in range(2 * MOST_ORIGINS)]
    for text in texts:
        note_result(origins, text, "load")

    assert len(origins) <= MOST_ORIGINS
    assert ["load"] == tasks_of(texts[-1], origins)


def test_a_future_is_known_by_its_task() -> None:
    future = Model()

    arguments = [("parts", [future, future]), ("start", 1)]
    assert (("parts", "load"),) == sources_among(arguments, {}, {id(future): "load"})


@pytest.mark.parametrize(
    ("preview", "expected"),
    [
        (b"", b'{"f":{"x":["load","find"]}}'),
        (b'{"a":{"x":1}}', b'{"a":{"x":1},"f":{"x":["load","find"]}}'),
        (b"{" + b" " * MOST_BYTES + b"}", b"{" + b" " * MOST_BYTES + b"}"),
    ],
    ids=["empty", "with-arguments", "full"],
)
def test_sources_are_a_part_of_the_preview(preview: bytes, expected: bytes) -> None:
    assert expected == with_sources(preview, (("x", "load"), ("x", "find")))
