"""What a run streams, in which shape and order, and what a reader that stops early
leaves.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from typing import Any

import pytest

from flowpregel._core.commands import Command, Interrupt
from flowpregel.channels import EphemeralValue
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.context import get_stream_writer, interrupt
from flowpregel.pregel import NodeBuilder, Pregel
from tests.graphs import fan_out, graph, on_input

# -------------------------------------------------------------------- ctrl-c


def press_ctrl_c(_: Any) -> None:
    """Do what Ctrl-C does in the middle of a node."""
    raise KeyboardInterrupt


def test_ctrl_c_in_an_inline_node_ends_the_run_and_keeps_what_finished() -> None:
    """Of two tasks on the run's own OS thread, the first ended before the key was
    pressed.
    """
    saver = InMemorySaver()
    runs: list[str] = []
    calls = (lambda _: runs.append("first"), press_ctrl_c)
    app = fan_out(*calls, checkpointer=saver, executor="inline")

    with pytest.raises(KeyboardInterrupt):
        app.invoke(1, thread_id="t")
    with pytest.raises(KeyboardInterrupt):
        app.invoke(None, thread_id="t")

    assert ["first"] == runs


# -------------------------------------------------------------------- shapes


def count(given: int) -> int:
    """Say what is counted, and return the next number."""
    get_stream_writer()({"counted": given})
    return given + 1


def stories(executor: str = "inline", **options: Any) -> Pregel:
    """Return a graph in which ``one`` and ``two`` run side by side, and then
    ``three``.
    """
    nodes = {
        "one": on_input(count, "b", "out"),
        "two": on_input(lambda given: interrupt({"really": given})),
        "three": NodeBuilder()
        .subscribe_to("b")
        .do(lambda given: given["b"])
        .write_to("out"),
    }
    channels = {"a": EphemeralValue(int), "b": EphemeralValue(int)}
    options = {"checkpointer": InMemorySaver(), "executor": executor, **options}
    return graph(nodes, channels, **options)


def asked(app: Pregel, **config: Any) -> tuple[Interrupt, ...]:
    """Return the questions that wait on a thread."""
    return app.get_state(thread_id="t", **config).interrupts


def test_values_show_the_channels_when_they_were_written_and_what_is_asked(
    drive: Any,
) -> None:
    """At an interrupt, what finished beside it is shown once more."""
    app = stories()

    found = drive.stream(app, 1, thread_id="t", stream_mode="values")
    (question,) = asked(app)
    resumed = drive.stream(app, Command(resume=5), thread_id="t", stream_mode="values")

    assert [{"a": 1, "__interrupt__": (question,)}, {"b": 2, "out": [2]}] == found
    assert [{"a": 1}, {"b": 2, "out": [2, 5]}, {"out": [2, 5, 2]}] == resumed


def test_updates_show_what_each_task_wrote(drive: Any) -> None:
    """A task that was done before the run was resumed is marked as cached."""
    app = stories()

    found = drive.stream(app, 1, thread_id="t", stream_mode="updates")
    (question,) = asked(app)
    resumed = drive.stream(app, Command(resume=5), thread_id="t", stream_mode="updates")

    assert [{"one": {"b": 2, "out": 2}}, {"__interrupt__": (question,)}] == found
    assert [
        {"one": {"b": 2, "out": 2}, "__metadata__": {"cached": True}},
        {"two": {"out": 5}},
        {"three": {"out": 2}},
    ] == resumed


@pytest.mark.parametrize(
    ("writes", "shown"),
    [
        ([("out", 1), ("out", 2)], [{"out": 1}, {"out": 2}]),
        ([("out", 1), ("b", 2)], {"out": 1, "b": 2}),
        ([], None),
    ],
    ids=["twice", "two-channels", "nothing"],
)
def test_an_update_is_a_dict_a_list_of_dicts_or_nothing(
    drive: Any, writes: list[Any], shown: Any
) -> None:
    """As a task writes each channel once, one of them again, or none."""
    node = NodeBuilder().subscribe_only("a").build()
    node.writers.append(lambda _output, _scope: writes)
    app = graph({"n": node}, {"b": EphemeralValue(int)})

    assert [{"n": shown}] == drive.stream(app, 1, stream_mode="updates")


def test_custom_shows_what_nodes_say_as_it_is(drive: Any, executor: str) -> None:
    """In the order in which they say it."""
    app = fan_out(count, executor=executor)

    assert [{"counted": 1}] == drive.stream(app, 1, stream_mode="custom")


def test_tasks_show_the_start_and_the_end_of_each(drive: Any) -> None:
    """With its input and triggers, then with its result, its failure and what it
    asks.
    """
    app = stories()

    found = drive.stream(app, 1, thread_id="t", stream_mode="tasks")
    (question,) = asked(app)

    ids = {item["name"]: item["id"] for item in found}
    started = {"input": 1, "triggers": ("a",)}
    assert [
        {"id": ids["one"], "name": "one", **started},
        {"id": ids["two"], "name": "two", **started},
    ] == [{**item, "triggers": tuple(item["triggers"])} for item in found[:2]]
    end = {"error": None, "result": {}, "interrupts": []}
    assert [
        {**end, "id": ids["one"], "name": "one", "result": {"b": 2, "out": 2}},
        {**end, "id": ids["two"], "name": "two", "interrupts": [asdict(question)]},
    ] == found[2:]


def test_a_task_that_fails_ends_with_its_error_before_the_run_does(drive: Any) -> None:
    """And has no update."""

    def fail(_: Any) -> None:
        raise ValueError("boom")

    found: list[Any] = []
    with pytest.raises(ValueError, match="boom"):
        drive.stream_until(
            lambda item: found.append(item) or False,
            fan_out(fail),
            1,
            stream_mode=["tasks", "updates"],
        )

    assert ["tasks", "tasks"] == [mode for mode, _ in found]
    assert "boom" == str(found[1][1]["error"])


def test_checkpoints_show_what_was_saved_and_what_is_next(drive: Any) -> None:
    """The first of a resumed run holds what its tasks did before."""
    app = stories()

    (first,) = drive.stream(app, 1, thread_id="t", stream_mode="checkpoints")
    again, second, third = drive.stream(
        app, Command(resume=5), thread_id="t", stream_mode="checkpoints"
    )

    assert {"a": 1} == first["values"]
    assert ["one", "two"] == first["next"]
    assert ("input", -1) == (first["metadata"]["source"], first["metadata"]["step"])
    assert first["parent_config"] is None
    assert first["config"] == again["config"] == second["parent_config"]
    assert {"b": 2, "out": 2} == again["tasks"][0]["result"]
    assert {"really": 1} == again["tasks"][1]["interrupts"][0]["value"]
    assert ["three"] == second["next"]
    assert ([], []) == (third["next"], third["tasks"])


def test_debug_wraps_tasks_and_checkpoints_with_their_step(drive: Any) -> None:
    """A checkpoint carries the step that led to it, its tasks the one after."""
    app = fan_out(count, checkpointer=InMemorySaver())

    found = drive.stream(app, 1, thread_id="t", stream_mode="debug")

    steps = [(-1, "checkpoint"), (0, "task"), (0, "task_result"), (0, "checkpoint")]
    assert steps == [(item["step"], item["type"]) for item in found]
    assert all(
        {"step", "type", "timestamp", "payload"} == item.keys() for item in found
    )


# -------------------------------------------------------------------- wrapping


@pytest.mark.parametrize(
    ("asked_for", "expected"),
    [
        ({"stream_mode": "values"}, {"a": 1, "out": [1]}),
        ({"stream_mode": ["values"]}, ("values", {"a": 1, "out": [1]})),
        ({"stream_mode": "values", "subgraphs": True}, ((), {"a": 1, "out": [1]})),
        (
            {"stream_mode": ["values"], "subgraphs": True},
            ((), "values", {"a": 1, "out": [1]}),
        ),
        (
            {"stream_mode": "values", "version": "v2"},
            {
                "type": "values",
                "ns": (),
                "data": {"a": 1, "out": [1]},
                "interrupts": (),
            },
        ),
        (
            {"stream_mode": "updates", "version": "v2"},
            {"type": "updates", "ns": (), "data": {"n0": {"out": 1}}},
        ),
    ],
    ids=["one", "list", "subgraphs", "list-subgraphs", "v2-values", "v2-updates"],
)
def test_an_item_is_wrapped_as_it_was_asked_for(
    drive: Any, asked_for: dict[str, Any], expected: Any
) -> None:
    """Bare, with its mode, with its namespace, or as a dict of all three."""
    assert [expected] == drive.stream(fan_out(lambda given: given), 1, **asked_for)


def test_a_v2_item_has_questions_beside_its_values(drive: Any) -> None:
    """Not among them."""
    app = stories()

    first, _ = drive.stream(app, 1, thread_id="t", stream_mode="values", version="v2")

    assert {"a": 1} == first["data"]
    assert asked(app) == first["interrupts"]


def test_the_same_events_come_in_the_same_order_however_a_run_is_driven() -> None:
    """From all four methods, for all modes at once."""
    modes = ["values", "updates", "custom", "checkpoints", "tasks", "debug"]

    def shape(items: list[Any]) -> list[Any]:
        return [
            (mode, payload["type"] if mode == "debug" else None)
            for mode, payload in items
        ]

    async def gathered() -> list[Any]:
        return [
            item
            async for item in stories().astream(1, thread_id="t", stream_mode=modes)
        ]

    streamed = shape([*stories().stream(1, thread_id="t", stream_mode=modes)])

    assert streamed == shape(asyncio.run(gathered()))
    assert streamed == shape(stories().invoke(1, thread_id="t", stream_mode=modes))
    assert streamed == shape(
        asyncio.run(stories().ainvoke(1, thread_id="t", stream_mode=modes))
    )


@pytest.mark.parametrize(
    ("asked_for", "options"),
    [({"print_mode": "updates"}, {}), ({"debug": True}, {}), ({}, {"debug": True})],
    ids=["print_mode", "debug", "debug-graph"],
)
def test_what_is_printed_changes_no_output(
    drive: Any, capsys: pytest.CaptureFixture[str], asked_for: Any, options: Any
) -> None:
    """Modes that are printed are not those that are returned."""
    app = fan_out(lambda given: given, **options)

    assert drive.invoke(fan_out(lambda given: given), 1) == drive.invoke(
        app, 1, **asked_for
    )
    assert "[updates] {'n0': 1}\n" in capsys.readouterr().out


# readers that stop early ---------------------------------------------------


def test_a_reader_that_stops_early_ends_the_run_and_keeps_what_finished(
    drive: Any, executor: str
) -> None:
    """No OS thread is left, and the run goes on where it was."""
    before = {*threading.enumerate()}
    runs: list[str] = []
    nodes = {
        "one": on_input(lambda given: runs.append("one") or given, "b"),
        "two": NodeBuilder()
        .subscribe_only("b")
        .do(lambda given: runs.append("two") or given)
        .write_to("out"),
    }
    app = graph(
        nodes,
        {"b": EphemeralValue(int)},
        checkpointer=InMemorySaver(),
        executor=executor,
    )

    found = drive.stream_until(
        lambda _: True, app, 1, thread_id="t", stream_mode="updates", durability="sync"
    )

    assert [{"one": {"b": 1}}] == found
    assert ["one"] == runs
    assert before == {*threading.enumerate()}
    assert {"a": 1, "out": [1]} == drive.invoke(
        app, None, thread_id="t", output_keys=["a", "out"]
    )
    assert ["one", "two"] == runs


def test_a_stream_that_is_never_read_runs_nothing() -> None:
    """The reader drives the run."""
    runs: list[int] = []
    app = fan_out(runs.append)

    app.stream(1).close()

    assert [] == runs


def test_a_reader_that_stops_early_cancels_coroutines() -> None:
    """They are told, and had their turn to end, when ``aclose`` returns."""
    ended: list[str] = []

    async def hang(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")

    async def end(given: Any) -> Any:
        return given

    async def main() -> None:
        app = fan_out(end, hang)
        stream = app.astream(1, stream_mode="updates")
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(main())

    assert ["hang"] == ended
