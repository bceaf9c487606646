"""Handlers in ``config["callbacks"]`` are told of a run's start, end and error."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.graph import START, StateGraph
from tests.runs.conftest import Drive


class Watcher:
    """A handler with LangChain's methods, of which it needs no more than these."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.runs: set[str] = set()

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: str, **more: Any
    ) -> None:
        """Note what a run was given."""
        self.seen.append(
            ("start", inputs, more["name"], more["tags"], more["metadata"])
        )
        self.runs.add(run_id)

    def on_chain_end(self, outputs: Any, *, run_id: str, **_: Any) -> None:
        """Note what a run came to."""
        self.seen.append(("end", outputs))
        self.runs.add(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: str, **_: Any) -> None:
        """Note what a run failed with."""
        self.seen.append(("error", error))
        self.runs.add(run_id)


def compiled(node: Any, **options: Any) -> Any:
    """Return a graph of one node."""
    builder = StateGraph(dict).add_node("node", node).add_edge(START, "node")
    return builder.compile(name="watched", executor="inline", **options)


def test_a_handler_is_told_of_start_and_end(drive: Drive) -> None:
    """With the name, the tags and the metadata of the run, under one id."""
    watcher = Watcher()
    config = {"callbacks": [watcher], "tags": ["t"], "metadata": {"m": 1}}

    drive.invoke(compiled(lambda _: {"n": 2}), {"n": 1}, config)

    assert [
        ("start", {"n": 1}, "watched", ["t"], {"m": 1}),
        ("end", {"n": 2}),
    ] == watcher.seen
    assert 1 == len(watcher.runs)


def test_a_handler_is_told_what_a_run_failed_with(drive: Drive) -> None:
    """The error is the one that is raised; a ``run_name`` stands for the graph's."""
    watcher = Watcher()

    def fail(_: Any) -> None:
        raise OSError("no")

    config = {"callbacks": [watcher], "run_name": "mine"}
    with pytest.raises(OSError, match="no") as caught:
        drive.invoke(
            compiled(fail, checkpointer=InMemorySaver()),
            {"n": 1},
            config,
            thread_id="1",
        )

    assert [
        ("start", {"n": 1}, "mine", [], {}),
        ("error", caught.value),
    ] == watcher.seen


def test_a_handler_that_has_no_method_for_it_or_fails_changes_no_run(
    drive: Drive,
) -> None:
    """The next handler is told all the same."""
    watcher = Watcher()

    class Broken:
        def on_chain_start(self, *_: Any, **__: Any) -> None:
            raise OSError("no")

    config = {"callbacks": [object(), Broken(), watcher]}

    assert {"n": 2} == drive.invoke(compiled(lambda _: {"n": 2}), {"n": 1}, config)
    assert ["start", "end"] == [each[0] for each in watcher.seen]


def test_the_handlers_of_a_manager_are_told(drive: Drive) -> None:
    """LangChain passes its handlers on in one."""

    class Manager:
        handlers = (watcher := Watcher(),)

    drive.invoke(compiled(lambda _: {"n": 2}), {"n": 1}, {"callbacks": Manager()})

    assert ["start", "end"] == [each[0] for each in Manager.watcher.seen]
