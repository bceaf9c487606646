"""Threads with a `DeltaChannel` that LangGraph began and flowpregel continues, and the
other way round.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver as TheirInMemorySaver

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.plugins.langgraph import LMDBSaver, SaverAdapter
from tests.parity import sides
from tests.parity.sides import Side, extend

CONFIG = {"configurable": {"thread_id": "1"}}
THEIRS, OURS = sides.langgraph(), sides.flowpregel()


@pytest.fixture(params=["theirs", "sqlite", "postgres", "ours", "lmdb"])
def savers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Yield a saver for LangGraph, and one for flowpregel with the same content."""
    if request.param == "theirs":
        saver = TheirInMemorySaver()
        yield saver, saver
    elif request.param == "ours":
        own = InMemorySaver()
        yield SaverAdapter(own), own
    elif request.param == "lmdb":
        with LMDBSaver(tmp_path / "runs.lmdb") as adapter:
            yield adapter, adapter.saver
    elif request.param == "postgres":
        saver = request.getfixturevalue("langgraph_postgres")
        yield saver, saver
    else:
        sqlite = pytest.importorskip("langgraph.checkpoint.sqlite")
        database = sqlite3.connect(":memory:", check_same_thread=False)
        with closing(database):
            saver = sqlite.SqliteSaver(database)
            yield saver, saver


def logging(side: Side, saver: Any, frequency: int = 100) -> Any:
    """Return a graph whose nodes add to a log, and whose third node does not."""
    delta = side.delta(extend, snapshot_frequency=frequency)
    fields = {"number": int, "log": Annotated[list[str], delta]}
    log = TypedDict("Log", fields, total=False)  # type: ignore[operator]
    builder = side.graph.StateGraph(log)
    builder.add_node("first", lambda state: {"log": [f"first {state['number']}"]})
    builder.add_node("second", lambda _: {"log": ["second"]})
    builder.add_node("third", lambda state: {"number": state["number"] + 1})
    builder.add_edge("__start__", "first").add_edge("first", "second")
    builder.add_edge("second", "third")
    return builder.compile(saver, **side.options)


def log_of(app: Any, config: Any = CONFIG) -> Any:
    """Return the present log of the thread."""
    return app.get_state(config).values["log"]


def logs(app: Any) -> list[Any]:
    """Return the log at each checkpoint, oldest first."""
    return [state.values["log"] for state in app.get_state_history(CONFIG)][::-1]


@pytest.mark.parametrize("frequency", [1, 2, 100])
def test_a_thread_of_langgraph_keeps_its_log(savers: Any, frequency: int) -> None:
    """At each checkpoint, and in runs and edits that continue it."""
    theirs = logging(THEIRS, savers[0], frequency)
    theirs.invoke({"number": 1, "log": ["in"]}, CONFIG)
    ours = logging(OURS, savers[1], frequency)

    assert logs(theirs) == logs(ours)
    assert ["in", "first 1", "second"] == log_of(ours)

    ours.update_state(CONFIG, {"number": 5}, as_node="third")
    assert ["in", "first 1", "second"] == log_of(ours)

    ours.invoke({"number": 2, "log": ["again"]}, CONFIG)
    expected = ["in", "first 1", "second", "again", "first 2", "second"]
    assert expected == log_of(ours)
    assert expected == logs(ours)[-1]


def test_a_run_that_does_not_write_to_the_log_keeps_it(savers: Any) -> None:
    """The log is the same after several checkpoints."""
    logging(THEIRS, savers[0]).invoke({"number": 1}, CONFIG)
    ours = logging(OURS, savers[1])

    for number in (5, 6, 7):
        ours.update_state(CONFIG, {"number": number}, as_node="third")

    assert [["first 1", "second"]] * 3 == logs(ours)[-3:]


def test_a_fork_off_a_checkpoint_of_langgraph_has_only_its_own_log(
    savers: Any,
) -> None:
    """Before the first write it is empty, whatever the thread did later."""
    theirs = logging(THEIRS, savers[0])
    theirs.invoke({"number": 1}, CONFIG)
    ours = logging(OURS, savers[1])
    before = next(
        state for state in ours.get_state_history(CONFIG) if state.next == ("first",)
    )

    edited = ours.update_state(before.config, {"number": 9}, as_node="__start__")

    assert [] == log_of(ours, edited)
    assert ["first 9", "second"] == ours.invoke(None, edited)["log"]
    assert ["first 9", "second"] == log_of(ours)
    assert [] == log_of(ours, before.config)


def go_back(app: Any) -> None:
    """Run a thread, and run it again from the checkpoint before the first write."""
    app.invoke({"number": 1}, CONFIG)
    before = next(
        state for state in app.get_state_history(CONFIG) if state.next == ("first",)
    )
    app.update_state(before.config, {"number": 9}, as_node="__start__")


def add_twice(app: Any) -> None:
    """Run a thread twice."""
    app.invoke({"number": 1, "log": ["in"]}, CONFIG)
    app.invoke({"number": 2}, CONFIG)


@pytest.mark.parametrize("begin", [go_back, add_twice])
def test_a_thread_of_flowpregel_keeps_its_log(
    savers: Any, begin: Callable[[Any], None]
) -> None:
    """LangGraph sees the log of each checkpoint, not the writes of other branches."""
    ours = logging(OURS, savers[1])
    begin(ours)
    theirs = logging(THEIRS, savers[0])

    assert logs(ours) == logs(theirs)

    expected = [*log_of(ours), "last", "first 4", "second"]
    assert expected == theirs.invoke({"number": 4, "log": ["last"]}, CONFIG)["log"]
    assert expected == log_of(ours)
