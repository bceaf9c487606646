"""What property tests draw: programs, made of plain data, and where they crash.

A `Recipe` says which channels, nodes and failures a program has. It is data, so
that a failing example can be read, and it builds for flowpregel and for LangGraph
alike. Every node writes a pure function of its input and its name, so a run has
one right end whatever the order of completions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from flowpregel import channels as ours
from flowpregel._core.commands import Send, call_target_of
from flowpregel._core.ids import CallKey
from flowpregel._core.records import TASKS, Arguments, Node
from flowpregel.context import current_scope, interrupt
from flowpregel.policies import RetryPolicy
from flowpregel.pregel import NodeBuilder, Pregel, PregelNode


def example_count(cost: int, least: int = 20) -> int:
    """Return how many examples a property is tried with that costs *cost* times as
    much as others: no fewer than *least* where the profile has as many.
    """
    most = settings.default.max_examples
    return min(most, max(least, most // cost))


KINDS = (
    "brief",
    "any",
    "topic",
    "gather",
    "sum",
    "most",
    "log",
    "delta",
    "delta2",
    "finish",
)
"""The channels that a node can write and read; each folds any number of writes of
ints.
"""


class Once(Exception):
    """A failure that is gone at the next attempt."""


class Down(Exception):
    """A failure that is gone when the run is resumed."""


class Caught(Exception):
    """A failure of a call that its caller expects."""


@dataclass(frozen=True, slots=True)
class CallRecipe:
    """A call that a node makes."""

    asks: int = 0
    """How many questions the called function asks."""
    waits: bool = True
    """Whether the node waits for it before it makes the next one."""
    raises: bool = False
    """Whether it fails with what the node catches."""


@dataclass(frozen=True, slots=True)
class NodeRecipe:
    """A node: what triggers it, what it reads and writes, and what goes wrong in it."""

    name: str
    triggers: tuple[str, ...]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    """The nodes it sends its result to."""
    rounds: int = 2
    """From this value on it writes nothing, so that cycles end."""
    asks: int = 0
    """How many questions it asks each time it runs."""
    fails_once: bool = False
    """Whether the first attempt of each of its tasks fails, and is tried again."""
    calls: tuple[CallRecipe, ...] = ()
    """The calls it makes before anything goes wrong in it."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole program."""

    channels: Mapping[str, str]
    """The kind of each channel."""
    nodes: tuple[NodeRecipe, ...]
    given: int = 1
    down: frozenset[str] = field(default_factory=frozenset)
    """The nodes that fail until the run is resumed for the first time."""

    def build(self, faults: Faults, **options: Any) -> Pregel:
        """Return it as a graph of ours."""
        channels = {name: channel_of(kind) for name, kind in self.channels.items()}
        return Pregel(
            nodes={node.name: built(node, faults) for node in self.nodes},
            channels={"start": ours.EphemeralValue(int), **channels},
            input_channels="start",
            output_channels=list(channels),
            **options,
        )


@dataclass(slots=True)
class Faults:
    """What goes wrong while a recipe runs; outside of it, as the world is."""

    down: set[str] = field(default_factory=set)
    """The nodes that fail now."""
    failed: set[tuple[str, Any]] = field(default_factory=set)
    """(node, input) that failed once already."""
    answer: Callable[[Any], Any] = interrupt


def channel_of(kind: str) -> Any:
    """Return a new channel of a kind in `KINDS`, or one that a node only triggers
    on.
    """
    made: dict[str, Callable[[], Any]] = {
        "brief": lambda: ours.EphemeralValue(int, guard=False),
        "any": lambda: ours.AnyValue(int),
        "topic": lambda: ours.Topic(int),
        "gather": lambda: ours.Topic(int, accumulate=True),
        "sum": lambda: ours.BinaryOperatorAggregate(int, operator.add),
        "most": lambda: ours.BinaryOperatorAggregate(int, max),
        "log": lambda: ours.BinaryOperatorAggregate(list, _logged),
        "delta": lambda: ours.DeltaChannel(_extended, list),
        "delta2": lambda: ours.DeltaChannel(_extended, list, snapshot_frequency=2),
        "finish": lambda: ours.LastValueAfterFinish(int),
    }
    return made[kind]()


def _logged(log: list[int], item: int) -> list[int]:
    return [*log, item]


def _extended(log: list[int], items: Any) -> list[int]:
    return [*log, *items]


def built(recipe: NodeRecipe, faults: Faults) -> PregelNode:
    """Return a node of ours."""
    builder = NodeBuilder().subscribe_to(*recipe.triggers)
    for name in recipe.reads:
        builder.read_from(name)
    builder.do(behaviour(recipe, faults))
    if recipe.fails_once:
        builder.add_retry_policies(
            RetryPolicy(retry_on=Once, initial_interval=0, jitter=False)
        )
    node = builder.build()
    node.writers.append(Writer(recipe, Send))
    return node


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes a node's result to its channels, and sends it to its nodes."""

    recipe: NodeRecipe
    send: Callable[[str, Any], Any]

    def __call__(self, output: Any, _: Any = None) -> list[tuple[str, Any]]:
        if output is None:
            return []
        sent = [
            (TASKS, self.send(name, {"sent": output + 1})) for name in self.recipe.sends
        ]
        return [*((name, output) for name in self.recipe.writes), *sent]


def behaviour(recipe: NodeRecipe, faults: Faults) -> Callable[[Any], Any]:
    """Return what the node does: a pure function of its input, but for its faults."""

    def call(given: Any) -> int | None:
        value = digest(given) + sum(called(recipe, faults))
        if recipe.name in faults.down:
            raise Down(recipe.name)
        key = recipe.name, repr(given)
        if recipe.fails_once and key not in faults.failed:
            faults.failed.add(key)
            raise Once(recipe.name)
        for index in range(recipe.asks):
            value += faults.answer({"node": recipe.name, "index": index})
        return None if depth(given) >= recipe.rounds else value + 1

    return call


def called(recipe: NodeRecipe, faults: Faults) -> list[int]:
    """Make the calls of a node, and return what came of each."""
    results, open_calls = [], []
    for index, each in enumerate(recipe.calls):
        future = call(function(f"{recipe.name}.{index}", each, faults), index)
        if each.waits:
            results.append(result_of(future))
        else:
            open_calls.append(future)
    return [*results, *map(result_of, open_calls)]


def call(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call *function* as a task of its own, and return the future of its result."""
    name = function.__name__
    node = Node(name=name, steps=(call_target_of(function),), is_task=True)
    arguments = Arguments((argument,), {})
    asked = CallKey(name, repr(argument), name, f"{name}({argument})")
    return current_scope(name).run_client.call(node, arguments, asked)


def function(name: str, recipe: CallRecipe, faults: Faults) -> Callable[[Any], Any]:
    """Return the function that is called."""

    def body(given: int) -> int:
        if name in faults.down:
            raise Down(name)
        answers = [
            faults.answer({"node": name, "index": i}) for i in range(recipe.asks)
        ]
        if recipe.raises:
            raise Caught(name)
        return given + sum(answers)

    body.__name__ = name
    return body


def result_of(future: Any) -> int:
    """Return what a call returned, or 7 where it failed as expected."""
    try:
        return int(future.result())
    except Caught:
        return 7


def digest(given: Any) -> int:
    """Return a number that depends on everything a node was given, and is not below its
    `depth`.
    """
    if isinstance(given, Mapping):
        given = [given[key] for key in sorted(given)]
    if isinstance(given, list | tuple):
        return min(997, sum((i + 1) * digest(item) for i, item in enumerate(given)))
    return int(given or 0)


def depth(given: Any) -> int:
    """Return how far a run has come, as far as a node can tell."""
    if isinstance(given, Mapping):
        return max((depth(item) for item in given.values()), default=0)
    if isinstance(given, list | tuple):
        return max([len(given), *map(depth, given)])
    return int(given or 0)


# ---------------------------------------------------------------- drawing


@st.composite
def recipes(
    draw: st.DrawFn, *, faulty: bool = True, kinds: tuple[str, ...] = KINDS
) -> Recipe:
    """Draw a program of two to four channels and two to four nodes; all of its runs
    end.

    Args:
        draw: Given by hypothesis.
        faulty: Whether nodes may fail and ask.
        kinds: The kinds of channels to draw from.
    """
    channels = {
        f"c{index}": kind
        for index, kind in enumerate(
            draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=4))
        )
    }
    calls = st.lists(
        st.builds(CallRecipe, st.integers(0, 1), st.booleans(), st.booleans()),
        max_size=3,
    ).map(tuple)
    names = [f"n{index}" for index in range(draw(st.integers(2, 4)))]
    some, most = (
        st.lists(
            st.sampled_from(sorted(channels)), unique=True, min_size=least, max_size=2
        )
        for least in (0, 1)
    )
    nodes = []
    for index, name in enumerate(names):
        triggers = ("start",) if index == 0 else tuple(draw(most))
        if index and draw(st.booleans()):
            triggers = (*triggers, "start")
        nodes.append(
            NodeRecipe(
                name,
                triggers,
                reads=tuple(draw(some)),
                writes=tuple(draw(some if index else most)),
                sends=tuple(draw(st.lists(st.sampled_from(names), max_size=1))),
                rounds=draw(st.integers(2, 9)),
                asks=draw(st.integers(0, 2)) if faulty and draw(st.booleans()) else 0,
                fails_once=faulty and draw(st.booleans()),
                calls=draw(calls) if faulty and draw(st.booleans()) else (),
            )
        )
    breakable = [
        *names,
        *(f"{node.name}.{i}" for node in nodes for i in range(len(node.calls))),
    ]
    down = (
        draw(st.frozensets(st.sampled_from(breakable), max_size=1))
        if faulty
        else frozenset()
    )
    return Recipe(channels, tuple(nodes), draw(st.integers(1, 3)), down)
