"""Generated graphs do on flowpregel what they do on LangGraph.

What differs on purpose is listed in ``docs/how-to/move-from-langgraph.md``; where
a story comes to such a place, it says so (`tests.parity`).
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

from tests.parity import sides
from tests.parity.plans import Plan, plans
from tests.parity.stories import Read, read_async_stream, read_stream, told
from tests.strategies import example_count

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
TRIES = 20


def check(plan: Plan, got: list[Any], durability: str = "sync") -> None:
    """Compare what was *got* with LangGraph.

    LangGraph is asked again if it differs: which tasks of a superstep it keeps
    that stops to ask depends on which of its OS threads is faster.
    """
    expected: list[Any] = []
    for _ in range(TRIES):
        expected = told(sides.langgraph(), plan, durability=durability)
        if expected == got:
            return
    assert expected == got


@settings(suppress_health_check=SLOW)
@given(plan=plans())
def test_a_thread_looks_the_same_as_on_langgraph(plan: Plan) -> None:
    """Outputs, streams, what is next, questions, states and history are equal after
    each step.
    """
    check(plan, told(sides.flowpregel(), plan))


@settings(suppress_health_check=SLOW)
@given(
    plan=plans(),
    executor=st.sampled_from(["inline", "threads"]),
    read=st.sampled_from([read_stream, read_async_stream]),
)
def test_it_does_so_on_threads_and_on_an_event_loop(
    plan: Plan, executor: str, read: Read
) -> None:
    """Where its nodes run, and how it is driven, makes no difference."""
    check(plan, told(sides.flowpregel(executor), plan, read))


@settings(suppress_health_check=SLOW)
@given(plan=plans())
def test_it_does_so_when_it_keeps_its_state_at_the_end_alone(plan: Plan) -> None:
    """What can be seen of a thread between its runs, with ``durability="exit"``."""
    check(plan, told(sides.flowpregel(), plan, durability="exit"), "exit")


@settings(suppress_health_check=SLOW, max_examples=example_count(10))
@given(plan=plans())
def test_it_does_so_with_its_state_on_disk(plan: Plan) -> None:
    """LangGraph keeps its own in memory, and the two are still the same."""
    from flowpregel.checkpoint.lmdb import LMDBSaver

    with (
        tempfile.TemporaryDirectory() as folder,
        closing(LMDBSaver(f"{folder}/store")) as saver,
    ):
        check(plan, told(replace(sides.flowpregel(), saver=lambda: saver), plan))


@settings(suppress_health_check=SLOW, max_examples=example_count(10))
@given(plan=plans())
def test_it_does_so_with_a_saver_of_langgraph(plan: Plan) -> None:
    """Its checkpoints are LangGraph's own."""
    check(plan, told(replace(sides.flowpregel(), saver=InMemorySaver), plan))


@settings(suppress_health_check=SLOW, max_examples=example_count(10))
@given(plan=plans())
# The nodes refer to the saver, whose connection no digest can look into.
@pytest.mark.filterwarnings("ignore:the code of .* refers to")
def test_it_does_so_with_an_async_saver_of_langgraph(plan: Plan) -> None:
    """One that waits for the event loop on which the graph runs."""
    pytest.importorskip("langgraph.checkpoint.sqlite.aio")
    from tests.parity.on_loop import event_loop

    with event_loop() as loop:
        side = replace(sides.flowpregel("threads"), saver=loop.saver)
        check(plan, told(side, plan, loop.read))


@settings(suppress_health_check=SLOW, max_examples=example_count(25, 5))
@given(plan=plans(), read=st.sampled_from([read_stream, read_async_stream]))
def test_it_does_so_in_worker_processes_with_its_state_on_disk(
    plan: Plan, read: Read
) -> None:
    """What crosses a border or is read back from a file is what it was."""
    from flowpregel.checkpoint.lmdb import LMDBSaver

    with (
        tempfile.TemporaryDirectory() as folder,
        closing(LMDBSaver(f"{folder}/store")) as saver,
    ):
        side = replace(sides.flowpregel("processes"), saver=lambda: saver)
        check(plan, told(side, plan, read))
