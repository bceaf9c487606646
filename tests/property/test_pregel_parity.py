"""Generated programs do on flowpregel what they do on LangGraph's own Pregel."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import langgraph.channels as theirs
from hypothesis import example, given, settings
from langgraph.checkpoint.memory import InMemorySaver as TheirSaver
from langgraph.pregel import NodeBuilder as TheirBuilder
from langgraph.pregel import Pregel as TheirPregel
from langgraph.pregel._write import ChannelWrite as TheirWrite
from langgraph.pregel._write import ChannelWriteTupleEntry
from langgraph.types import Send as TheirSend

from flowpregel.checkpoint.memory import InMemorySaver
from tests.strategies import (
    Faults,
    NodeRecipe,
    Recipe,
    behaviour,
    example_count,
    recipes,
)

KINDS = ("brief", "any", "topic", "gather", "sum", "most", "log", "finish")
"""The kinds that both have, with the same laws."""

TASKS = "__pregel_tasks"
SYNC = "sync"
"""LangGraph's other modes may store a list after the next superstep has changed it."""
CONFIG = {"configurable": {"thread_id": "t"}}


def their_channel(kind: str) -> Any:
    """Return LangGraph's channel of a kind."""
    made: dict[str, Any] = {
        "brief": lambda: theirs.EphemeralValue(int, guard=False),
        "any": lambda: theirs.AnyValue(int),
        "topic": lambda: theirs.Topic(int),
        "gather": lambda: theirs.Topic(int, accumulate=True),
        "sum": lambda: theirs.BinaryOperatorAggregate(int, operator.add),
        "most": lambda: theirs.BinaryOperatorAggregate(int, max),
        "log": lambda: theirs.BinaryOperatorAggregate(
            list, lambda log, item: [*log, item]
        ),
        "finish": lambda: theirs.LastValueAfterFinish(int),
    }
    return made[kind]()


def their_node(recipe: NodeRecipe) -> Any:
    """Return LangGraph's node of a recipe."""
    builder = TheirBuilder().subscribe_to(*recipe.triggers)
    for name in recipe.reads:
        builder.read_from(name)
    node = builder.do(behaviour(recipe, Faults())).build()

    def sent(output: Any) -> list[tuple[str, Any]] | None:
        if output is None:
            return None
        found = [
            (TASKS, TheirSend(name, {"sent": output + 1})) for name in recipe.sends
        ]
        return [*((name, output) for name in recipe.writes), *found]

    node.writers.append(TheirWrite([ChannelWriteTupleEntry(mapper=sent)]))
    return node


def their_graph(recipe: Recipe, **options: Any) -> Any:
    """Return LangGraph's graph of a recipe."""
    channels = {name: their_channel(kind) for name, kind in recipe.channels.items()}
    return TheirPregel(
        nodes={node.name: their_node(node) for node in recipe.nodes},
        channels={"start": theirs.EphemeralValue(int), **channels},
        input_channels="start",
        output_channels=list(channels),
        stream_channels=["start", *channels],
        **options,
    )


def our_graph(recipe: Recipe, **options: Any) -> Any:
    """Return our graph of a recipe."""
    return recipe.build(Faults(), executor="inline", **options)


def comparable(recipe: Recipe) -> Recipe:
    """Return *recipe* without what we do otherwise on purpose.

    LangGraph finishes deferred channels while tasks that were sent are still to
    run; here they count as something that is left to do.
    """
    if "finish" not in recipe.channels.values():
        return recipe
    return replace(
        recipe, nodes=tuple(replace(node, sends=()) for node in recipe.nodes)
    )


def unordered(events: list[Any]) -> list[Any]:
    """Return events with those of one superstep, which end in any order, sorted."""
    groups: list[Any] = []
    for mode, payload in events:
        if mode == "updates" and groups and groups[-1][0] == "updates":
            groups[-1][1].append(payload)
        else:
            groups.append((mode, [payload]))
    return [(mode, sorted(map(repr, payloads))) for mode, payloads in groups]


some = settings(max_examples=example_count(2))
plain = recipes(faulty=False, kinds=KINDS).map(comparable)


@some
@given(plain)
def test_a_run_streams_the_same_values_and_updates(recipe: Recipe) -> None:
    """In the same order, but for the updates of one superstep."""
    modes = ["values", "updates"]

    expected = [*their_graph(recipe).stream(recipe.given, stream_mode=modes)]

    assert unordered(expected) == unordered(
        [*our_graph(recipe).stream(recipe.given, stream_mode=modes)]
    )


LEFT_TO_DO = Recipe(
    {"c0": "brief", "c1": "brief", "c2": "sum"},
    (
        NodeRecipe("n0", ("start",), writes=("c1",)),
        NodeRecipe("n1", ("c0",)),
        NodeRecipe("n3", ("c2",), writes=("c0",)),
    ),
)
"""What a channel's first value is to trigger is left to do when new input comes."""


@some
@given(plain)
@example(LEFT_TO_DO)
def test_a_run_returns_the_same(recipe: Recipe) -> None:
    """`invoke` with a saver, twice on one thread."""
    first = their_graph(recipe, checkpointer=TheirSaver())
    second = our_graph(recipe, checkpointer=InMemorySaver())

    for given_now in (recipe.given, recipe.given + 1):
        assert first.invoke(given_now, CONFIG, durability=SYNC) == second.invoke(
            given_now, CONFIG
        )


@some
@given(plain)
def test_a_thread_has_the_same_history(recipe: Recipe) -> None:
    """Values, what is next, step and source of every checkpoint, newest first."""
    first = their_graph(recipe, checkpointer=TheirSaver())
    second = our_graph(recipe, checkpointer=InMemorySaver())
    first.invoke(recipe.given, CONFIG, durability=SYNC)
    second.invoke(recipe.given, CONFIG)

    expected, found = (
        [
            (s.values, sorted(s.next), s.metadata["step"], s.metadata["source"])
            for s in graph.get_state_history(CONFIG)
        ]
        for graph in (first, second)
    )

    assert expected == found


@some
@given(plain)
def test_a_run_that_stops_before_every_node_goes_on_the_same(recipe: Recipe) -> None:
    """A breakpoint after each superstep shows the same nodes to come."""
    first = their_graph(recipe, checkpointer=TheirSaver())
    second = our_graph(recipe, checkpointer=InMemorySaver())
    given_now: Any = recipe.given

    for _ in range(6):
        expected = first.invoke(
            given_now, CONFIG, interrupt_before="*", durability=SYNC
        )
        found = second.invoke(given_now, CONFIG, interrupt_before="*")
        given_now = None

        assert expected == found
        assert sorted(first.get_state(CONFIG).next) == sorted(
            second.get_state(CONFIG).next
        )
