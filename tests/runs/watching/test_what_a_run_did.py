"""`get_run`: which tasks ran in which superstep, how long, where, and what failed."""

from __future__ import annotations

import operator
import os
import threading
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from flowpregel._core.records import Address
from flowpregel._inspection.run_table import TaskRecord
from flowpregel.cache.memory import InMemoryCache
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.graph import START, CompiledStateGraph, StateGraph
from flowpregel.plugins.langgraph import SaverAdapter
from flowpregel.runtime import Runtime
from flowpregel.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from tests.runs.conftest import Drive


class State(TypedDict, total=False):
    """What was done."""

    done: Annotated[list[str], operator.add]


def node(name: str) -> Any:
    """Return a node that notes its name."""
    return lambda _: {"done": [name]}


def fail(_: Any) -> None:
    """Fail."""
    raise ValueError("no such file\nwith more below")


def ask(_: Any) -> State:
    """Ask."""
    return {"done": [interrupt("go on?")]}


def line(**nodes: Any) -> StateGraph:
    """Return nodes that run one after the other."""
    builder = StateGraph(State).add_sequence([*nodes.items()])
    return builder.add_edge(START, next(iter(nodes)))


def told(tasks: tuple[TaskRecord, ...]) -> list[tuple[int, str, str]]:
    """Return superstep, name and status of *tasks*."""
    return [(each.step, each.name, each.status) for each in tasks]


def test_a_finished_run_tells_of_every_task(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """When, how long, how often, and where: of each."""
    app = line(a=node("a"), b=node("b")).compile(saver, executor="inline")
    before = time.time_ns()

    drive.invoke(app, {}, thread_id="1")

    found = app.get_run(thread_id="1")
    assert [(1, "a", "done"), (2, "b", "done")] == told(found.tasks)
    for each in found.tasks:
        assert each.began is not None
        assert before <= each.began <= time.time_ns()
        assert each.seconds is not None
        assert 0 <= each.seconds < 10
        assert (1, "inline", os.getpid()) == (each.attempt, each.executor, each.pid)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_it_says_where_each_task_ran_and_outlives_the_program(
    tmp_path: Path, executor: str
) -> None:
    """The record is in the store: another program reads it."""
    with LMDBSaver(tmp_path / "store") as saver:
        line(a=node("a")).compile(saver, executor=executor).invoke({}, thread_id="1")

    with LMDBSaver(tmp_path / "store", readonly=True) as saver:
        (a,) = line(a=node("a")).compile(saver).get_run(thread_id="1").tasks
    assert executor == a.executor
    assert (a.pid != os.getpid()) == (executor == "processes")


def test_coroutines_say_so_too(tmp_path: Path) -> None:
    """An async node runs on the event loop."""

    async def think(_: Any) -> State:
        return {"done": ["thought"]}

    app = line(a=think).compile(InMemorySaver())

    Drive(is_async=True).invoke(app, {}, thread_id="1")

    assert "coroutines" == app.get_run(thread_id="1").tasks[0].executor


def test_attempts_are_counted(drive: Drive, saver: BaseCheckpointSaver) -> None:
    """The task that was tried three times says so, and none of its errors is left."""
    tries: list[int] = []

    def flaky(_: Any) -> State:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return {"done": ["at last"]}

    builder = StateGraph(State)
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0.001))
    app = builder.add_edge(START, "flaky").compile(saver, executor="inline")

    drive.invoke(app, {}, thread_id="1")

    (found,) = app.get_run(thread_id="1").tasks
    assert (3, "done", "") == (found.attempt, found.status, found.detail)
    assert "attempt 3" in str(app.get_run(thread_id="1"))


def test_a_failed_run_says_what_failed_and_what_did_not_end(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """The error's first line; the nodes after it did not run."""
    app = line(a=node("a"), b=fail, c=node("c")).compile(saver, executor="inline")

    with pytest.raises(ValueError, match="no such file"):
        drive.invoke(app, {}, thread_id="1")

    found = app.get_run(thread_id="1")
    assert [(1, "a", "done"), (2, "b", "failed")] == told(found.tasks)
    assert "ValueError: no such file" == found.tasks[1].detail
    assert found.tasks[1].seconds is not None
    assert "not run: c" in found.draw_ascii()


def test_a_run_that_failed_and_was_resumed_tells_the_last_try(
    saver: BaseCheckpointSaver,
) -> None:
    """What a task did at last takes the place of what it did first."""
    broken = [True]

    def work(_: Any) -> State:
        if broken:
            raise ValueError("broken")
        return {"done": ["work"]}

    app = line(work=work).compile(saver, executor="inline")
    with pytest.raises(ValueError, match="broken"):
        app.invoke({}, thread_id="1")
    (failed,) = app.get_run(thread_id="1").tasks
    broken.clear()

    app.invoke(None, thread_id="1")

    (done,) = app.get_run(thread_id="1").tasks
    assert ("failed", "done", "") == (failed.status, done.status, done.detail)
    assert failed.id == done.id
    assert failed.began is not None
    assert done.began is not None
    assert failed.began < done.began


def test_a_run_that_waits_says_what_it_asks(
    drive: Drive, saver: BaseCheckpointSaver
) -> None:
    """And when it was answered, nothing of that is left."""
    app = line(a=ask, b=node("b")).compile(saver, executor="inline")
    drive.invoke(app, {}, thread_id="1")

    (asking,) = app.get_run(thread_id="1").tasks
    drive.invoke(app, Command(resume="yes"), thread_id="1")

    assert ("waiting", "'go on?'") == (asking.status, asking.detail)
    assert [(1, "a", "done"), (2, "b", "done")] == told(
        app.get_run(thread_id="1").tasks
    )


def test_a_task_that_runs_is_open(saver: BaseCheckpointSaver) -> None:
    """A run may be looked at while it goes on."""
    begun, looked = threading.Event(), threading.Event()

    def wait(_: Any) -> State:
        begun.set()
        looked.wait(20)
        return {"done": ["waited"]}

    app = line(a=node("a"), b=wait).compile(saver, executor="threads")
    runner = threading.Thread(
        target=lambda: app.invoke({}, thread_id="1", durability="sync")
    )
    runner.start()
    begun.wait(20)

    found = app.get_run(thread_id="1")
    looked.set()
    runner.join(20)

    assert [(1, "a", "done"), (2, "b", "open")] == told(found.tasks)
    assert found.tasks[1].seconds is None


def test_sends_are_told_by_the_name_of_their_node(saver: BaseCheckpointSaver) -> None:
    """A table puts those in one row of which there is nothing more to tell."""
    builder = StateGraph(State).add_node("each", node("each"))
    builder.add_conditional_edges(
        START, lambda _: [Send("each", {}) for _ in range(3)], ["each"]
    )
    app = builder.compile(saver, executor="inline")
    app.invoke({}, thread_id="1")

    found = app.get_run(thread_id="1")

    assert [(1, "each", "done")] * 3 == told(found.tasks)
    assert "each x3" in found.draw_ascii()


def test_an_error_handler_is_told_beside_what_failed(
    saver: BaseCheckpointSaver,
) -> None:
    """Both ran in the same superstep."""
    builder = StateGraph(State).add_node("a", fail, error_handler=node("saved"))
    app = builder.add_edge(START, "a").compile(saver, executor="inline")
    app.invoke({}, thread_id="1")

    failed, handler = app.get_run(thread_id="1").tasks

    assert (1, "a", "failed") == told((failed,))[0]
    assert (1, "done") == (handler.step, handler.status)


def test_a_shared_result_was_never_tried(saver: BaseCheckpointSaver) -> None:
    """It took no time, and says whose it is."""
    builder = StateGraph(State).add_node("a", node("a"), cache_policy=CachePolicy())
    app = builder.add_edge(START, "a").compile(
        saver, cache=InMemoryCache(), executor="inline"
    )
    app.invoke({}, thread_id="1")
    app.invoke({}, thread_id="2")

    (found,) = app.get_run(thread_id="2").tasks

    assert (0, "cache", 0.0) == (found.attempt, found.executor, found.seconds)
    assert "shared by another run" in app.get_run(thread_id="2").draw_ascii()


def test_it_is_the_threads_last_run_unless_a_checkpoint_is_named(
    saver: BaseCheckpointSaver,
) -> None:
    """From there it goes back to that run's input."""
    app = line(a=node("a"), b=node("b")).compile(saver, executor="inline")
    app.invoke({}, thread_id="1")
    first = app.get_state(thread_id="1").config["configurable"]["checkpoint_id"]
    before = app.get_run(thread_id="1").tasks
    app.invoke({}, thread_id="1")

    assert before == app.get_run(thread_id="1", checkpoint_id=first).tasks
    assert before != app.get_run(thread_id="1").tasks
    assert 2 == len(app.get_run(thread_id="1").tasks)
    assert ["b"] == [each.name for each in app.get_run(thread_id="1", limit=2).tasks]


def test_of_a_run_that_kept_its_end_alone_the_names_are_told(
    saver: BaseCheckpointSaver,
) -> None:
    """With ``durability="exit"`` there is one checkpoint: what led to it is not
    known.
    """
    app = line(a=node("a"), b=fail).compile(saver, executor="inline")
    with pytest.raises(ValueError, match="no such file"):
        app.invoke({}, thread_id="1", durability="exit")

    assert [(2, "b", "failed")] == told(app.get_run(thread_id="1").tasks)


def test_pending_writes_and_tasks_look_as_they_did(saver: BaseCheckpointSaver) -> None:
    """Nobody who reads them is told of a channel of ours."""
    app = line(a=node("a"), b=ask).compile(saver, executor="inline")
    app.invoke({}, thread_id="1")
    config = {"configurable": {"thread_id": "1"}}

    found = SaverAdapter(saver).get_tuple(config)

    assert found is not None
    assert ["__interrupt__"] == [
        channel for _, channel, _ in found.pending_writes or ()
    ]
    (waiting,) = app.get_state(config).tasks
    assert waiting.error is None
    for item in SaverAdapter(saver).list(config):
        assert "__ran__" not in {channel for _, channel, _ in item.pending_writes or ()}


def test_the_time_of_the_first_attempt_is_told_inside_a_task() -> None:
    """`Runtime.execution_info` has it, as LangGraph's does."""
    seen: list[float | None] = []

    def look(_: State, runtime: Runtime[None]) -> State:
        assert runtime.execution_info is not None
        seen.append(runtime.execution_info.node_first_attempt_time)
        return {}

    before = time.time()
    line(a=look).compile(executor="inline").invoke({})

    assert seen[0] is not None
    assert before - 1 <= seen[0] <= time.time() + 1


def test_a_graph_that_keeps_nothing_says_so(tmp_path: Path) -> None:
    """There is no run to look at."""
    app: CompiledStateGraph = line(a=node("a")).compile()

    with pytest.raises(ConfigurationError, match="No checkpointer set"):
        app.get_run(thread_id="1")


def test_a_thread_on_which_nothing_happened_has_no_tasks(
    saver: BaseCheckpointSaver,
) -> None:
    """It is no error to ask."""
    app = line(a=node("a")).compile(saver)

    assert "(no tasks)" == str(app.get_run(thread_id="nobody"))


def test_it_can_be_awaited(saver: BaseCheckpointSaver) -> None:
    """As all that reads a thread can."""
    drive = Drive(is_async=True)
    app = line(a=node("a")).compile(saver, executor="inline")
    drive.invoke(app, {}, thread_id="1")

    assert [(1, "a", "done")] == told(
        drive.wait_for(lambda: app.aget_run(thread_id="1")).tasks
    )


def test_a_saver_tells_of_tasks_without_reading_the_state(saver: InMemorySaver) -> None:
    """So a long run with a large state is looked at in no time."""
    app = line(a=node("a"), b=ask).compile(saver, executor="inline")
    app.invoke({}, thread_id="1")
    address = Address("1")

    whole, bare = [*saver.history(address)], [*saver.outline(address)]

    assert [(each.checkpoint.id, each.writes, each.ran) for each in whole] == [
        (each.checkpoint.id, each.writes, each.ran) for each in bare
    ]
    assert any(each.checkpoint.values for each in whole)
    assert not any(each.checkpoint.values or each.deltas for each in bare)
