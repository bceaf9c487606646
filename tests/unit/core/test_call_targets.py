"""What calling an object gives, what it is called, and what a run fills in for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Optional
from unittest.mock import Mock

import pytest

from flowpregel._core.commands import (
    Interrupt,
    Send,
    call_target_of,
    is_coroutine_function,
    is_generator_function,
    name_of,
)
from flowpregel.errors import ConfigurationError
from flowpregel.store.base import BaseStore
from flowpregel.store.memory import InMemoryStore


def plain(x: int) -> int:
    """Return *x*."""
    return x


async def coroutine(x: int) -> int:
    """Return *x*."""
    return x


def generator(x: int) -> Iterator[int]:
    """Yield *x*."""
    yield x


async def async_generator(x: int) -> AsyncIterator[int]:
    """Yield *x*."""
    yield x


class Plain:
    """An object whose call gives a value."""

    def __call__(self, x: int) -> int:
        """Return *x*."""
        return x


class Coroutine:
    """An object whose call gives a coroutine."""

    async def __call__(self, x: int) -> int:
        """Return *x*."""
        return x


class Generator:
    """An object whose call gives a generator; its creation does not."""

    def __call__(self, x: int) -> Iterator[int]:
        """Yield *x*."""
        yield x

    def method(self, x: int) -> Iterator[int]:
        """Yield *x*."""
        yield x


@pytest.mark.parametrize(
    ("target", "is_generator", "is_coroutine"),
    [
        (plain, False, False),
        (Plain(), False, False),
        (Plain, False, False),
        (len, False, False),
        (coroutine, False, True),
        (partial(coroutine, 1), False, True),
        (Coroutine(), False, True),
        (generator, True, False),
        (partial(generator, 1), True, False),
        (async_generator, True, False),
        (Generator(), True, False),
        (Generator().method, True, False),
        (Generator, False, False),
    ],
)
def test_a_call_gives_what_the_function_behind_the_object_gives(
    target: Any, is_generator: bool, is_coroutine: bool
) -> None:
    """A generator is no result, and a coroutine is awaited."""
    assert is_generator is is_generator_function(target)
    assert is_coroutine is is_coroutine_function(target)


class Runnable:
    """An object that has both forms."""

    def invoke(self, x: int, config: Any) -> int:
        """Return *x*."""
        return x

    async def ainvoke(self, x: int, config: Any) -> int:
        """Return *x*."""
        return x


def test_an_object_with_invoke_is_called_by_its_methods() -> None:
    """Both are known; the run fills in what the sync form takes."""
    runnable = Runnable()

    target = call_target_of(runnable)

    assert (runnable.invoke, runnable.ainvoke) == (target.func, target.coroutine)
    assert ["config"] == [item.name for item in target.injections]
    assert "Runnable" == target.name


class Sync:
    """An object that has one form, and cannot be called."""

    def invoke(self, x: int) -> int:
        """Return *x*."""
        return x


class Distant:
    """An object that looks its methods up elsewhere."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Sync(), name)


@pytest.mark.parametrize("target", [Sync(), Distant()])
def test_an_object_may_have_one_form_alone(target: Any) -> None:
    """It need not be callable, and may make the method when it is asked for it."""
    found = call_target_of(target)

    assert found.func is not None
    assert (7, None) == (found.func(7), found.coroutine)


def test_a_callable_that_has_every_attribute_is_called_itself() -> None:
    """Its invoke is none that an author wrote."""
    mock = Mock()

    assert mock is call_target_of(mock).func


@pytest.mark.parametrize("function", [plain, coroutine])
def test_a_function_has_one_form(function: Callable[..., Any]) -> None:
    """The other one is made by the run, if it needs it."""
    target = call_target_of(function)

    assert {function, None} == {target.func, target.coroutine}
    assert (function is coroutine) == (target.func is None)


def test_what_cannot_be_called_is_no_node() -> None:
    """The message has what was given."""
    with pytest.raises(ConfigurationError, match="3 cannot be a node"):
        call_target_of(3)


def named(function: Any, name: Any) -> Any:
    """Return *function* with a name, or what a careless author gave as one."""
    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (plain, "plain"),
        (partial(plain, 1), "plain"),
        (partial(partial(plain), 1), "plain"),
        (named(partial(plain, 1), "own"), "own"),
        (named(partial(plain, 1), ""), "plain"),
        (named(partial(plain, 1), 7), "plain"),
        (Plain(), "Plain"),
        (Plain, "Plain"),
    ],
)
def test_a_callable_has_the_name_that_its_author_wrote(target: Any, name: str) -> None:
    """That of a partial, else of what it calls, else of the class."""
    assert name == name_of(target)


def filled(
    config: dict[str, Any] | None,
    writer,  # type: ignore[no-untyped-def]
    store: Any = None,
    *,
    previous: int = 0,
    error: str = "",
) -> None:
    """Name everything; what is called error is none of the run's."""


FILLED = [
    ("writer", 1, True, True),
    ("store", 2, False, True),
    ("previous", None, False, False),
]


def test_a_parameter_is_filled_in_by_position_if_it_has_one() -> None:
    """The first is the input, whatever its name, unless there is no input."""
    of_node = call_target_of(filled).injections
    of_task = call_target_of(filled, takes_input=False).injections

    assert FILLED == [
        (item.name, item.index, item.required, item.optional) for item in of_node
    ]
    assert [("config", 0, True, True), *FILLED] == [
        (item.name, item.index, item.required, item.optional) for item in of_task
    ]


@pytest.mark.parametrize(
    ("name", "annotation", "is_filled"),
    [
        ("store", BaseStore, True),
        ("store", InMemoryStore, True),
        ("store", "InMemoryStore", True),
        ("store", "flowpregel.store.base.BaseStore", True),
        ("store", Optional[BaseStore], True),  # noqa: UP045 - as older code has it
        ("store", dict[str, BaseStore], True),
        ("store", int, False),
        ("store", "Storehouse", False),
        ("config", InMemoryStore, False),
        ("error", "Error", False),
        ("error", "errors.NodeError | None", True),
        ("previous", int, True),
    ],
)
def test_an_annotation_decides_whose_parameter_it_is(
    name: str, annotation: Any, is_filled: bool
) -> None:
    """A class and its name, with or without its module, are the same."""
    scope: dict[str, Any] = {}
    exec(f"def function(x, {name}): ...", scope)
    scope["function"].__annotations__[name] = annotation

    found = call_target_of(scope["function"]).injections

    assert is_filled is bool(found)


def test_the_timeout_of_a_send_is_given_by_name() -> None:
    """Where LangGraph has it."""
    args: Any = ("n", 1, 3)

    with pytest.raises(TypeError):
        Send(*args)


def test_a_question_is_the_same_with_another_schema() -> None:
    """Its id and its value make it."""
    question = Interrupt("how many?", "id", response_schema={"type": "integer"})

    assert Interrupt("how many?", "id") == question
    assert Interrupt("how many?", "other") != question
