"""The timeline and the graph of a run, summed up from its calls."""

from __future__ import annotations

import random
from typing import Any

from flowpregel._inspection.call_graph import CallGraph, call_graph
from flowpregel._inspection.call_index import CallIndex
from flowpregel._inspection.call_timeline import CallTimeline, TimelinePicture
from tests.unit.test_call_index import call, index_of, running

BEGIN = 1_000_000_000_000
SECOND = 1_000_000_000
DONE, FAILED = 4, 0
PREVIEW = '{"a":{"rows":["<list of 3>"]},"f":{"rows":["load"]}}'


def ran(number: int, at: float, seconds: float, **fields: Any) -> Any:
    """Return a call that began at a second and took some seconds."""
    began = BEGIN + int(at * SECOND)
    return call(number, began=began, seconds=seconds, **fields)


def picture(*rows: Any, width: int = 100, **part: int) -> TimelinePicture:
    """Return a picture of calls."""
    return CallTimeline(index_of(*rows), 0).picture(width, **part)


def test_a_long_call_is_a_bar_with_a_name() -> None:
    told = picture(ran(1, 0, 5), ran(2, 5, 5, state="failed"))

    assert (2, BEGIN, BEGIN + 10 * SECOND) == (told.total, told.first, told.last)
    [(pid, bars)] = told.lanes
    assert (7, [(0, 50, DONE, 0), (50, 100, FAILED, 1)]) == (pid, bars)
    assert {0: (f"{1:032x}", "train(1)"), 1: (f"{2:032x}", "train(2)")} == told.labels


def test_thin_calls_are_one_bar_of_their_number() -> None:
    """The failed one among them is drawn over them."""
    calls = [ran(number, number / 100, 0.009) for number in range(1_000)]
    calls[500] = ran(500, 5, 0.009, state="failed")

    [(_, bars)] = picture(*calls).lanes

    assert [(0, 100, DONE, -999), (50, 51, FAILED, 500)] == bars
    part = {"begin": 5 * SECOND, "end": 5 * SECOND + SECOND // 10}
    [(_, bars)] = picture(*calls, **part).lanes
    assert 12 >= len(bars) >= 10
    assert FAILED == bars[-1].urgency


def test_calls_that_overlap_have_lanes_of_their_own() -> None:
    told = picture(ran(1, 0, 5), ran(2, 1, 5), ran(3, 6, 4), ran(4, 2, 3, pid=9))

    assert [7, 7, 9] == [pid for pid, _ in told.lanes]
    assert [[0, 2], [1], [3]] == [
        sorted(bar.number for bar in bars) for _, bars in told.lanes
    ]


def test_a_running_call_ends_now() -> None:
    index = index_of(ran(1, 0, 1))
    index.set_running([running(2, began=BEGIN + SECOND, pid=7)])

    told = CallTimeline(index, BEGIN + 4 * SECOND).picture(100)

    [(_, bars)] = told.lanes
    assert (25, 100, 2, 1) == bars[-1]


def test_a_run_without_calls_has_no_lanes() -> None:
    assert [] == CallTimeline(CallIndex(), 0).picture(100).lanes


def test_a_picture_is_bounded_and_counts_each_call_once() -> None:
    generator = random.Random(1)
    calls = [
        ran(
            number,
            number / 1_000,
            generator.choice((0.0, 0.02, 0.3)),
            pid=number % 10,
            state=generator.choice(("done", "done", "failed")),
        )
        for number in range(20_000)
    ]

    told = picture(*calls, width=2_000)

    bars = [bar for _, lane in told.lanes for bar in lane]
    assert len(bars) < 12_000
    assert 20_000 == sum(1 if bar.number >= 0 else -bar.number for bar in bars)
    assert len(told.labels) <= 500


def states_of(graph: CallGraph) -> dict[str, dict[str, int]]:
    """Return the number of calls in each state, by the ids of nodes."""
    return {node.id: dict(node.states) for node in graph.nodes}


def test_a_graph_counts_the_calls_of_each_task() -> None:
    """A call is in the box of its caller."""
    rows = [
        call(0, name="body", text="", path="body", caller=""),
        *(call(number, name="load", step=1) for number in (1, 2)),
        call(3, "failed", name="train", step=1, path="p3"),
        call(4, name="score", caller="p3"),
    ]

    graph = call_graph(index_of(*rows))

    assert {
        "|body": {"done": 1},
        "|body|load": {"done": 2},
        "|body|train": {"failed": 1},
        "|body|train|score": {"done": 1},
    } == states_of(graph)
    assert "|body" == graph.body
    (score,) = [node for node in graph.nodes if node.name == "score"]
    assert "|body|train" == score.parent


def test_a_body_without_a_record_is_known_by_the_path() -> None:
    """The body of a run that goes on, or was killed, has no record."""
    rows = [
        call(1, name="load", caller="~__pregel_pull, study"),
        call(2, name="", caller="lost"),
    ]

    graph = call_graph(index_of(*rows))

    names = {node.id: node.name for node in graph.nodes}
    assert {
        "|study": "study",
        "|study|load": "load",
        "|": "(unnamed)",
    } == names


def test_a_task_that_calls_itself_is_one_node() -> None:
    deep = "~__pregel_push, ~__pregel_push, p1, 0000000000, 0000000000"
    rows = [
        call(0, name="body", text="", path="body", caller=""),
        call(1, name="walk", path="p1"),
        call(2, name="walk", path="~__pregel_push, p1, 0000000000", caller="p1"),
        call(3, name="walk", path=deep, caller="~__pregel_push, p1, 0000000000"),
    ]

    graph = call_graph(index_of(*rows))

    assert {"|body": 1, "|body|walk": 3} == {
        node.id: node.states["done"] for node in graph.nodes
    }


def test_results_that_a_call_received_are_edges() -> None:
    """With the number of calls that received them; a task of another box is none."""
    rows = [
        call(0, name="body", text="", path="body", caller=""),
        call(1, name="load"),
        *(
            call(number, name="train", path=f"p{number}", preview=PREVIEW)
            for number in (2, 3)
        ),
        call(4, name="score", caller="p2", preview=PREVIEW),
    ]

    graph = call_graph(index_of(*rows))

    assert [("|body|load", "|body|train", 2)] == graph.data


def test_a_task_without_known_sources_follows_on_those_that_had_ended() -> None:
    """`train` was called when `load` and `split` had ended, and `score` after it. The
    calls of `watch` overlap with all others.
    """
    times = [
        ("load", 0, 2),
        ("split", 0, 3),
        ("watch", 1, 99),
        ("train", 4, 2),
        ("train", 7, 2),
        ("score", 10, 1),
    ]
    rows = [
        ran(number, at, seconds, name=name, planned=BEGIN + at * SECOND)
        for number, (name, at, seconds) in enumerate(times)
    ]

    graph = call_graph(index_of(*rows))

    assert [
        ("|load", "|train"),
        ("|split", "|train"),
        ("|train", "|score"),
    ] == sorted(graph.after)


def test_tasks_of_a_loop_follow_on_the_call_that_ended_last() -> None:
    times = [("load", 0, 1), ("train", 1, 1), ("load", 2, 1), ("train", 3, 1)]
    rows = [
        ran(number, at, seconds, name=name, planned=BEGIN + at * SECOND)
        for number, (name, at, seconds) in enumerate(times)
    ]

    assert [("|load", "|train")] == call_graph(index_of(*rows)).after


def test_a_graph_has_the_order_of_supersteps() -> None:
    """Of nested graphs, whose runs have different ids, together."""
    rows = [
        call(1, name="a", caller="", step=0),
        call(2, name="b", caller="", step=1),
        call(3, name="x", caller="", step=0, namespace="b:1"),
        call(4, name="y", caller="", step=1, namespace="b:1"),
        call(5, name="x", caller="", step=0, namespace="b:2"),
    ]

    graph = call_graph(index_of(*rows))

    assert {("|a", "|b"), ("|b|x", "|b|y")} == {*graph.steps}
    assert (["|a"], ["|b"]) == (graph.first, graph.last)
    assert "" == graph.body
    assert {"|a": 1, "|b": 1, "|b|x": 2, "|b|y": 1} == {
        node.id: node.states["done"] for node in graph.nodes
    }


def test_a_call_that_is_gone_is_in_no_picture() -> None:
    index = index_of(call(1))
    index.set_running([running(2, name="other")])
    index.set_running([])

    assert ["|train"] == [node.id for node in call_graph(index).nodes]
    assert 1 == CallTimeline(index, 0).picture(100).total
