"""A LangChain handler in ``config["callbacks"]`` is called for graphs and nodes as by
LangGraph.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers import BaseTracer

from tests.parity.libraries import BOTH, CONFIG, Library

LANGGRAPH, FLOWPREGEL = BOTH
SHOWN = ("langgraph_node", "langgraph_step", "langgraph_triggers", "topic")


class State(TypedDict, total=False):
    """A state of one number, and of a list with a reducer."""

    n: int
    log: Annotated[list[str], operator.add]


class Watcher(BaseCallbackHandler):
    """A handler that notes what it is called with, by the names of runs."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.names: dict[UUID, str] = {}
        self.open: set[UUID] = set()

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, **more: Any
    ) -> None:
        """Note a start, with the name of the run around it."""
        assert isinstance(run_id, UUID)
        assert run_id not in self.names
        self.names[run_id] = more["name"]
        self.open.add(run_id)
        parent = self.names.get(more["parent_run_id"])
        metadata = {key: more["metadata"].get(key) for key in SHOWN}
        tags = sorted(more["tags"])
        if not isinstance(inputs, dict):
            inputs = repr(inputs)  # The two classes of a command are not equal.
        self.events.append(("start", more["name"], parent, inputs, metadata, tags))

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """Note an end."""
        self.open.remove(run_id)
        self.events.append(("end", self.names[run_id], outputs))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Note a failure."""
        self.open.remove(run_id)
        self.events.append(("error", self.names[run_id], type(error).__name__))


def add(state: State) -> State:
    """Add one."""
    return {"n": state["n"] + 1}


def double(state: State) -> State:
    """Double."""
    return {"n": 2 * state["n"]}


def fail(state: State) -> State:
    """Fail."""
    raise OSError("no")


async def wait(state: State) -> State:
    """Add one, as a coroutine."""
    return {"n": state["n"] + 1}


def invoked(app: Any, given: Any = None, **config: Any) -> list[Any]:
    """Run *app*, and return what a handler has noted."""
    watcher = Watcher()
    config = {
        "callbacks": [watcher],
        "run_name": "run",
        "configurable": {"thread_id": "1"},
        "metadata": {"topic": "numbers"},
        "tags": ["mine"],
        **config,
    }
    with suppress(OSError):
        app.invoke({"n": 1} if given is None else given, config)
    assert not watcher.open
    return watcher.events


def two_nodes(library: Library) -> list[Any]:
    """One node after another."""
    return invoked(library.compile(library.graph(State, add, double)))


def local_nodes(library: Library) -> Any:
    """Return a builder of nodes that workers need not import, because they go by
    value.
    """

    class Local(TypedDict, total=False):
        n: int

    def add(state: Any) -> Any:
        return {"n": state["n"] + 1}

    def double(state: Any) -> Any:
        return {"n": 2 * state["n"]}

    return library.graph(Local, add, double)


def a_failure(library: Library) -> list[Any]:
    """The second node fails."""
    return invoked(library.compile(library.graph(State, add, fail)))


def retries(library: Library) -> list[Any]:
    """The node fails twice, and succeeds at its third attempt."""
    left = [1, 2]

    def flaky(state: State) -> State:
        if left:
            left.pop()
            raise OSError("once more")
        return {"n": 5}

    policy = library.of("types.RetryPolicy")(
        initial_interval=0.0, jitter=False, retry_on=OSError
    )
    builder = library.of("graph.StateGraph")(State)
    builder.add_node("flaky", flaky, retry_policy=policy)
    return invoked(library.compile(builder.add_edge("__start__", "flaky")))


def a_nested_graph(library: Library) -> list[Any]:
    """A graph is a node."""
    inner = library.graph(State, add, double)
    inner = library.compile(inner, checkpointer=None, name="inner")
    builder = library.graph(State, add, ("outer", inner))
    return invoked(library.compile(builder))


def a_called_graph(library: Library) -> list[Any]:
    """A node calls a graph."""
    inner = library.graph(State, double)
    inner = library.compile(inner, checkpointer=None, name="inner")

    def call(state: State) -> Any:
        return inner.invoke(state)

    return invoked(library.compile(library.graph(State, call, add)))


def a_question(library: Library) -> list[Any]:
    """A node asks, is answered, and another one follows."""
    interrupt = library.of("types.interrupt")

    def ask(state: State) -> State:
        return {"n": interrupt("which?")}

    app = library.compile(library.graph(State, ask, add))
    before = invoked(app)
    return before + invoked(app, library.of("types.Command")(resume=7))


def a_nested_question(library: Library) -> list[Any]:
    """A graph inside asks."""
    interrupt = library.of("types.interrupt")

    def ask(state: State) -> State:
        return {"n": interrupt("which?")}

    inner = library.graph(State, ask)
    inner = library.compile(inner, checkpointer=None, name="inner")
    app = library.compile(library.graph(State, ("outer", inner)))
    before = invoked(app)
    return before + invoked(app, library.of("types.Command")(resume=7))


def a_command_to_the_parent(library: Library) -> list[Any]:
    """A graph inside commands the graph around it."""
    command = library.of("types.Command")

    def leave(state: State) -> Any:
        return command(graph=command.PARENT, goto="add", update={"n": 5})

    inner = library.graph(State, leave)
    inner = library.compile(inner, checkpointer=None, name="inner")
    builder = library.graph(State, ("outer", inner)).add_node(add)
    return invoked(library.compile(builder))


def a_workflow(library: Library) -> list[Any]:
    """A body calls tasks, one after the other."""
    task = library.of("func.task")

    @task
    def half(n: int, *, more: int = 0) -> int:
        return n // 2 + more

    @library.of("func.entrypoint")()
    def flow(n: int) -> int:
        return half(half(n, more=1).result()).result()

    if library.is_ours:
        flow = flow.copy({"executor": "inline"})
    return invoked(flow, 20)


def packets(library: Library) -> list[Any]:
    """A conditional edge of the start sends a packet."""
    send = library.of("types.Send")
    builder = library.of("graph.StateGraph")(State).add_node(add)
    builder.add_conditional_edges("__start__", lambda _: [send("add", {"n": 7})])
    events = invoked(library.compile(builder))
    # LangGraph calls handlers for the function of the edge, and for the hidden node
    # `__start__` if it has such an edge.
    hidden = ("RunnableCallable", "__start__")
    return [event for event in events if event[1] not in hidden]


def an_error_handler(library: Library) -> list[Any]:
    """A node fails, and its handler repairs that."""
    node_error = library.of("errors.NodeError")

    def repair(state: State, error: Any) -> State:
        return {"n": 9}

    repair.__annotations__["error"] = node_error
    builder = library.of("graph.StateGraph")(State)
    builder.add_node("fail", fail, error_handler=repair)
    return invoked(library.compile(builder.add_edge("__start__", "fail")))


PROGRAMS: list[Callable[[Library], list[Any]]] = [
    two_nodes,
    a_failure,
    retries,
    a_nested_graph,
    a_called_graph,
    a_question,
    a_nested_question,
    a_command_to_the_parent,
    a_workflow,
    packets,
    an_error_handler,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_handler_is_called_in_the_same_order_with_the_same_values(
    program: Callable[[Library], list[Any]],
) -> None:
    """Starts, ends and errors of graphs and nodes, with inputs, outputs, parents,
    tags and metadata.
    """
    assert program(LANGGRAPH) == program(FLOWPREGEL)


def a_chain(library: Library) -> list[Any]:
    """A graph is a step of a chain."""
    app = library.compile(library.graph(State, add), checkpointer=None)
    first = RunnableLambda(lambda n: {"n": n})
    return invoked(first | app | RunnableLambda(lambda state: state["n"]), 1)


def a_graph_in_a_function(library: Library) -> list[Any]:
    """A function of LangChain passes its config to a graph."""
    app = library.compile(library.graph(State, add), checkpointer=None, name="inner")

    def call(n: int, config: RunnableConfig) -> Any:
        return app.invoke({"n": n}, config)

    call.__annotations__["config"] = RunnableConfig
    return invoked(RunnableLambda(call), 1)


@pytest.mark.parametrize(
    "program", [a_chain, a_graph_in_a_function], ids=lambda program: program.__name__
)
def test_a_graph_in_a_chain_is_below_the_run_of_the_chain(
    program: Callable[[Library], list[Any]],
) -> None:
    """The chain's run is the parent of the graph's."""
    events = program(FLOWPREGEL)

    assert program(LANGGRAPH) == events
    assert [None, "run"] == [event[2] for event in events if event[0] == "start"][:2]


@pytest.mark.parametrize("executor", ["processes", "threads"])
def test_nodes_in_other_processes_and_threads_are_no_different(executor: str) -> None:
    """The handler stays in the program."""
    app = local_nodes(FLOWPREGEL).compile(executor=executor)

    assert invoked(LANGGRAPH.compile(local_nodes(LANGGRAPH))) == invoked(app)


def test_nodes_side_by_side_are_each_noted() -> None:
    """In no particular order."""

    def noted(library: Library) -> list[str]:
        builder = library.graph(State, ("one", lambda _: {"log": ["one"]}))
        builder.add_node("two", lambda _: {"log": ["two"]}).add_edge("__start__", "two")
        return sorted(map(repr, invoked(library.compile(builder))))

    assert noted(LANGGRAPH) == noted(FLOWPREGEL)


def test_an_async_run_calls_the_handler_too() -> None:
    """With the same values as a sync run."""

    def noted(library: Library) -> list[Any]:
        watcher = Watcher()
        app = library.compile(library.graph(State, wait, double), checkpointer=None)
        asyncio.run(app.ainvoke({"n": 1}, {"callbacks": [watcher]}))
        return watcher.events

    assert noted(LANGGRAPH) == noted(FLOWPREGEL)


def test_a_handler_may_ignore_chains() -> None:
    """Neither library calls it for graphs and nodes."""

    class Deaf(Watcher):
        @property
        def ignore_chain(self) -> bool:
            return True

    for library in BOTH:
        watcher = Deaf()
        app = library.compile(library.graph(State, add), checkpointer=None)
        app.invoke({"n": 1}, {"callbacks": [watcher]})

        assert [] == watcher.events


class Recorder(BaseTracer):
    """A tracer that keeps the runs it has recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.root: Any = None

    def _persist_run(self, run: Any) -> None:
        self.root = run


def test_a_trace_policy_changes_what_a_tracer_records_of_a_node() -> None:
    """Of its input and output, not of the run's; other handlers get both unchanged."""
    records = []
    for library in BOTH:
        policy = library.of("types.TracePolicy")(
            process_inputs=library.of("types.omit_payload"),
            process_outputs=lambda output: {"keys": sorted(output)},
        )
        builder = library.of("graph.StateGraph")(State)
        builder.add_node(add, trace_policy=policy).add_edge("__start__", "add")
        builder.add_node(double).add_edge("add", "double")
        recorder, watcher = Recorder(), Watcher()
        app = library.compile(builder, checkpointer=None)
        app.invoke({"n": 1}, {"callbacks": [recorder, watcher]})
        records.append(
            [(run.name, run.inputs, run.outputs) for run in recorder.root.child_runs]
        )
        starts = [event for event in watcher.events if event[:2] == ("start", "add")]
        assert [{"n": 1, "log": []}] == [start[3] for start in starts]

    assert records[0] == records[1]
    assert ("add", {}, {"keys": ["n"]}) in records[1]


def test_a_trace_policy_that_fails_leaves_the_value_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And logs its error; the run continues."""
    policy = FLOWPREGEL.of("types.TracePolicy")(process_inputs=fail)
    builder = FLOWPREGEL.of("graph.StateGraph")(State)
    builder.add_node(add, trace_policy=policy).add_edge("__start__", "add")
    recorder = Recorder()

    FLOWPREGEL.compile(builder).invoke({"n": 1}, {**CONFIG, "callbacks": [recorder]})

    assert [{}] == [run.inputs for run in recorder.root.child_runs]
    assert "a function of a trace policy failed" in caplog.text
