"""Graphs and what is done with them, as plain data that hypothesis makes up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

LIMIT = 6
"""A path that has counted so far leads to the end: no generated graph runs for ever."""

KEYS = ("items", "total", "last", "log")
"""A list that adds up, a sum, a plain value, and a DeltaChannel."""


@dataclass(frozen=True)
class NodePlan:
    """What a node does each time it runs."""

    name: str
    writes: tuple[str, ...] = ()
    asks: int = 0
    """How many questions it asks before it writes."""
    checks: bool = False
    """Whether its questions have a schema, which a wrong answer does not fit."""
    goto: tuple[str, ...] = ()
    """Where its `Command` leads while the path is short."""
    sends: tuple[str, ...] = ()
    """To whom its `Command` sends while the path is short."""
    defer: bool = False
    fails: bool = False
    """Whether it fails until it has the total 3; one that is handled always does."""
    overwrites: bool = False
    """Whether it replaces the list instead of adding to it."""
    nested: str = ""
    """Whether a graph does all this, after a node of its own: the node ``is`` that
    graph, or a function that calls it, on the ``caller's`` thread or on its ``own``.
    """
    remembers: bool = False
    """Whether that graph remembers its earlier runs (``checkpointer=True``)."""
    handled: str = ""
    """If it fails, who is asked: its ``own`` handler, one that ``goes`` on to the first
    node.
    """
    tries: int = 1
    """How many attempts it has; it fails in all but the last."""


@dataclass(frozen=True)
class BranchPlan:
    """A conditional edge."""

    source: str
    targets: tuple[str, ...]
    kind: str
    """``one`` of the targets (by the total), ``all`` of them, or a ``send`` to each."""
    mapped: bool
    """Whether it answers with letters that a path map knows."""


@dataclass(frozen=True)
class GraphPlan:
    """A graph."""

    nodes: tuple[NodePlan, ...]
    edges: tuple[tuple[str, str], ...]
    joins: tuple[tuple[tuple[str, ...], str], ...]
    branches: tuple[BranchPlan, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    frequency: int
    """Of snapshots of the DeltaChannel."""
    sends: bool
    """Whether nodes may be sent to."""


@dataclass(frozen=True)
class Action:
    """One thing that is done with a thread."""

    kind: str
    """One of `KINDS`; with ``inside``, a checkpoint of a graph inside is replayed."""
    number: int
    """Chooses what of: an interrupt, a node, a checkpoint of the history."""
    values: tuple[str, ...] = ()
    """The keys that an update writes."""


@dataclass(frozen=True)
class Plan:
    """A graph, and a thread's story."""

    graph: GraphPlan
    actions: tuple[Action, ...]


def subset(draw: Any, names: list[str], most: int) -> tuple[str, ...]:
    """Draw up to *most* different names."""
    if not names:
        return ()
    return tuple(draw(st.lists(st.sampled_from(names), max_size=most, unique=True)))


@st.composite
def graphs(draw: Any) -> GraphPlan:
    """Make up a graph of one to five nodes."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 5)))]
    rare = st.integers(0, 5).map(lambda n: n == 0)
    # Which of several tasks have ended when one fails is a matter of luck on LangGraph.
    fails = draw(rare)
    # Listed as different: a deferred node waits for what was sent, too.
    defers = not fails and draw(st.booleans())
    nests = not fails and draw(st.booleans())
    memories = nests and draw(st.booleans())
    # Listed as different: of two tasks side by side that share a memory one is
    # forgotten.
    sends = not (fails or defers or memories)
    kinds = ["", "is", "is", "caller's", *(["own"] if memories else [])]
    questions = st.sampled_from(draw(st.sampled_from([[0, 0, 0, 0, 1, 2], [0, 1, 2]])))
    handlers = st.sampled_from(["own", "goes"])
    nodes = tuple(
        NodePlan(
            name=name,
            writes=subset(draw, list(KEYS), 3),
            asks=draw(questions),
            checks=draw(st.booleans()),
            goto=subset(draw, names, 2) if not fails and draw(rare) else (),
            sends=subset(draw, names, 2) if sends and draw(rare) else (),
            defer=defers and draw(rare),
            fails=fails and draw(st.booleans()),
            overwrites=draw(rare),
            nested=draw(st.sampled_from(kinds)) if nests else "",
            remembers=memories and draw(st.booleans()),
            handled=draw(handlers) if not (fails or nests) and draw(rare) else "",
            # Listed as different: a nested graph that is tried again goes on where it
            # was.
            tries=draw(st.integers(2, 3)) if not nests and draw(rare) else 1,
        )
        for name in names
    )
    stops = draw(rare)
    edges, joins, branches = _chain(names) if fails else draw(_mesh(names, sends))
    return GraphPlan(
        nodes=nodes,
        edges=tuple(edges),
        joins=tuple(joins),
        branches=tuple(branches),
        before=subset(draw, names, 2) if stops else (),
        after=subset(draw, names, 2) if stops and draw(st.booleans()) else (),
        frequency=draw(st.sampled_from([1, 2, 1000])),
        sends=sends,
    )


Ways = tuple[list[tuple[str, str]], list[tuple[tuple[str, ...], str]], list[BranchPlan]]


def _chain(names: list[str]) -> Ways:
    """Return the edges of nodes that run one after the other."""
    return [*zip(["__start__", *names], names, strict=False)], [], []


@st.composite
def _mesh(draw: Any, names: list[str], sends: bool) -> Ways:
    """Make up the edges of a graph of any shape."""
    first = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    edges = [("__start__", name) for name in first]
    # An edge leads to a later node, so that edges alone make no endless cycle.
    later = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    edges += (
        draw(st.lists(st.sampled_from(later), max_size=5, unique=True)) if later else []
    )
    joins = []
    if len(names) > 2 and draw(st.booleans()):
        starts = draw(
            st.lists(st.sampled_from(names[:-1]), min_size=2, max_size=3, unique=True)
        )
        joins.append((tuple(starts), names[-1]))
    branches = []
    for source in subset(draw, ["__start__", *names], 2):
        targets = (*subset(draw, names, 3), "__end__")
        kind = draw(st.sampled_from(["one", "one", "all", "send" if sends else "all"]))
        branches.append(BranchPlan(source, targets, kind, draw(st.booleans())))
    return edges, joins, branches


KINDS = [
    *("input", "go", "go", "answer", "answer", "answer", "wrong", "answer and go"),
    *("update", "command", "replay", "inside", "fork"),
]


@st.composite
def plans(draw: Any) -> Plan:
    """Make up a graph and up to eight things to do with it."""
    actions = st.builds(
        Action,
        kind=st.sampled_from(KINDS),
        number=st.integers(0, 7),
        values=st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True).map(
            tuple
        ),
    )
    first = Action("input", draw(st.integers(0, 3)))
    return Plan(draw(graphs()), (first, *draw(st.lists(actions, max_size=7))))
