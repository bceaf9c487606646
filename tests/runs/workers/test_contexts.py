"""`Context` channels in whole runs: entered when they are read, left when the run
ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from flowpregel.channels import Context, LastValue
from flowpregel.executors.local import ThreadExecutor
from flowpregel.pregel import NodeBuilder, Pregel


class Resource:
    """Counts how often it was entered and left."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[list[str]]:
        """Enter, and leave at the end."""
        self.log.append("enter")
        try:
            yield self.log
        finally:
            self.log.append("exit")


def first(state: dict[str, Any]) -> int:
    """Use the resource, and write."""
    state["resource"].append("first")
    return int(state["value"]) + 1


def second(state: dict[str, Any]) -> int:
    """Use the resource in the next superstep."""
    state["resource"].append("second")
    return int(state["between"]) + 1


def fail(state: dict[str, Any]) -> int:
    """Use the resource, and fail."""
    state["resource"].append("fail")
    raise OSError("on purpose")


def app_of(resource: Resource, executor: Any, last: Any = second) -> Pregel:
    """Return a program of two nodes that read the same resource."""
    return Pregel(
        nodes={
            "first": NodeBuilder()
            .subscribe_to("value")
            .read_from("resource")
            .do(first)
            .write_to("between"),
            "last": NodeBuilder()
            .subscribe_to("between")
            .read_from("resource")
            .do(last)
            .write_to("out"),
        },
        channels={
            "value": LastValue(int),
            "between": LastValue(int),
            "out": LastValue(int),
            "resource": Context(resource.open),
        },
        input_channels=["value"],
        output_channels="out",
        executor=executor,
    )


def test_a_context_is_entered_once_a_run_and_left_when_it_ends(
    drive: Any, executor: str
) -> None:
    """Both nodes see the same value; nothing is left open."""
    resource = Resource()

    assert 3 == drive.invoke(app_of(resource, executor), {"value": 1})

    assert ["enter", "first", "second", "exit"] == resource.log


def test_a_context_is_left_when_the_run_fails(drive: Any, executor: str) -> None:
    """The failure is raised as it was."""
    resource = Resource()

    with pytest.raises(OSError, match="on purpose"):
        drive.invoke(app_of(resource, executor, fail), {"value": 1})

    assert ["enter", "first", "fail", "exit"] == resource.log


def test_each_run_enters_a_context_of_its_own(drive: Any, executor: str) -> None:
    """A second run does not find the first one's closed resource."""
    resource = Resource()
    app = app_of(resource, executor)

    drive.invoke(app, {"value": 1})
    drive.invoke(app, {"value": 1})

    assert 2 * ["enter", "first", "second", "exit"] == resource.log


def test_a_run_that_reads_no_context_enters_none(drive: Any, executor: str) -> None:
    """It is entered lazily: by the first node that reads it."""
    resource = Resource()
    app = Pregel(
        nodes={"n": NodeBuilder().subscribe_only("value").do(str).write_to("out")},
        channels={
            "value": LastValue(int),
            "out": LastValue(str),
            "resource": Context(resource.open),
        },
        input_channels="value",
        output_channels="out",
        executor=executor,
    )

    assert "1" == drive.invoke(app, 1)

    assert [] == resource.log


class Elsewhere(ThreadExecutor):
    """An executor that notes when, and where, it is told to leave contexts."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(2)
        self.log = log
        self.left: list[tuple[int, BaseException | None, int]] = []

    def leave(self, contexts: Sequence[bytes], error: BaseException | None) -> None:
        """Note it."""
        self.log.append("leave elsewhere")
        self.left.append((len(contexts), error, threading.get_ident()))


def test_a_run_returns_after_its_executors_have_left_its_contexts(drive: Any) -> None:
    """They may block for it: not on an event loop."""
    resource = Resource()
    executor = Elsewhere(resource.log)

    assert 3 == drive.invoke(app_of(resource, executor), {"value": 1})

    assert ["enter", "first", "second", "leave elsewhere", "exit"] == resource.log
    ((count, error, thread),) = executor.left
    assert (1, None) == (count, error)
    assert drive.is_async is (thread != threading.get_ident())


def test_a_run_that_fails_tells_its_executors_of_the_error(drive: Any) -> None:
    """It is left there as it is here."""
    resource = Resource()
    executor = Elsewhere(resource.log)

    with pytest.raises(OSError, match="on purpose") as caught:
        drive.invoke(app_of(resource, executor, fail), {"value": 1})

    assert [(1, caught.value)] == [(count, error) for count, error, _ in executor.left]


def test_a_nested_runs_context_is_left_when_the_run_around_it_is_given_up(
    drive: Any,
) -> None:
    """It did not end by itself: a step timeout ended the outermost run."""
    resource, began = Resource(), threading.Event()

    def hang(state: dict[str, Any]) -> int:
        resource.log.append("hang")
        began.wait(30)
        return 0

    inner = app_of(resource, "threads", hang)
    outer = Pregel(
        nodes={"inner": NodeBuilder().subscribe_to("value").do(inner).write_to("out")},
        channels={"value": LastValue(int), "out": LastValue(int)},
        input_channels=["value"],
        output_channels="out",
        step_timeout=0.2,
    )

    with pytest.raises(TimeoutError):
        drive.invoke(outer, {"value": 1})
    began.set()

    assert resource.log.count("enter") == resource.log.count("exit")
