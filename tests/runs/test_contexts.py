"""`Context` channels in whole runs: entered when they are read, left when the run ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from flowpregel.channels import Context, LastValue
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


def app_of(resource: Resource, executor: str, last: Any = second) -> Pregel:
    """Return a program of two nodes that read the same resource."""
    return Pregel(
        nodes={
            "first": NodeBuilder().subscribe_to("value").read_from("resource").do(first)
            .write_to("between"),
            "last": NodeBuilder().subscribe_to("between").read_from("resource").do(last)
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
    )  # fmt: skip


def test_a_context_is_entered_once_a_run_and_left_when_it_ends(drive: Any, executor: str) -> None:
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
