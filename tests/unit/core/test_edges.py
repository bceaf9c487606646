"""What the core does in cases that are seldom met, each on purpose."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel._code.digest import code_digest
from flowpregel._core import ids
from flowpregel._core.commands import Send
from flowpregel._core.records import add_failed_calls, failed_calls
from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import GraphRecursionError
from flowpregel.graph import END, START, StateGraph


def test_an_error_goes_back_to_what_it_groups_follows_and_replaced() -> None:
    """Whatever the way from one to the other, and though one of them leads to
    itself.
    """
    errors = [OSError(name) for name in "abcd"]
    for name, error in zip("abcd", errors, strict=True):
        add_failed_calls(error, (name,))
    grouped = ExceptionGroup("all", errors[:2])
    errors[2].__cause__, errors[3].__context__ = grouped, errors[2]
    errors[0].__context__ = errors[3]

    assert {"a", "b", "c", "d"} == failed_calls(errors[3])
    assert set() == failed_calls(KeyError("other"))


@pytest.mark.parametrize("text", ["", "17", "1f1e4fc8-6bee-4d33-8880-000000000003"])
def test_what_is_no_version_6_uuid_tells_no_time(text: str) -> None:
    """Another saver's ids may be anything."""
    assert 0 == ids.time_from_id(text)


@pytest.mark.parametrize("now", [1, 99, 1_600_000_000_123_456_789])
def test_an_id_tells_the_time_that_it_was_made_of(now: int) -> None:
    """To the nanosecond."""
    assert now == ids.time_from_id(ids.checkpoint_id(now, 5))


def test_equal_sends_are_one_in_a_set() -> None:
    """Their timeouts count."""
    assert 2 == len({Send("a", 1), Send("a", 1), Send("a", 1, timeout=5)})


def test_a_function_that_closes_over_what_is_not_there_yet_has_a_digest() -> None:
    """As one that calls itself has while it is being made."""

    def make() -> Callable[[], Any]:
        def early() -> Any:
            return late()

        digests.append(code_digest(early).digest)

        def late() -> int:
            return 1

        return early

    digests: list[str] = []

    made = make()

    assert digests != [code_digest(made).digest]


def added(total: int, writes: Sequence[int]) -> int:
    return total + sum(writes)


class Deltas(TypedDict, total=False):
    """Keeps what each superstep added."""

    n: Annotated[int, DeltaChannel(added, int)]


class Count(TypedDict, total=False):
    """Counts without an end."""

    n: Annotated[int, operator.add]


def counting(**options: Any) -> Any:
    builder = StateGraph(Count).add_node("add", lambda state: {"n": 1})
    builder.add_edge(START, "add").add_edge("add", "add")
    return builder.compile(executor="inline", **options)


def test_the_checkpoint_before_the_limit_is_told_with_what_is_due() -> None:
    """A reader of the stream sees what is left when the run used up its supersteps,
    as `get_state` shows it.
    """
    asked: Any = {"thread_id": "1", "stream_mode": "checkpoints", "recursion_limit": 2}
    app = counting(checkpointer=InMemorySaver())
    stream = app.stream({"n": 0}, **asked)
    told: list[Any] = []

    with pytest.raises(GraphRecursionError):
        told.extend(item["next"] for item in stream)

    assert [["__start__"], ["add"], ["add"], ["add"]] == told
    assert ("add",) == app.get_state(thread_id="1").next


def test_a_checkpoint_is_told_with_the_superstep_that_it_is_stored_with() -> None:
    """The input is that before the first one."""
    app = counting(checkpointer=InMemorySaver(), interrupt_after=["add"])

    told = [*app.stream({"n": 0}, thread_id="1", stream_mode="checkpoints")]

    stored = [item.metadata["step"] for item in app.get_state_history(thread_id="1")]
    assert stored[::-1] == list(dict.fromkeys(e["metadata"]["step"] for e in told))


def test_the_checkpoint_after_a_breakpoint_is_told_with_what_is_due() -> None:
    """Before the run stops there."""
    asked: Any = {
        "thread_id": "1",
        "stream_mode": "checkpoints",
        "interrupt_after": ["add"],
    }

    told = [*counting(checkpointer=InMemorySaver()).stream({"n": 0}, **asked)]

    assert {"n": 1} == told[-1]["values"]
    assert ["add"] == told[-1]["next"]


def test_without_a_saver_there_are_no_checkpoints_to_tell() -> None:
    """The stream is empty rather than wrong."""
    app = counting()

    with pytest.raises(GraphRecursionError):
        assert [] == [
            *app.stream({"n": 0}, stream_mode="checkpoints", recursion_limit=2)
        ]


def test_deltas_are_read_by_a_reducer_that_is_kept_whole_from_now_on() -> None:
    """A program may change its mind about how a key is kept."""

    def app_of(schema: type) -> Any:
        builder = StateGraph(schema).add_node("add", lambda state: {"n": 1})
        return (
            builder.add_edge(START, "add")
            .add_edge("add", END)
            .compile(saver, executor="inline")
        )

    saver = InMemorySaver()
    for _ in range(2):
        app_of(Deltas).invoke({"n": 10}, thread_id="1")

    assert {"n": 33} == app_of(Count).invoke({"n": 10}, thread_id="1")
