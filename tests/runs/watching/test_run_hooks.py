"""Handlers in ``config["callbacks"]`` are told of starts, ends and errors of a run and
its nodes.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.func import entrypoint, task
from flowpregel.graph import START, StateGraph
from tests.runs.conftest import Drive


class Watcher:
    """A handler with LangChain's methods, of which it needs no more than these.

    It notes the outermost run, not the nodes in it.
    """

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.runs: set[str] = set()

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: str, **more: Any
    ) -> None:
        """Note what a run was given."""
        if more["parent_run_id"] is not None:
            return
        self.seen.append(
            ("start", inputs, more["name"], more["tags"], more["metadata"])
        )
        self.runs.add(run_id)

    def on_chain_end(self, outputs: Any, *, run_id: str, **more: Any) -> None:
        """Note what a run came to."""
        if more["parent_run_id"] is not None:
            return
        self.seen.append(("end", outputs))
        self.runs.add(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: str, **more: Any) -> None:
        """Note what a run failed with."""
        if more["parent_run_id"] is not None:
            return
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
        ("start", {"n": 1}, "mine", [], {"thread_id": "1"}),
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


class Tree:
    """A handler that notes the tree of runs, by names."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.seen: list[str] = []

    def on_chain_start(self, *_: Any, run_id: Any, **more: Any) -> None:
        """Note a start below its parent."""
        parent = self.names.get(more["parent_run_id"], "")
        self.names[run_id] = f"{parent}/{more['name']}"
        self.seen.append(f"start {self.names[run_id]}")

    def on_chain_end(self, *_: Any, run_id: Any, **__: Any) -> None:
        """Note an end."""
        self.seen.append(f"end {self.names[run_id]}")

    def on_chain_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        """Note a failure."""
        self.seen.append(f"{type(error).__name__} {self.names[run_id]}")


def test_a_handler_is_called_for_each_node(drive: Drive) -> None:
    """The graph's run is the parent of its nodes."""
    tree = Tree()

    drive.invoke(compiled(lambda _: {"n": 2}), {"n": 1}, {"callbacks": [tree]})

    assert [
        "start /watched",
        "start /watched/node",
        "end /watched/node",
        "end /watched",
    ] == tree.seen


def test_a_graph_on_another_thread_is_below_the_node_that_calls_it(
    drive: Drive,
) -> None:
    """A handler that is given to the call is called for the called graph only, and a
    handler that both are given is called once.
    """
    tree, inner_tree = Tree(), Tree()
    inner = compiled(lambda _: {"n": 2}, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "i"}, "callbacks": [inner_tree, tree]}

    def call(_: Any) -> Any:
        return inner.invoke({"n": 1}, config)

    drive.invoke(compiled(call), {"n": 1}, {"callbacks": [tree]})

    path = "/watched/node/watched"
    assert [f"start {path}", f"start {path}/node"] == tree.seen[2:4]
    assert [f"end {path}/node", f"end {path}"] == tree.seen[4:6]
    assert ["start /watched", "start /watched/node"] == inner_tree.seen[:2]
    assert 8 == len(tree.seen)
    assert 4 == len(inner_tree.seen)


def test_a_finished_task_is_not_started_again(drive: Drive) -> None:
    """A run that resumes calls the handler only for what runs again."""
    app = compiled(
        lambda _: {"n": 2}, checkpointer=InMemorySaver(), interrupt_after=["node"]
    )
    drive.invoke(app, {"n": 1}, thread_id="1")
    tree = Tree()

    drive.invoke(app, None, {"callbacks": [tree]}, thread_id="1")

    assert ["start /watched", "end /watched"] == tree.seen


def test_a_handler_gets_uuids(drive: Drive) -> None:
    """The run's own id where it is one; else the same id for the same text."""
    ids: list[Any] = []

    class Handler:
        def on_chain_start(self, *_: Any, run_id: Any, **__: Any) -> None:
            ids.append(run_id)

    run_id = uuid4()
    config = {"callbacks": [Handler()]}
    app = compiled(lambda _: {"n": 2})
    for given in (str(run_id), "order-7", "order-7"):
        drive.invoke(app, {"n": 1}, config, run_id=given)

    graphs = ids[::2]
    assert run_id == graphs[0] != graphs[1] == graphs[2]
    assert all(isinstance(each, UUID) for each in ids)
    assert 5 == len(set(ids))


def test_async_methods_are_not_called(drive: Drive) -> None:
    """Nobody could await their coroutines."""

    class Handler(Tree):
        async def on_chain_start(self, *_: Any, **__: Any) -> None:  # type: ignore[override]
            raise AssertionError

        def on_chain_end(self, *_: Any, **__: Any) -> None:
            self.seen.append("end")

    handler = Handler()

    drive.invoke(compiled(lambda _: {"n": 2}), {"n": 1}, {"callbacks": [handler]})

    assert ["end", "end"] == handler.seen


def test_the_input_of_a_call_is_its_arguments_by_parameter(drive: Drive) -> None:
    """Defaults are among them; redacted arguments are not shown."""
    inputs: dict[str, Any] = {}

    class Handler:
        def on_chain_start(self, _: Any, given: Any, **more: Any) -> None:
            inputs[more["name"]] = given

    @task(redact=["password"])
    def login(user: str, password: str, port: int = 1, **more: int) -> None:
        return None

    @task
    def largest(*numbers: int) -> None:
        return None

    @entrypoint(executor="inline")
    def flow(user: str) -> None:
        login(user, "secret", deep=3).result()
        login(user, password="secret").result()
        largest(1, 2).result()

    drive.invoke(flow, "ann", {"callbacks": [Handler()]})

    assert {"user": "ann", "password": "<redacted>", "port": 1} == inputs["login"]
    assert {"numbers": (1, 2)} == inputs["largest"]
    assert "ann" == inputs["flow"]


def test_a_call_with_wrong_arguments_is_shown_as_it_was_made(drive: Drive) -> None:
    """It fails, and the handler is called for the failure."""
    seen: list[Any] = []

    class Handler(Tree):
        def on_chain_start(self, _: Any, given: Any, **more: Any) -> None:
            super().on_chain_start(**more)
            seen.append(given)

    @task
    def double(n: int) -> int:
        return 2 * n

    @entrypoint(executor="inline")
    def flow(n: int) -> int:
        return double(n, wrong=3).result()  # type: ignore[call-arg]

    handler = Handler()
    with pytest.raises(TypeError):
        drive.invoke(flow, 1, {"callbacks": [handler]})

    assert {"args": (1,), "kwargs": {"wrong": 3}} == seen[-1]
    assert "TypeError /flow/flow/double" in handler.seen


def test_a_handler_of_a_called_graph_alone_is_called(drive: Drive) -> None:
    """The run around it has no handlers, so the graph has no parent."""
    tree = Tree()
    inner = compiled(lambda _: {"n": 2})

    def call(_: Any) -> Any:
        return inner.invoke({"n": 1}, {"callbacks": [tree]})

    drive.invoke(compiled(call), {"n": 1})

    ends = ["end /watched/node", "end /watched"]
    assert ["start /watched", "start /watched/node", *ends] == tree.seen
