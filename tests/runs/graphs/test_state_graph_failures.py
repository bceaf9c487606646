"""A node fails: it is tried again, its handler is asked, or the run ends and can go
on.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.channels import AnyValue, Topic, UntrackedValue
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import GraphDrained, NodeError, NodeTimeoutError
from flowpregel.graph import START, StateGraph
from flowpregel.runtime import RunControl, Runtime
from flowpregel.types import CachePolicy, Command, RetryPolicy, Send
from tests.runs.conftest import Drive


class Items(TypedDict, total=False):
    """A state whose list adds up."""

    items: Annotated[list[Any], operator.add]


class Flaky:
    """A node that fails a number of times.

    Args:
        times: How often it fails before it adds ``ok``.
    """

    def __init__(self, times: int) -> None:
        self.left = times
        self.calls = 0

    def __call__(self, state: Items) -> Items:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise ConnectionError(f"{self.left} to go")
        return {"items": ["ok"]}


AT_ONCE = RetryPolicy(initial_interval=0.0, jitter=False)


def one(action: Any, name: str = "n", **options: Any) -> StateGraph:
    """Return a graph of one node."""
    return StateGraph(Items).add_node(name, action, **options).add_edge(START, name)


def handle(state: Items, error: NodeError) -> Items:
    """Add what the error handler was told."""
    return {"items": [f"{error.node}: {error.error} after {state['items']}"]}


def test_a_node_is_tried_again_by_its_policy(drive: Drive, executor: str) -> None:
    """Until it works, or its attempts are spent."""
    flaky = Flaky(2)
    app = one(flaky, retry_policy=AT_ONCE).compile(executor=executor)

    assert {"items": ["ok"]} == drive.invoke(app, {"items": []})
    assert 3 == flaky.calls


def test_the_policies_of_a_graph_are_for_nodes_that_have_none(drive: Drive) -> None:
    """One of a node's own decides alone."""
    graphs = one(Flaky(2)), one(Flaky(1), retry_policy=RetryPolicy(max_attempts=1))
    retried = {"retry_policy": AT_ONCE}
    by_default, by_its_own = (
        each.compile(executor="inline").copy(retried) for each in graphs
    )

    assert {"items": ["ok"]} == drive.invoke(by_default, {"items": []})
    with pytest.raises(ConnectionError):
        drive.invoke(by_its_own, {"items": []})


def test_an_error_is_raised_as_itself_with_the_name_of_its_node(drive: Drive) -> None:
    """A note says which task it was."""
    with pytest.raises(ConnectionError, match="0 to go") as raised:
        drive.invoke(one(Flaky(1), "flaky").compile(executor="inline"), {"items": []})

    assert any("'flaky'" in note for note in raised.value.__notes__)


def test_a_failed_run_goes_on_without_doing_again_what_is_done(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """None runs the failed node again, and it alone."""
    flaky, runs = Flaky(1), []
    builder = one(flaky, "b").add_node(
        "a", lambda _: runs.append(1) or {"items": ["a"]}
    )
    app = builder.add_edge(START, "a").compile(saver, executor="inline")

    with pytest.raises(ConnectionError):
        drive.invoke(app, {"items": []}, thread_id="1")

    assert {"items": ["a", "ok"]} == drive.invoke(app, None, thread_id="1")
    assert [1] == runs


def test_an_error_handler_takes_the_place_of_a_node_that_failed(
    drive: Drive, executor: str
) -> None:
    """In the same superstep, with the same input, and told which node and what
    error.
    """
    app = one(Flaky(9), error_handler=handle).compile(executor=executor)

    assert {"items": ["in", "n: 8 to go after ['in']"]} == drive.invoke(
        app, {"items": ["in"]}
    )


def test_an_error_handler_is_asked_when_all_attempts_are_spent(drive: Drive) -> None:
    """Not before."""
    flaky = Flaky(9)
    app = one(flaky, retry_policy=AT_ONCE, error_handler=handle).compile(
        executor="inline"
    )

    assert {"items": ["n: 6 to go after []"]} == drive.invoke(app, {"items": []})
    assert 3 == flaky.calls


def test_a_handlers_writes_are_applied_where_the_failed_nodes_would_have_been(
    drive: Drive,
) -> None:
    """Between those of its siblings, by name."""
    builder = one(Flaky(9), "b", error_handler=lambda state: {"items": ["handled"]})
    for name in ("a", "c"):
        builder.add_node(name, lambda _, name=name: {"items": [name]}).add_edge(
            START, name
        )

    result = drive.invoke(builder.compile(executor="inline"), {"items": []})

    assert ["a", "handled", "c"] == result["items"]


def test_after_a_handled_failure_an_update_counts_as_the_failed_node(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """A handler has not been triggered: it is no second node that ran last."""
    app = one(Flaky(9), error_handler=handle).compile(saver, executor="inline")
    drive.invoke(app, {"items": []}, thread_id="1")

    app.update_state(None, {"items": ["edit"]}, thread_id="1")

    assert "edit" == app.get_state(thread_id="1").values["items"][-1]


def test_the_edges_of_a_node_that_failed_are_not_followed(drive: Drive) -> None:
    """Its handler says where to go on, with a command."""
    go = Command(update={"items": ["handled"]}, goto="rescue")
    builder = one(Flaky(9), error_handler=lambda state, error: go)
    builder.add_node("next", lambda _: {"items": ["next"]}).add_edge("n", "next")
    builder.add_node("rescue", lambda _: {"items": ["rescue"]})

    assert {"items": ["handled", "rescue"]} == drive.invoke(
        builder.compile(executor="inline"), {"items": []}
    )


def test_an_error_handler_that_fails_fails_the_run(drive: Drive) -> None:
    """Nobody handles handlers, not even the default handler."""

    def fail(state: Items) -> Items:
        raise KeyError("in the handler")

    builder = one(Flaky(9), error_handler=fail).set_node_defaults(error_handler=handle)

    with pytest.raises(KeyError, match="in the handler"):
        drive.invoke(builder.compile(executor="inline"), {"items": []})


def test_a_default_error_handler_serves_every_node_without_one(drive: Drive) -> None:
    """It is given what the failed node was given, a packet too."""
    builder = one(Flaky(9), "a").set_node_defaults(error_handler=handle)
    builder.add_node("b", Flaky(9))
    builder.set_conditional_entry_point(lambda _: Send("b", {"items": ["sent"]}), ["b"])

    result = drive.invoke(builder.compile(executor="inline"), {"items": []})

    assert ["a: 8 to go after []", "b: 8 to go after ['sent']"] == result["items"]


def test_node_defaults_apply_to_nodes_that_say_nothing(drive: Drive) -> None:
    """A node's own policy is stronger."""
    never = RetryPolicy(max_attempts=1)
    flaky, strict = Flaky(1), Flaky(1)
    builder = one(flaky).set_node_defaults(retry_policy=AT_ONCE)
    assert {"items": ["ok"]} == drive.invoke(
        builder.compile(executor="inline"), {"items": []}
    )

    builder = one(strict, retry_policy=never).set_node_defaults(retry_policy=AT_ONCE)
    with pytest.raises(ConnectionError):
        drive.invoke(builder.compile(executor="inline"), {"items": []})


def test_a_handled_failure_is_not_handled_again_on_a_resume(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The handler's result was kept like any other."""
    calls: list[str] = []

    def note(state: Items, error: NodeError) -> Items:
        calls.append(error.node)
        return {"items": ["handled"]}

    builder = (
        one(Flaky(9), "a", error_handler=note)
        .add_node("b", Flaky(1))
        .add_edge(START, "b")
    )
    app = builder.compile(saver, executor="inline")
    with pytest.raises(ConnectionError):
        drive.invoke(app, {"items": []}, thread_id="1")

    result = drive.invoke(app, None, thread_id="1")

    assert ["handled", "ok"] == sorted(result["items"])
    assert ["a"] == calls


async def slow(state: Items) -> Items:
    """Take far too long."""
    await asyncio.Event().wait()
    return {}


def test_an_async_node_that_takes_too_long_is_stopped() -> None:
    """The error says how long it took, and what the limit was."""
    app = one(slow, timeout=0.02).compile(executor="inline")

    with pytest.raises(
        NodeTimeoutError, match=r"'n' exceeded its run timeout of 0.020s"
    ) as caught:
        Drive(True).invoke(app, {"items": []})

    error = caught.value
    assert (0.02, 0.02, None) == (error.timeout, error.run_timeout, error.idle_timeout)


def test_a_timeout_can_be_handled() -> None:
    """It is a failure like any other."""

    def note(state: Items, error: NodeError) -> Items:
        return {"items": [type(error.error).__name__]}

    app = one(slow, timeout=0.02, error_handler=note).compile(executor="inline")

    assert {"items": ["NodeTimeoutError"]} == Drive(True).invoke(app, {"items": []})


def test_a_result_is_shared_between_runs_by_its_cache_policy(drive: Drive) -> None:
    """The same input is not computed twice."""
    from flowpregel.cache.memory import InMemoryCache

    flaky = Flaky(0)
    app = one(flaky, cache_policy=CachePolicy()).compile(
        cache=InMemoryCache(), executor="inline"
    )

    results = [drive.invoke(app, {"items": ["x"]}) for _ in range(2)]

    assert [{"items": ["x", "ok"]}] * 2 == results
    assert 1 == flaky.calls


def test_a_node_that_shares_nothing_runs_beside_one_that_does(drive: Drive) -> None:
    from flowpregel.cache.memory import InMemoryCache

    shared, own = Flaky(0), Flaky(0)
    builder = StateGraph(Items).add_node("shared", shared, cache_policy=CachePolicy())
    builder.add_node("own", own).add_edge(START, "shared").add_edge(START, "own")
    app = builder.compile(cache=InMemoryCache(), executor="inline")

    results = [drive.invoke(app, {"items": []}) for _ in range(2)]

    assert [{"items": ["ok", "ok"]}] * 2 == results
    assert (1, 2) == (shared.calls, own.calls)


def test_a_cache_that_cannot_be_read_fails_the_superstep(drive: Drive) -> None:
    """Nothing of it has run by then."""
    from flowpregel.cache.memory import InMemoryCache

    class Unreadable(InMemoryCache):
        def get(self, keys: Any) -> Any:
            raise OSError("the disk of the cache")

    flaky = Flaky(0)
    app = one(flaky, cache_policy=CachePolicy()).compile(
        cache=Unreadable(), executor="inline"
    )

    with pytest.raises(OSError, match="the disk of the cache"):
        drive.invoke(app, {"items": []})
    assert 0 == flaky.calls


def test_a_drained_run_stops_at_a_barrier_and_can_go_on(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """What was due next is done when it goes on."""
    control = RunControl()

    def drain(state: Items, runtime: Runtime[Any]) -> Items:
        control.request_drain("deploy")
        return {"items": ["drained"]}

    builder = (
        one(drain).add_node("last", lambda _: {"items": ["last"]}).add_edge("n", "last")
    )
    app = builder.compile(saver, executor="inline")

    with pytest.raises(GraphDrained, match="deploy"):
        drive.invoke(app, {"items": []}, thread_id="1", control=control)

    assert ("last",) == app.get_state(thread_id="1").next
    assert {"items": ["drained", "last"]} == drive.invoke(app, None, thread_id="1")


class Connected(TypedDict, total=False):
    """A state with a value that no checkpoint holds."""

    connection: Annotated[str, UntrackedValue]
    items: Annotated[list[Any], operator.add]


def test_a_nested_graph_that_is_tried_again_has_no_untracked_values(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """It resumes where it was, from a checkpoint, which does not hold them."""

    def prepare(state: Connected) -> Connected:
        seen.append("prepare")
        return {"items": ["prepared"]}

    def query(state: Connected) -> Connected:
        seen.append(state.get("connection"))
        if seen[-1] is not None:
            raise ConnectionError
        return {"items": ["ok"]}

    seen: list[Any] = []
    inner = StateGraph(Connected).add_sequence([prepare, query])
    inner.set_entry_point("prepare")
    builder = StateGraph(Connected)
    graph = inner.compile(executor="inline")
    builder.add_node("inner", graph, retry_policy=AT_ONCE).add_edge(START, "inner")
    app = builder.compile(saver, executor="inline")
    state = {"connection": "open", "items": ["given"]}

    items = drive.invoke(app, state, thread_id="1")["items"]

    assert ["given", "given", "prepared", "ok"] == items
    assert ["prepare", "open", None] == seen


class Fleeting(TypedDict, total=False):
    """A state whose values last for one superstep."""

    topic: Annotated[list[str], Topic(str)]
    latest: Annotated[str, AnyValue]


def test_a_state_shows_what_finished_before_a_failure(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """Also what lasts for one superstep: it is what the failed node's writes join."""

    def write(state: Fleeting) -> Fleeting:
        return {"topic": "written", "latest": "written"}  # type: ignore[typeddict-item]

    def fail(state: Fleeting) -> Fleeting:
        raise ConnectionError

    # Inline, the nodes of a superstep run in the order of their names.
    builder = StateGraph(Fleeting).add_node("a", write).add_node("b", fail)
    builder.add_edge(START, "a").add_edge(START, "b")
    app = builder.compile(saver, executor="inline")

    with pytest.raises(ConnectionError):
        drive.invoke(app, {}, thread_id="1")

    state = app.get_state(thread_id="1")
    assert ("b",) == state.next
    assert {"topic": ["written"], "latest": "written"} == state.values
