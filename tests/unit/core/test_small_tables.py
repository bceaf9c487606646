"""Tables for the small decisions of the core: commands, payloads, stand-ins, injection,
ids.
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import Any, Optional

import pytest

from flowpregel._core.barrier import PUSHED
from flowpregel._core.commands import Command, Send, call_target_of
from flowpregel._core.ids import (
    CallRecord,
    Span,
    call_path,
    caller_of,
    checkpoint_id,
    interrupt_id,
    is_interrupt_id,
    next_version,
    task_id,
    text_digest,
    time_from_id,
    timestamp,
    without_ids,
)
from flowpregel._core.records import (
    ERROR,
    Arguments,
    CacheClaim,
    Kind,
    Node,
    Task,
    TaskOrigin,
)
from flowpregel._core.resume_commands import command_writes, update_writes
from flowpregel._core.stream_events import StreamEvents
from flowpregel._core.unmatched import held_calls
from flowpregel._pickling.copies import as_storable, private_copy
from flowpregel._pickling.process_bound import Placeholder
from flowpregel.errors import ConfigurationError, InvalidUpdateError, RecordedError
from tests.unit.core.programs import node, program


@dataclass
class Update:
    """An annotated object, as a node may return it."""

    a: int
    b: int | None = None


@pytest.mark.parametrize(
    ("update", "writes"),
    [
        ({"a": 1}, [("a", 1)]),
        ([("a", 1), ("a", 2)], [("a", 1), ("a", 2)]),
        (Update(1), [("a", 1)]),
        (Update(1, 2), [("a", 1), ("b", 2)]),
        (7, [("__root__", 7)]),
        ([1, 2], [("__root__", [1, 2])]),
    ],
)
def test_an_update_is_a_dict_pairs_an_annotated_object_or_the_root(
    update: Any, writes: list[Any]
) -> None:
    """What is None in an annotated object is not written."""
    assert writes == update_writes(update)


def test_a_command_without_an_update_writes_nothing() -> None:
    """None is no value for the root."""
    assert command_writes(program(node("n")), Command(update=None)) == []


@pytest.mark.parametrize(
    ("command", "error", "message"),
    [
        (Command(goto=3), TypeError, "node names and Sends, not 3"),
        (Command(goto="nowhere"), InvalidUpdateError, "there is no such node"),
        (
            Command(goto=Send("nowhere", 1)),
            InvalidUpdateError,
            "'nowhere', which does not exist",
        ),
        (
            Command(update={"nowhere": 1}),
            InvalidUpdateError,
            "'nowhere', which does not exist",
        ),
        (Command(graph=Command.PARENT), InvalidUpdateError, "There is no parent graph"),
    ],
)
def test_a_command_that_cannot_be_obeyed_says_why(
    command: Command[Any], error: type[Exception], message: str
) -> None:
    """Before anything is written."""
    with pytest.raises(error, match=message):
        command_writes(program(node("n")), command)


def task_of(kind: Kind = Kind.PULL, given: Any = 1, **more: Any) -> Task:
    """Return a task of a node with metadata."""
    shown = Node(name="n", metadata={"colour": "blue"})
    return Task(
        id="1", node=shown, kind=kind, input=given, path="p", triggers=PUSHED, **more
    )


def events_of(*modes: str) -> StreamEvents:
    """Return the stream events that show the channel ``a``."""
    return StreamEvents(frozenset(modes), ("a",), ("a",))


@pytest.mark.parametrize(
    ("writes", "result"),
    [
        ([("b", 1)], {}),
        ([("a", 1)], {"a": 1}),
        ([("a", 1), ("a", 2)], {"a": {"$writes": [1, 2]}}),
        ([("a", 1), ("a", 2), ("a", 3)], {"a": {"$writes": [1, 2, 3]}}),
        ([("__return__", 4)], {"__return__": 4}),
    ],
)
def test_several_writes_to_one_channel_are_shown_in_order(
    writes: Any, result: Any
) -> None:
    """Channels that no stream shows are left out; what a call returned is shown."""
    assert result == events_of("tasks").result_of(writes)


def test_a_calls_start_shows_its_arguments_and_its_nodes_metadata() -> None:
    """The input of a call is a pair of positional and named arguments."""
    task = task_of(Kind.CALL, Arguments((1,), {"b": 2}))

    (event,) = events_of("tasks").started(task, 0, 0)

    assert ((1,), {"b": 2}) == event.payload["input"]
    assert {"colour": "blue"} == event.payload["metadata"]


@pytest.mark.parametrize(("executor", "count"), [("inline", 1), ("cache", 0)])
def test_a_task_has_an_end_unless_its_result_was_shared(
    executor: str, count: int
) -> None:
    """A shared result was computed by another task, which had an end."""
    task = task_of()
    task.attempt.span = Span(0, 0.0, executor)
    task.attempt.writes = [("a", 1)]

    assert count == len([*events_of("tasks").returned(task, 0, 0)])


def test_debug_wraps_an_event_with_its_step_and_time() -> None:
    """The payload is the one that its own mode shows."""
    tasks, debug = events_of("tasks", "debug").started(task_of(), 4, 1_000_000_000)

    assert tasks.payload == debug.payload["payload"]
    assert (4, "task") == (debug.payload["step"], debug.payload["type"])
    assert "1970-01-01T00:00:01+00:00" == debug.payload["timestamp"]


def test_a_checkpoint_lists_a_failed_task_with_its_error_alone() -> None:
    """It has no interrupts, and no result."""
    error = OSError("x")

    entry = events_of("checkpoints").task_entry(task_of(), [(ERROR, error)], "1")

    assert {"id": "1", "name": "n", "error": error, "state": None} == entry


class Locked(Exception):
    """An error that cannot be pickled."""

    def __init__(self, *, why: str) -> None:
        super().__init__(why)
        self.lock = threading.Lock()


def test_an_error_that_can_be_kept_is_kept_itself() -> None:
    """Not a copy: whoever caught it may compare."""
    error = OSError("x")

    assert error is as_storable(error)


def test_an_error_that_cannot_be_kept_leaves_its_name_text_and_notes() -> None:
    """What stands in for it can be pickled."""
    error = Locked(why="closed")
    error.add_note("on Sunday")

    kept = as_storable(error)

    assert isinstance(kept, RecordedError)
    assert ("Locked", "closed", ["on Sunday"]) == (
        kept.kind,
        kept.message,
        kept.__notes__,
    )


def wants(
    x: int,
    store: "Optional[BaseStore]",  # type: ignore[name-defined]  # noqa: F821, UP037, UP045
    config: int,
    *,
    writer: Any,
    runtime: Any,
) -> None:
    """Ask for what a run gives, but for an int that happens to be called config."""


def rest(x: int, *store: Any, **config: Any) -> None:
    """Take everything, and ask for nothing."""


def test_what_is_filled_in_goes_by_name_and_annotation() -> None:
    """An annotation may be text, and optional; one that does not fit is the user's
    own.
    """
    found = {item.name: item for item in call_target_of(wants).injections}

    assert {"store", "writer", "runtime"} == found.keys()
    assert found["store"].optional
    assert (1, None) == (found["store"].index, found["writer"].index)
    assert () == call_target_of(rest).injections
    assert () == call_target_of(len).injections


def test_ids_and_digests_are_the_same_in_every_version() -> None:
    """Stored tasks, answers and results are found by them."""
    assert "cbfffe3b-c7ac-333f-71cb-35e1fbdcae50" == task_id("a", 1)
    assert "cbfffe3bc7ac333f71cb35e1fbdcae50" == text_digest("a", 1)
    assert "5c51cde2080ba96844fe2d9135a33bc0" == interrupt_id("n:1", 2)


PLANNED = "~__pregel_pull, flow"


@pytest.mark.parametrize(
    ("path", "caller"),
    [
        (call_path(PLANNED, 0), PLANNED),
        (call_path(call_path(PLANNED, 3), 1_000), call_path(PLANNED, 3)),
        (PLANNED, ""),
        ("", ""),
    ],
)
def test_the_path_of_a_call_has_that_of_its_caller(path: str, caller: str) -> None:
    """A planned task has none."""
    assert caller == caller_of(path)


@pytest.mark.parametrize(
    ("namespace", "names"),
    [("", ""), ("n", "n"), ("n:1", "n"), ("n:1|m:2:3|k", "n|m|k")],
)
def test_a_namespace_without_ids_has_the_names_alone(
    namespace: str, names: str
) -> None:
    assert names == without_ids(namespace)


@pytest.mark.parametrize("step", [-1, 0, 1_000])
@pytest.mark.parametrize("now", [0, 99, 1_800_000_000_123_456_789])
def test_the_id_of_a_checkpoint_has_its_time_and_its_step(now: int, step: int) -> None:
    """Ids sort by time; a text that is no such id has none."""
    made = checkpoint_id(now, step)

    assert now == time_from_id(made)
    assert step + 2 == int(made.rpartition("-")[2], 16)
    assert made < checkpoint_id(now + 1, step) < checkpoint_id(now + 100, -1)
    assert 0 == time_from_id(made[1:]) == time_from_id(made.replace("-6", "-4", 1))


def test_a_time_is_shown_in_utc_to_the_microsecond() -> None:
    assert "1970-01-01T00:00:01.500001+00:00" == timestamp(1_500_001_999)


def test_a_text_version_of_another_saver_counts_on() -> None:
    """Its counter stays fixed-width, so that texts compare as the numbers do."""
    first = f"{1:032}.0.25"
    newest = f"{1:032}.9.25"

    later = next_version(first, 7)

    assert isinstance(later, str)
    assert first < newest < later
    assert later == next_version(newest, 7)
    assert next_version(None, 7) == 7
    assert next_version(9, 7) == 10


@pytest.mark.parametrize(
    ("value", "is_id"),
    [
        (interrupt_id("flow:1", 0), True),
        ("0" * 32, True),
        ("0123456789abcdef" * 2, True),
        ("face", False),
        ("g" * 32, False),
        ("0" * 33, False),
        (("0",) * 32, False),
        (7, False),
        ("", False),
    ],
)
def test_the_id_of_a_question_has_32_hex_digits(value: object, is_id: bool) -> None:
    """An answer with other keys is a mapping that a person gave."""
    assert is_id is is_interrupt_id(value)


def test_a_send_shows_its_timeout_only_if_it_has_one() -> None:
    """Its text is how it is made."""
    assert "Send(node='a', arg=1)" == repr(Send("a", 1))
    assert "Send(node='a', arg=1, timeout=TimeoutPolicy(" in repr(
        Send("a", 1, timeout=3)
    )


def test_what_cannot_be_kept_is_its_own_copy() -> None:
    lock = threading.Lock()

    assert lock is private_copy(lock)


def test_a_stand_in_says_where_to_ask_and_stays_one_where_nobody_made_it() -> None:
    here = Placeholder("of another process", "StateGraph")

    with pytest.raises(
        ConfigurationError, match=r"\.get_state of <stand-in for a StateGraph"
    ):
        here.get_state()
    assert not hasattr(here, "__len__")
    assert "<stand-in for a StateGraph of another process>" == repr(
        pickle.loads(pickle.dumps(here))
    )


def call_task(name: str, **attempt: Any) -> Task:
    """Return the task of a recorded call of the task *name*."""
    record = CallRecord(name, "", "", "", 0, "")
    task = task_of(Kind.CALL, Arguments((), {}), origin=TaskOrigin(record))
    for field, value in attempt.items():
        setattr(task.attempt, field, value)
    return task


def test_a_call_is_held_if_it_waits_and_no_other_run_computes_it() -> None:
    """Other tasks, and those that have been started, are none of them."""
    busy = CacheClaim(((), "key"), None, is_busy=True)
    free = CacheClaim(((), "key"), None)
    held = [call_task("work"), call_task("work", cache=free)]
    others = [
        task_of(),
        call_task("other"),
        call_task("work", first_started=0),
        call_task("work", cache=busy),
    ]

    assert held == held_calls("work", [*others, *held])
