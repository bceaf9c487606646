"""OpenTelemetry's spans and metrics of runs, by its own SDK."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip(
    "opentelemetry.sdk", reason="the OpenTelemetry SDK is not installed"
)

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.config import get_trace_context
from flowpregel.func import entrypoint, task
from flowpregel.graph import START, StateGraph
from flowpregel.plugins.opentelemetry import instrument, uninstrument
from flowpregel.policies import RetryPolicy
from flowpregel.types import interrupt


class Seen:
    """What was made: spans, by name, and metrics."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def names(self) -> list[str]:
        """Return the names of the spans, in the order of their ends."""
        return [span.name for span in self.exporter.get_finished_spans()]

    def span(self, name: str) -> Any:
        """Return the only span of this name."""
        (found,) = [
            each for each in self.exporter.get_finished_spans() if each.name == name
        ]
        return found

    def parent_of(self, name: str) -> str:
        """Return the name of the span around the only one of this name."""
        inner = self.span(name).parent
        spans = {
            each.context.span_id: each.name
            for each in self.exporter.get_finished_spans()
        }
        return spans[inner.span_id] if inner is not None else ""

    def outcome(self, name: str) -> str:
        """Return how what a span is of has ended."""
        return str(self.span(name).attributes["flowpregel.outcome"])

    def points(self, name: str) -> list[Any]:
        """Return the points of a metric."""
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        return [
            point
            for each in metrics
            if each.name == name
            for point in each.data.data_points
        ]


@pytest.fixture
def seen() -> Iterator[Seen]:
    """Instrument the runs of a test."""
    seen = Seen()
    instrument(seen.tracers, seen.meters)
    yield seen
    uninstrument()
    seen.meters.shutdown()


@task
def double(n: int) -> int:
    """Return the double."""
    return 2 * n


@task
def headers(_: int) -> str:
    """Return the trace that the task's own code is in."""
    return get_trace_context()["traceparent"]


@task
def fail(_: int) -> None:
    """Raise."""
    raise OSError("no")


@task
def ask(_: int) -> Any:
    """Ask."""
    return interrupt("really?")


def flow_of(called: Any, executor: str = "inline", **options: Any) -> Any:
    """Return a workflow that makes one call."""

    @entrypoint(executor=executor, checkpointer=InMemorySaver(), **options)
    def flow(n: int) -> Any:
        return called(n).result()

    return flow


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_a_superstep_its_calls_and_commits_are_spans(
    seen: Seen, is_async: bool
) -> None:
    """Each inside the one it belongs to, and the run inside the user's own."""
    flow = flow_of(double)
    with seen.tracers.get_tracer("mine").start_as_current_span("mine"):
        result = asyncio.run(flow.arun(1, id="x")) if is_async else flow.run(1, id="x")

    assert 2 == result
    assert "mine" == seen.parent_of("run flow")
    assert "run flow" == seen.parent_of("superstep 0")
    assert "superstep 0" == seen.parent_of("call flow")
    assert "call flow" == seen.parent_of("call double")
    assert "commit" in seen.names()
    assert "x" == seen.span("run flow").attributes["flowpregel.thread_id"]
    assert "inline" == seen.span("call double").attributes["flowpregel.executor"]
    assert {"done"} == {
        seen.outcome(name) for name in ("run flow", "superstep 0", "call double")
    }


@pytest.mark.parametrize(
    "executor", ["inline", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_what_a_task_traces_is_inside_the_span_of_its_call(
    seen: Seen, executor: str
) -> None:
    """In a worker too."""
    found = flow_of(headers, executor).run(0)

    assert (
        trace.format_span_id(seen.span("call headers").context.span_id)
        == found.split("-")[2]
    )


def test_failures_and_questions_are_told_apart(seen: Seen) -> None:
    """A call that fails has the error, and so has its run."""
    with pytest.raises(OSError, match="no"):
        flow_of(fail).run(0)
    flow_of(ask).invoke(0, thread_id="x")

    assert "failed" == seen.outcome("call fail")
    assert "exception" == seen.span("call fail").events[0].name
    assert "waiting" == seen.outcome("call ask")
    outcomes = {
        point.attributes["flowpregel.outcome"]
        for point in seen.points("flowpregel.runs")
    }
    assert {"failed", "waiting"} == outcomes


def test_each_attempt_is_a_span(seen: Seen) -> None:
    """Which one, is an attribute."""
    policy = RetryPolicy(
        max_attempts=2, initial_interval=0, jitter=False, retry_on=OSError
    )
    with pytest.raises(OSError, match="no"):
        flow_of(fail.with_options(retry_policy=policy)).run(0)

    spans = [
        each for each in seen.exporter.get_finished_spans() if each.name == "call fail"
    ]
    assert [1, 2] == [each.attributes["flowpregel.attempt"] for each in spans]


def test_a_graph_inside_a_graph_is_a_run_inside_its_call(seen: Seen) -> None:
    """Its supersteps are inside that."""
    leaf = StateGraph(dict).add_node("leaf", lambda _: {"n": 1}).add_edge(START, "leaf")
    outer = (
        StateGraph(dict)
        .add_node("inner", leaf.compile(name="nested"))
        .add_edge(START, "inner")
    )
    outer.compile(name="outer", executor="inline").invoke({"n": 0})

    spans = {each.context.span_id: each for each in seen.exporter.get_finished_spans()}
    inside, above = [], seen.span("call leaf")
    while above.parent is not None:
        above = spans[above.parent.span_id]
        inside.append(above.name.split()[0])
    assert "call inner" == seen.parent_of("run nested")
    assert ["superstep", "run", "call", "superstep", "run"] == inside


def test_counts_and_durations_are_metrics(seen: Seen) -> None:
    """By name and outcome."""
    for n in range(3):
        flow_of(double).run(n)

    (calls,) = [
        point
        for point in seen.points("flowpregel.call.duration")
        if point.attributes["flowpregel.name"] == "double"
    ]
    assert (3, "done") == (calls.count, calls.attributes["flowpregel.outcome"])
    assert 3 == sum(point.value for point in seen.points("flowpregel.runs"))
    assert 3 <= sum(point.value for point in seen.points("flowpregel.commits"))


def test_a_run_that_is_not_instrumented_makes_none() -> None:
    """After `uninstrument`."""
    seen = Seen()
    instrument(seen.tracers, seen.meters)
    uninstrument()

    flow_of(double).run(1)

    assert [] == seen.names()


@pytest.mark.slow
def test_nothing_of_it_is_imported_by_a_program_that_does_not_use_it() -> None:
    """A run included."""
    words = (
        "import sys; from flowpregel.func import entrypoint; "
        "entrypoint(executor='inline')(lambda n: n).run(1); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert 0 == subprocess.run([sys.executable, "-c", words], check=False).returncode


class StoppedSaver(InMemorySaver):
    """Stops the program at each commit but the first."""

    commits = 0

    def commit(self, *args: Any, **rest: Any) -> Any:
        self.commits += 1
        if self.commits > 1:
            raise KeyboardInterrupt
        return super().commit(*args, **rest)


def test_a_commit_that_is_broken_off_is_a_span_too(seen: Seen) -> None:
    """Else its superstep would have a gap."""

    @task(executor="inline")
    def same(value: int) -> int:
        return value

    @entrypoint(checkpointer=StoppedSaver())
    def flow(value: int) -> int:
        return same(value).result()

    with pytest.raises(KeyboardInterrupt):
        flow.invoke(1, {"configurable": {"thread_id": "1"}}, durability="sync")
    gc.collect()  # the run, which could not even be stopped

    assert ["done", "cancelled"] == [
        span.attributes["flowpregel.outcome"]
        for span in seen.exporter.get_finished_spans()
        if span.name == "commit" and span.attributes
    ]
