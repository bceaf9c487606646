"""What a `StateGraph` can do it does on OS threads and in worker processes, kept on
disk.
"""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.cache.memory import InMemoryCache
from flowpregel.channels import DeltaChannel
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import NodeError, NodeTimeoutError
from flowpregel.graph import END, START, CompiledStateGraph, StateGraph
from flowpregel.managed import IsLastStep, RemainingSteps
from flowpregel.runtime import Runtime
from flowpregel.store.memory import InMemoryStore
from flowpregel.types import (
    CachePolicy,
    Command,
    Overwrite,
    RetryPolicy,
    Send,
    interrupt,
)
from tests.graphs import extend
from tests.runs.conftest import Drive

pytestmark = pytest.mark.slow


class State(TypedDict, total=False):
    """A list that adds up, one kept as deltas, a plain value, and what is left of the
    run.
    """

    items: Annotated[list[Any], operator.add]
    deltas: Annotated[list[Any], DeltaChannel(extend)]
    last: str
    left: RemainingSteps
    is_last: IsLastStep


class Private(TypedDict, total=False):
    """What one node tells another, and no output shows."""

    secret: str


@pytest.fixture(params=["threads", "processes"])
def place(request: pytest.FixtureRequest) -> str:
    """Return where nodes run: on OS threads, in worker processes."""
    return str(request.param)


def note(name: str) -> Any:
    """Return a node that writes its name everywhere."""
    return lambda _: {"items": [name], "deltas": [name], "last": name}


def line(*names: str) -> StateGraph:
    """Return nodes that run one after the other."""
    builder = StateGraph(State).add_sequence([(name, note(name)) for name in names])
    return builder.add_edge(START, names[0])


def ask(state: State) -> State:
    """Ask twice, in turn."""
    return {"items": [interrupt("first?"), interrupt("second?")]}


def test_joins_deferred_nodes_and_private_state(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """``add_edge`` of a list, ``defer``, ``input_schema`` and ``metadata`` of a
    node.
    """
    builder = StateGraph(State)
    builder.add_node("a", lambda _: {"items": ["a"], "secret": "s"}, metadata={"k": 1})
    builder.add_node("b", note("b"))
    builder.add_node(
        "c", lambda p: {"items": [f"c {p['secret']}"]}, input_schema=Private
    )
    builder.add_node("d", note("d"))
    builder.add_node("late", note("late"), defer=True)
    builder.add_edge(START, "a").add_edge(START, "b").add_edge("a", "c").add_edge(
        ["b", "c"], "d"
    )
    builder.add_edge("b", "late")
    app = builder.compile(store, executor=place)

    result = drive.invoke(app, {"items": []}, thread_id="1")

    assert ["a", "b", "c s", "d", "late"] == result["items"]
    assert "secret" not in result


def test_retries_handlers_and_defaults(
    drive: Drive, place: str, store: LMDBSaver, tmp_path: Path
) -> None:
    """``retry_policy`` and ``error_handler``, of a node and of all of them."""
    log = tmp_path / "log"

    def flaky(_: State) -> State:
        with log.open("a") as file:
            file.write("x")
        if len(log.read_text()) < 3:
            raise ConnectionError("once more")
        return {"items": ["flaky"]}

    def fail(_: State) -> State:
        raise ValueError("for good")

    def handle(state: State, error: NodeError) -> Command[Any]:
        return Command(update={"items": [f"{error.node}: {error.error}"]}, goto="after")

    builder = (
        StateGraph(State).add_node("flaky", flaky).add_node("after", note("after"))
    )
    builder.add_node("fail", fail, retry_policy=RetryPolicy(max_attempts=1))
    builder.set_node_defaults(
        retry_policy=RetryPolicy(initial_interval=0.001), error_handler=handle
    )
    builder.add_edge(START, "flaky").add_edge("flaky", "fail")
    app = builder.compile(store, executor=place)

    result = drive.invoke(app, {"items": []}, thread_id="1")

    assert ["flaky", "fail: for good", "after"] == result["items"]


def test_a_nodes_results_are_shared(
    drive: Drive, place: str, store: LMDBSaver, tmp_path: Path
) -> None:
    """``cache_policy`` and the graph's ``cache``: equal input is worked on once."""
    log = tmp_path / "log"

    def work(_: State) -> State:
        with log.open("a") as file:
            file.write("x")
        return {"items": ["work"]}

    builder = StateGraph(State).add_node("work", work, cache_policy=CachePolicy(ttl=60))
    app = builder.add_edge(START, "work").compile(
        store, cache=InMemoryCache(), executor=place
    )

    for thread in "12":
        assert ["work"] == drive.invoke(app, {"items": []}, thread_id=thread)["items"]
    assert "x" == log.read_text()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_node_that_takes_too_long_is_stopped(
    place: str, store: LMDBSaver, is_async: bool
) -> None:
    """``timeout``: of sync code where it can be stopped, of a coroutine everywhere."""

    def forever(_: State) -> State:
        while True:
            pass

    async def wait(_: State) -> State:
        import asyncio

        await asyncio.sleep(60)
        return {}

    drive = Drive(is_async or place == "threads")
    node = wait if drive.is_async else forever
    builder = StateGraph(State).add_node("n", node, timeout=0.2).add_edge(START, "n")

    with pytest.raises(NodeTimeoutError, match="'n'"):
        drive.invoke(
            builder.compile(store, executor=place), {"items": []}, thread_id="1"
        )


def test_commands_sends_and_managed_values(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """``destinations``, ``goto``, ``Send`` with its own state, ``Overwrite``, a
    loop.
    """

    def start(state: State) -> Command[Any]:
        sends = [Send("each", {"last": str(n)}) for n in range(3)]
        return Command(update={"items": Overwrite(["anew"])}, goto=sends)

    def each(state: State) -> Any:
        return [{"items": [state["last"]]}, Command(goto="loop")]

    def loop(state: State) -> Command[Any]:
        more = state["left"] > 2 and len(state["items"]) < 6
        return Command(
            update={"items": [state["is_last"]]}, goto="loop" if more else END
        )

    builder = StateGraph(State).add_node("start", start, destinations=("each",))
    builder.add_node("each", each, destinations=("loop",)).add_node("loop", loop)
    app = builder.add_edge(START, "start").compile(store, executor=place)

    result = drive.invoke(app, {"items": ["old"]}, thread_id="1")

    assert ["anew", "0", "1", "2", False, False, False] == result["items"]


def test_a_node_is_given_context_store_and_its_own_writer(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """``context_schema``, ``store`` and the ``custom`` stream."""

    class Context(TypedDict):
        user: str

    def work(state: State, runtime: Runtime[Context]) -> State:
        assert runtime.store is not None
        runtime.store.put(("users",), runtime.context["user"], {"seen": True})
        runtime.stream_writer({"at": "work"})
        return {"last": runtime.context["user"]}

    kept = InMemoryStore()
    builder = StateGraph(State, Context).add_node("work", work).add_edge(START, "work")
    app = builder.compile(store, store=kept, executor=place, name="job")

    found = drive.stream(
        app,
        {"items": []},
        thread_id="1",
        context={"user": "ann"},
        stream_mode=["custom", "updates"],
    )

    assert [("custom", {"at": "work"}), ("updates", {"work": {"last": "ann"}})] == found
    assert {"seen": True} == kept.get(("users",), "ann").value  # type: ignore[union-attr]


def test_questions_are_asked_in_turn_and_all_at_once(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """A node asks one after the other; nodes beside each other ask together."""
    builder = StateGraph(State).add_node("ask", ask).add_edge(START, "ask")
    builder.add_node("other", lambda _: {"items": [interrupt("other?")]}).add_edge(
        START, "other"
    )
    app = builder.compile(store, executor=place)

    first = drive.invoke(app, {"items": []}, thread_id="1")["__interrupt__"]
    ids = {item.value: item.id for item in first}
    second = drive.invoke(
        app, Command(resume={ids["first?"]: 1, ids["other?"]: 3}), thread_id="1"
    )["__interrupt__"]
    done = drive.invoke(app, Command(resume=2), thread_id="1")

    assert {"first?", "other?"} == ids.keys()
    assert ["second?"] == [item.value for item in second]
    assert [1, 2, 3] == done["items"]


def test_breakpoints_before_and_after(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """Of `compile`; the state says what is next."""
    app = line("a", "b", "c").compile(
        store, interrupt_before=["b"], interrupt_after=["b"], executor=place
    )

    seen = []
    for given in ({"items": []}, None, None):
        drive.invoke(app, given, thread_id="1")
        seen.append(app.get_state(thread_id="1").next)

    assert [("b",), ("c",), ()] == seen


def nested(checkpointer: Any = None) -> StateGraph:
    """Return a graph in a graph in a graph, of which the innermost asks."""
    deep = StateGraph(State).add_node("ask", lambda _: {"items": [interrupt("deep?")]})
    middle = StateGraph(State).add_node("deep", deep.add_edge(START, "ask").compile())
    outer = StateGraph(State).add_node(
        "middle", middle.add_edge(START, "deep").compile(checkpointer)
    )
    return (
        outer.add_node("end", note("end"))
        .add_edge(START, "middle")
        .add_edge("middle", "end")
    )


def test_a_question_deep_inside_is_seen_and_answered(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """``get_state(subgraphs=True)``, and the resume from outside."""
    app = nested().compile(store, executor=place)
    stopped = drive.invoke(app, {"items": []}, thread_id="1")

    (middle,) = app.get_state(thread_id="1", subgraphs=True).tasks
    (deep,) = middle.state.tasks
    done = drive.invoke(app, Command(resume="yes"), thread_id="1")

    assert "deep?" == stopped["__interrupt__"][0].value
    assert ("deep", "ask") == (*middle.state.next, *deep.state.next)
    assert ["yes", "end"] == done["items"]


def test_nested_graphs_stream_under_their_names(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """``subgraphs=True``: each item says where it happened."""
    inner = line("x", "y").compile()
    builder = StateGraph(State).add_node("inner", inner).add_edge(START, "inner")
    app = builder.compile(store, executor=place)

    found = drive.stream(
        app, {"items": []}, thread_id="1", subgraphs=True, stream_mode="updates"
    )

    places = [tuple(part.split(":")[0] for part in namespace) for namespace, _ in found]
    assert [("inner",), ("inner",), ()] == places
    assert [["x"], ["y"], ["inner"]] == [[*item] for _, item in found]


@pytest.mark.parametrize(("checkpointer", "counts"), [(None, 1), (True, 2), (False, 1)])
def test_what_a_nested_graph_remembers(
    drive: Drive, place: str, store: LMDBSaver, checkpointer: bool | None, counts: int
) -> None:
    """``checkpointer=True`` gives it one history per thread."""
    inner = StateGraph(State).add_node("count", lambda s: {"items": ["x"], "last": "x"})
    inner.add_edge(START, "count")

    class Outer(TypedDict, total=False):
        last: str

    builder = StateGraph(Outer).add_node("inner", inner.compile(checkpointer))
    app = builder.add_edge(START, "inner").compile(store, executor=place)
    for _ in range(2):
        drive.invoke(app, {"last": ""}, thread_id="1")

    found = [
        saved
        for address in store.namespaces("1")
        if address.namespace == "inner"
        for saved in store.history(address, limit=1)
    ]

    assert [["x"] * counts] * len(found) == [
        saved.checkpoint.values["items"] for saved in found
    ]
    assert (checkpointer is True) == bool(found)


def test_a_command_to_the_parent_leaves_the_nested_graph(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """``Command.PARENT``: the outer graph is updated, and goes where it says."""
    go = Command(graph=Command.PARENT, update={"items": ["from inside"]}, goto="other")
    inner = StateGraph(State).add_node("n", lambda _: go).add_edge(START, "n").compile()
    builder = (
        StateGraph(State).add_node("inner", inner).add_node("other", note("other"))
    )
    app = builder.add_edge(START, "inner").compile(store, executor=place)

    assert ["from inside", "other"] == drive.invoke(app, {"items": []}, thread_id="1")[
        "items"
    ]


def at(app: CompiledStateGraph, name: str) -> dict[str, Any]:
    """Return the config of the checkpoint before *name* runs."""
    history = app.get_state_history(thread_id="1")
    return next(item.config for item in history if item.next == (name,))


def test_a_thread_is_replayed_forked_and_edited(
    drive: Drive, place: str, store: LMDBSaver
) -> None:
    """Branches of branches, with deltas; the old branch can still be gone on from."""
    app = line("a", "b", "c").compile(store, executor=place)
    drive.invoke(app, {"items": [], "deltas": ["in"]}, thread_id="1")
    old = at(app, "c")

    replayed = drive.invoke(app, None, at(app, "b"))
    fork = app.update_state(
        at(app, "b"), {"items": ["edit"], "deltas": ["edit"]}, as_node="a"
    )
    forked = drive.invoke(app, None, fork)
    twig = app.update_state(at(app, "c"), {"deltas": ["twig"]}, as_node="b")
    on_twig = drive.invoke(app, None, twig)
    on_old = drive.invoke(app, None, old)

    assert ["in", "a", "b", "c"] == replayed["deltas"]
    assert ["in", "a", "edit", "b", "c"] == forked["deltas"]
    assert ["in", "a", "edit", "b", "twig", "c"] == on_twig["deltas"]
    assert ["in", "a", "b", "c"] == on_old["deltas"]
    app.update_state(None, None, END, thread_id="1")
    assert () == app.get_state(thread_id="1").next


def test_a_run_goes_on_where_it_failed(
    drive: Drive, place: str, store: LMDBSaver, tmp_path: Path
) -> None:
    """What its siblings had done is not done again."""
    log, fixed = tmp_path / "log", tmp_path / "fixed"

    def work(_: State) -> State:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return {"items": ["work"]}

    def broken(_: State) -> State:
        if not fixed.exists():
            raise ValueError("broken")
        return {"items": ["fixed"]}

    builder = StateGraph(State).add_node("work", work).add_node("z", broken)
    builder.add_edge(START, "work").add_edge("work", "z")
    app = builder.compile(store, executor=place)
    with pytest.raises(ValueError, match="broken"):
        drive.invoke(app, {"items": []}, thread_id="1")
    fixed.touch()

    assert ["work", "fixed"] == drive.invoke(app, None, thread_id="1")["items"]
    assert 1 == len(log.read_text().splitlines())
