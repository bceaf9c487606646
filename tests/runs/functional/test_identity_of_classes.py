"""Classes that share a name and mean different things: results of one are none of the
other.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections import namedtuple
from typing import Any

import pytest
from pydantic import create_model

from flowpregel import entrypoint, task
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, RunNotice

OTHERS: list[Any] = [
    (create_model("Out", a=(int, 1)), create_model("Out", b=(int, 1))),
    (namedtuple("Out", "a b")(1, 2), namedtuple("Out", "b a")(1, 2)),
]


def shown(value: Any) -> str:
    """Return what a model or a named tuple has, as text."""
    fields = value.model_fields if hasattr(value, "model_fields") else value._asdict()
    return str({name: repr(each) for name, each in fields.items()})


@pytest.mark.parametrize("values", OTHERS)
def test_a_cache_tells_classes_of_one_name_apart(values: tuple[Any, Any]) -> None:
    """A schema made while running, and a tuple whose fields have other names."""

    @task(cache=True, executor="inline")
    def ask(value: Any) -> str:
        return shown(value)

    @entrypoint(checkpointer=InMemorySaver())
    def flow(number: int) -> str:
        return ask(values[number]).result()

    assert [shown(value) for value in values] == [flow.run(0), flow.run(1)]


CONNECTION = sqlite3.connect(":memory:", check_same_thread=False)


def asked(_: int) -> int:
    return CONNECTION.execute("SELECT 3").fetchone()[0]


def test_a_cache_refuses_code_that_refers_to_what_has_no_content() -> None:
    """It names it, and says what to do; which helps."""

    def flow_of(**options: Any) -> Any:
        called = task(cache=True, executor="inline", **options)(asked)

        @entrypoint(checkpointer=InMemorySaver())
        def flow(number: int) -> int:
            return called(number).result()

        return flow

    with pytest.raises(
        ConfigurationError, match=r"'asked'.*`CONNECTION` \(sqlite3.*version="
    ):
        flow_of().run(1)
    assert 3 == flow_of(version="1").run(1)


def test_a_run_tells_once_of_code_that_refers_to_what_has_no_content() -> None:
    """However many calls there are; a version makes it no news."""

    def notices(**options: Any) -> list[str]:
        called = task(executor="inline", **options)(asked)

        @entrypoint(checkpointer=InMemorySaver())
        def flow(numbers: list[int]) -> list[int]:
            return [future.result() for future in called.map(numbers)]

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            flow.run([1, 2, 3])
        return [str(each.message) for each in caught if each.category is RunNotice]

    (notice,) = notices()
    assert "the code of 'asked' refers to `CONNECTION` (sqlite3.Connection)" in notice
    assert [] == notices(version="1")
