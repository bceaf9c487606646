"""A node reads and writes channels while it runs, wherever that is."""

from __future__ import annotations

import operator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import copy_context
from multiprocessing import get_context
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel.errors import (
    ConfigurationError,
    ExecutorUnavailableError,
    RunNotice,
)
from flowpregel.executors import FuturesExecutor
from flowpregel.func import task
from flowpregel.graph import START, StateGraph
from flowpregel.managed import RemainingSteps
from flowpregel.pregel import Pregel
from flowpregel.runtime import read_channels, write_channels
from flowpregel.types import RetryPolicy

pytestmark = pytest.mark.slow

EXECUTORS = ["inline", "threads", "processes"]


class Shown(TypedDict):
    """The part of the state that a node gets."""

    name: str


class State(Shown):
    """A state with a list."""

    log: Annotated[list[Any], operator.add]
    rest: RemainingSteps


def graph_of(node: Any, executor: Any, **options: Any) -> Pregel:
    """Return a graph of one node, which gets only a part of the state."""
    builder = StateGraph(State).add_node("node", node, input_schema=Shown, **options)
    return builder.add_edge(START, "node").compile(executor=executor)


def read_and_write(state: Shown) -> dict[str, Any]:
    """Read the log before and after a write."""
    before = read_channels("log")
    write_channels([("log", ["sent"])])
    after = [read_channels("log"), read_channels("log", with_own_writes=True)]
    values = read_channels(["log", "name"], with_own_writes=True)
    return {"log": [before, after, values]}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_node_reads_channels_and_its_own_writes(executor: str) -> None:
    """The node's output follows what it has written before."""
    app = graph_of(read_and_write, executor)

    log = app.invoke({"name": "Ada", "log": ["given"]})["log"]

    sent = ["given", "sent"]
    seen = [["given"], [["given"], sent], {"log": sent, "name": "Ada"}]
    assert [*sent, *seen] == log


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_stream_of_updates_has_what_a_node_has_sent(executor: str) -> None:
    """As an update of its own, because the channel has two writes."""

    def send(_: Shown) -> dict[str, Any]:
        write_channels([("log", [1])])
        return {"log": [2]}

    app = graph_of(send, executor)

    updates = [*app.stream({"name": "Ada"}, stream_mode="updates")]

    assert [{"node": [{"log": [1]}, {"log": [2]}]}] == updates


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_managed_value_and_an_empty_channel_are_read(executor: str) -> None:
    """An empty channel has no value."""

    def read(_: Shown) -> dict[str, Any]:
        values = read_channels(["name", "rest"])
        return {"log": [read_channels("name"), values, read_channels("rest")]}

    log = graph_of(read, executor).invoke({"log": []}, {"recursion_limit": 7})["log"]

    assert [None, {"rest": 6}, 6] == log


@pytest.mark.parametrize("executor", EXECUTORS)
def test_several_threads_of_a_node_read_and_write(executor: str) -> None:
    """In copies of its context; no write is lost."""

    def gather(_: Shown) -> None:
        def act(number: int) -> Any:
            name = ("log", "name")[number % 2]
            write_channels([("log", [number])])
            return read_channels(name)

        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(copy_context().run, act, n) for n in range(40)]
        assert {"Ada", "[]"} == {str(future.result()) for future in futures}

    log = graph_of(gather, executor).invoke({"name": "Ada", "log": []})["log"]

    assert [*range(40)] == sorted(log)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_failed_attempt_writes_nothing(executor: str) -> None:
    """Only the attempt that succeeds does."""

    def fail_once(_: Shown, runtime: Any) -> None:
        attempt = runtime.execution_info.node_attempt
        write_channels([("log", [attempt])])
        if attempt == 1:
            raise ConnectionError

    fail_once.__annotations__.clear()
    policy = RetryPolicy(max_attempts=2, initial_interval=0)
    app = graph_of(fail_once, executor, retry_policy=policy)

    assert [2] == app.invoke({"name": "Ada", "log": []})["log"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_write_to_an_unknown_channel_is_ignored_with_a_notice(executor: str) -> None:
    """As LangGraph ignores it with a warning."""
    app = graph_of(lambda _: write_channels([("other", 1)]), executor)

    with pytest.warns(RunNotice, match="'other', which does not exist"):
        state = app.invoke({"name": "Ada"})

    assert "other" not in state


@pytest.mark.parametrize("executor", EXECUTORS)
def test_reading_an_unknown_channel_fails(executor: str) -> None:
    """With its name."""
    app = graph_of(lambda _: read_channels(["other", "name"]), executor)

    with pytest.raises(KeyError, match=r"'node' reads .* do not exist: other"):
        app.invoke({"name": "Ada"})


@task(executor="inline")
def send_in_task() -> None:
    """Write to a channel in the name of a task."""
    write_channels([("log", [1])])


def test_a_task_has_no_channels_to_write_to() -> None:
    """Its caller has."""
    app = graph_of(lambda _: send_in_task().result(), "inline")

    with pytest.raises(ConfigurationError, match="task 'send_in_task' writes to 'log'"):
        app.invoke({"name": "Ada"})


def test_an_executor_without_a_connection_cannot_read_more_channels() -> None:
    """It says what to use."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        app = graph_of(read_and_write, FuturesExecutor(pool))

        with pytest.raises(ExecutorUnavailableError, match="did not declare"):
            app.invoke({"name": "Ada"})


@pytest.mark.parametrize("function", [read_channels, write_channels])
def test_outside_of_a_run_there_are_no_channels(function: Any) -> None:
    """Neither to read nor to write."""
    with pytest.raises(RuntimeError, match=rf"{function.__name__}\(\) was called"):
        function([])
