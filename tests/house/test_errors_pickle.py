"""Every error crosses a process border as itself."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from flowpregel import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type)
    and issubclass(value, BaseException)
    and value.__module__ == errors.__name__
]


def sample(name: str, hint: Any) -> Any:
    """Return an argument for a parameter *name* of type *hint* that no other class
    uses.
    """
    if get_origin(hint) is Literal:
        return get_args(hint)[-1]
    if get_origin(hint) is Sequence:
        return (f"first {name}", f"second {name}")
    plain: dict[Any, Any] = {
        int: 7,
        float: 1.5,
        bool: True,
        str: f"some {name}",
        Any: ("any", name),
    }
    return plain[hint]


def sample_arguments(cls: type[BaseException]) -> tuple[Any, ...]:
    """Return one argument for each parameter of *cls*, or a message if it takes
    anything.
    """
    if not inspect.isfunction(cls.__init__):  # a built-in error's, which takes anything
        return ("some message",)
    hints = get_type_hints(cls.__init__)
    parameters = list(inspect.signature(cls).parameters)
    return tuple(sample(name, hints[name]) for name in parameters)


def assert_survives(error: BaseException) -> None:
    """Check that nothing of *error* is lost on its way through a pickle."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(error) is type(copy)
        assert error.args == copy.args
        assert str(error) == str(copy)
        assert vars(error) == vars(copy)


def test_the_errors_are_found() -> None:
    """The list that the other tests go through is not empty."""
    assert errors.FlowPregelError in CLASSES
    assert errors.GraphBubbleUp in CLASSES


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_a_pickle(cls: type[BaseException]) -> None:
    """Class, arguments, message and attributes are the same on the other side."""
    assert_survives(cls(*sample_arguments(cls)))


@pytest.mark.parametrize("cls", CLASSES)
def test_the_args_of_an_error_are_its_constructors_arguments(
    cls: type[BaseException],
) -> None:
    """So that a pickle, which calls the constructor with ``args``, makes the same
    error.
    """
    arguments = sample_arguments(cls)

    assert arguments == cls(*arguments).args


class LosesAnArgument(errors.FlowPregelError):
    """What the test must catch: `args` holds the message instead of the arguments."""

    def __init__(self, channel: str, writer: str) -> None:
        super().__init__(f"{channel}: {writer}")
        self.channel, self.writer = channel, writer


def test_an_error_that_loses_its_arguments_is_found() -> None:
    """The check itself works."""
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        assert_survives(LosesAnArgument("a", "b"))
