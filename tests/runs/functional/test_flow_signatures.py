"""The signatures of workflows: `Flow.run` takes the arguments of the function."""

from __future__ import annotations

import functools
import inspect
import pydoc
import warnings
from contextlib import nullcontext
from typing import Any

import pytest

from flowpregel._core.commands import Command
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError, InputMismatchError, RunNotice
from flowpregel.func import RunHandle, entrypoint
from tests.runs.functional.flows import run


def test_the_arguments_are_those_of_the_function(drive: Any) -> None:
    """By position or by name, with its defaults; what the run fills in is left out."""

    @entrypoint(checkpointer=InMemorySaver())
    def flow(
        first: int,
        /,
        second: int = 2,
        *,
        config: Any,
        third: int = 3,
        previous: Any = None,
        **more: int,
    ) -> Any:
        return first, second, third, more, config["configurable"]["thread_id"]

    assert (1, 2, 3, {}, "1") == run(drive, flow, 1, id="1")
    assert (1, 2, 3, {}, "1") == run(drive, flow, 1, 2, third=3, id="1")
    assert (1, 5, 6, {"x": 7}, "2") == run(
        drive, flow, 1, second=5, third=6, x=7, id="2"
    )


@pytest.mark.parametrize("form", ["run", "arun", "start"])
def test_help_shows_the_signature_and_what_a_run_does(form: str) -> None:
    """The function's own parameters, then the options of a run."""

    @entrypoint
    def flow(first: int, *, id_of: str = "", **more: int) -> int:
        return first

    method = getattr(flow, form)

    *own, more = inspect.signature(method).parameters.values()
    assert ["first", "id_of", "id", "adopt"] == [each.name for each in own[:4]]
    assert more.kind is more.VAR_KEYWORD
    returned = inspect.signature(method).return_annotation
    assert returned is RunHandle if form == "start" else "int" == returned
    assert (form == "arun") == inspect.iscoroutinefunction(method)
    shown = pydoc.render_doc(method, renderer=pydoc.plaintext)
    # from 3.13 on each parameter has a line
    assert f"{form}(first:" in "".join(shown.split())
    assert str(inspect.getdoc(getattr(type(flow), form))).splitlines()[0] in shown


def test_a_workflow_of_several_parameters_can_be_invoked(drive: Any) -> None:
    """With a dict of them; a bare value is the first, as it was."""

    @entrypoint()
    def flow(a: int, b: int = 2) -> int:
        return 10 * a + b

    @entrypoint()
    def named(*, a: int) -> int:
        return a

    assert [15, 12, 12] == [
        drive.invoke(flow, given) for given in ({"a": 1, "b": 5}, {"a": 1}, 1)
    ]
    assert [7, 7] == [drive.invoke(named, 7), run(drive, named, a=7)]


@pytest.mark.parametrize(
    "value", [None, {}, {"a": 1}, [], 0, Command(resume=1)], ids=repr
)
def test_any_value_may_be_the_only_argument(drive: Any, value: Any) -> None:
    """None too, which as an input of `invoke` means to go on; and a command is a
    value.
    """

    @entrypoint(checkpointer=InMemorySaver())
    def flow(a: Any) -> Any:
        return [a]

    assert [value] == run(drive, flow, value, id="1")
    assert [value] == run(drive, flow, value, id="1")


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"flow\(\) missing a required argument: 'a'"),
        ((1, 2, 3), {}, r"flow\(\) too many positional arguments"),
        ((1,), {"c": 1}, r"flow\(\) got an unexpected keyword argument 'c'"),
    ],
)
def test_a_wrong_call_is_refused_at_once(
    drive: Any, args: Any, kwargs: Any, message: str
) -> None:
    """In Python's words."""

    @entrypoint()
    def flow(a: int, b: int = 2) -> int:
        return a + b

    with pytest.raises(TypeError, match=message):
        run(drive, flow, *args, **kwargs)


def test_any_number_of_positional_arguments_is_refused(drive: Any) -> None:
    """The message says what to write; `invoke` gives it one."""

    @entrypoint()
    def flow(*numbers: int) -> int:
        return sum(numbers)

    with pytest.raises(ConfigurationError, match=r"takes \*numbers.*a list"):
        run(drive, flow, 1, 2)
    assert 1 == drive.invoke(flow, 1)


def test_a_callable_without_a_signature_takes_one_argument(drive: Any) -> None:
    """Some that are written in C have none."""
    flow = entrypoint()(max)

    assert 3 == run(drive, flow, [1, 3])


def test_a_call_says_how_it_is_run() -> None:
    """A workflow is no function any more."""

    @entrypoint()
    def flow(a: int) -> int:
        return a

    with pytest.raises(TypeError, match=r"write flow\.run\(\.\.\.\)"):
        flow(1)


def test_parentheses_are_optional(drive: Any) -> None:
    """Without a checkpointer there is nothing to say."""

    @entrypoint
    def flow(a: int) -> int:
        """Return *a*."""
        return a

    assert 1 == run(drive, flow, 1)
    assert "Return *a*." == flow.__doc__


def test_an_id_needs_a_checkpointer(drive: Any) -> None:
    """Nothing would be kept under it."""

    @entrypoint
    def flow(a: int) -> int:
        return a

    with pytest.raises(
        ConfigurationError, match=r"@entrypoint\(checkpointer='runs\.lmdb'\)"
    ):
        run(drive, flow, 1, id="1")


def _was(numbers: list[int], *, previous: Any = None) -> Any:
    return numbers, "EUR"


def _was_of_two(numbers: list[int], factor: int) -> Any:
    return numbers, factor, "EUR"


def _has_one_more(
    numbers: list[int], currency: str = "EUR", *, previous: Any = None
) -> Any:
    return numbers, currency


def _has_two_more(numbers: list[int], digits: int = 2, *, currency: str = "EUR") -> Any:
    return numbers, currency


def _has_a_third(numbers: list[int], factor: int, currency: str = "EUR") -> Any:
    return numbers, factor, currency


@pytest.mark.parametrize(
    ("before", "after", "arguments"),
    [
        (_was, _has_one_more, ([1, 2],)),
        (_was, _has_two_more, ([1, 2],)),
        (_was_of_two, _has_a_third, ([1, 2], 3)),
        (_has_one_more, _has_two_more, ([1, 2],)),
    ],
)
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_parameter_with_a_default_that_is_added_makes_no_other_input(
    before: Any, after: Any, arguments: Any, is_finished: bool, drive: Any
) -> None:
    """The same line goes on, or returns the kept result; another value is another
    input.
    """
    saver = InMemorySaver()
    fails = [not is_finished]

    def flow_of(function: Any) -> Any:
        @functools.wraps(function)
        def study(*args: Any, **kwargs: Any) -> Any:
            if any(fails):
                raise OSError("the power went out")
            return function(*args, **kwargs)

        study.__name__ = study.__qualname__ = "study"
        return entrypoint(checkpointer=saver, executor="inline")(study)

    with pytest.raises(OSError, match="power") if any(fails) else nullcontext():
        run(drive, flow_of(before), *arguments, id="1")
    fails.clear()
    with pytest.raises(InputMismatchError):
        run(drive, flow_of(after), *arguments, currency="USD", id="1")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunNotice)  # the workflow's code has changed
        assert (*arguments, "EUR") == run(drive, flow_of(after), *arguments, id="1")
        assert (*arguments, "EUR") == run(drive, flow_of(after), *arguments, id="1")


def test_an_input_that_names_parameters_is_not_taken_for_an_earlier_one(
    drive: Any,
) -> None:
    """Given as it was, a dict would be read as the arguments of the workflow of now."""
    saver = InMemorySaver()

    @entrypoint(checkpointer=saver, executor="inline")
    def study(settings: dict[str, int]) -> Any:
        return settings

    run(drive, study, {"settings": 1}, id="1")

    @entrypoint(checkpointer=saver, executor="inline", adopts="study")
    def edited(settings: dict[str, int], currency: str = "EUR") -> Any:
        return settings

    with pytest.raises(InputMismatchError):
        run(drive, edited, {"settings": 1}, id="1")
