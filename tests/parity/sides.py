"""The two engines behind one face, so that one builder makes a graph for either."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypedDict

from pydantic import BaseModel

from tests.parity.plans import LIMIT, BranchPlan, GraphPlan, NodePlan


class NodeFailed(Exception):
    """A generated node failed, as it was told to."""


class Said(BaseModel):
    """What a question with a schema takes."""

    text: str


def extend(value: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """Fold writes into a list: the reducer of the DeltaChannel."""
    return [*value, *(item for write in writes for item in write)]


@dataclass(frozen=True)
class Side:
    """What a program imports from one of the engines."""

    name: str
    graph: Any
    types: Any
    errors: Any
    delta: Any
    saver: Callable[[], Any]
    options: dict[str, Any]
    """What `compile` is given beside."""

    def __reduce__(self) -> Any:
        """Leave the saver behind: what a node needs of it travels to worker
        processes.
        """
        return (flowpregel if self.name == "flowpregel" else langgraph), ()


def langgraph() -> Side:
    """Return the peer."""
    import langgraph.channels
    import langgraph.errors
    import langgraph.graph
    import langgraph.types
    from langgraph.checkpoint.memory import InMemorySaver

    graph, types, errors = langgraph.graph, langgraph.types, langgraph.errors
    delta = langgraph.channels.DeltaChannel
    return Side("langgraph", graph, types, errors, delta, InMemorySaver, {})


def flowpregel(executor: str = "inline") -> Side:
    """Return ours."""
    import flowpregel.channels
    import flowpregel.errors
    import flowpregel.graph
    import flowpregel.types
    from flowpregel.checkpoint.memory import InMemorySaver

    graph, types, errors = flowpregel.graph, flowpregel.types, flowpregel.errors
    delta = flowpregel.channels.DeltaChannel
    options = {"executor": executor}
    return Side("flowpregel", graph, types, errors, delta, InMemorySaver, options)


def state_of(side: Side, plan: GraphPlan) -> Any:
    """Return the state's schema."""
    delta = side.delta(extend, snapshot_frequency=plan.frequency)
    fields = {
        "items": Annotated[list, operator.add],
        "total": Annotated[int, operator.add],
        "last": str,
        "log": Annotated[list, delta],
    }
    return TypedDict("State", fields, total=False)  # type: ignore[operator]


def build(side: Side, plan: GraphPlan, saver: Any) -> Any:
    """Return the graph of *plan*, compiled."""
    state = state_of(side, plan)
    builder = side.graph.StateGraph(state)
    for node in plan.nodes:
        action: Any = action_of(side, node)
        if node.nested:
            action = nested(side, state, node)
        builder.add_node(node.name, action, **options_of(side, plan, node))
    for start, end in plan.edges:
        builder.add_edge(start, end)
    for starts, end in plan.joins:
        builder.add_edge(list(starts), end)
    for branch in plan.branches:
        path, path_map = path_of(side, branch)
        builder.add_conditional_edges(branch.source, path, path_map)
    return builder.compile(
        saver,
        interrupt_before=list(plan.before),
        interrupt_after=list(plan.after),
        **side.options,
    )


def options_of(side: Side, plan: GraphPlan, node: NodePlan) -> dict[str, Any]:
    """Return what `add_node` is given beside name and action."""
    options: dict[str, Any] = {"defer": node.defer}
    if node.tries > 1:
        options["retry_policy"] = side.types.RetryPolicy(
            initial_interval=0.0,
            max_attempts=node.tries,
            jitter=False,
            retry_on=NodeFailed,
        )
    if node.handled:
        options["error_handler"] = handler_of(side, plan, node)
    return options


def handler_of(side: Side, plan: GraphPlan, node: NodePlan) -> Callable[..., Any]:
    """Return the function that is told of the failure of *node*."""

    def handle(state: dict[str, Any], error: Any) -> Any:
        update = {"items": [f"{error.node} {state.get('total')}"], "total": 1}
        if node.handled == "own" or state.get("total", 0) >= LIMIT:
            return update
        return side.types.Command(update=update, goto=plan.nodes[0].name)

    # LangGraph gives it only to a parameter of just this type.
    handle.__annotations__["error"] = side.errors.NodeError
    return handle


def nested(side: Side, state: Any, node: NodePlan) -> Any:
    """Return a graph that does what *node* says in its second superstep."""
    inner = replace(node, goto=(), sends=(), name=f"{node.name}_inner")
    builder = side.graph.StateGraph(state)
    builder.add_sequence(
        [("first", lambda _: {"total": 1}), ("inner", action_of(side, inner))]
    )
    builder.add_edge("__start__", "first")
    if node.nested == "own":
        graph = builder.compile(checkpointer=side.saver())
        config = {"configurable": {"thread_id": node.name}}
        return lambda state: graph.invoke(state, config)
    graph = builder.compile(checkpointer=node.remembers or None)
    return graph if node.nested == "is" else lambda state: graph.invoke(state)


def action_of(side: Side, node: NodePlan) -> Callable[[dict[str, Any]], Any]:
    """Return the function of a node."""

    def action(state: dict[str, Any], runtime: Any) -> Any:
        answers = [asked(side, node, index) for index in range(node.asks)]
        if runtime.execution_info.node_attempt < node.tries:
            raise NodeFailed(f"{node.name} once more")
        if node.handled or (node.fails and not answers and state.get("total", 0) != 3):
            raise NodeFailed(node.name)
        update = update_of(side, node, [*answers, *state.get("sent", ())])
        if not (node.goto or node.sends) or state.get("total", 0) >= LIMIT:
            return update
        sends = [side.types.Send(name, packet(node.name, state)) for name in node.sends]
        return side.types.Command(update=update, goto=[*node.goto, *sends])

    return action


def asked(side: Side, node: NodePlan, index: int) -> Any:
    """Ask, and return the answer."""
    question = f"{node.name}?{index}"
    if not node.checks:
        return side.types.interrupt(question)
    said = side.types.interrupt(question, response_schema=Said)
    return said.text


def update_of(side: Side, node: NodePlan, said: list[Any]) -> dict[str, Any]:
    """Return what a node writes."""
    items: Any = [node.name, *said]
    if node.overwrites:
        items = side.types.Overwrite(items)
    values = {
        "items": items,
        "total": 1,
        "last": node.name,
        "log": [f"log {node.name}"],
    }
    return {key: value for key, value in values.items() if key in node.writes}


def packet(source: str, state: dict[str, Any]) -> dict[str, Any]:
    """Return what is sent: the total goes along, so that what is sent ends too."""
    return {"sent": [f"from {source}"], "total": state.get("total", 0) + 2}


def path_of(
    side: Side, branch: BranchPlan
) -> tuple[Callable[..., Any], dict[str, str] | None]:
    """Return the path function of a branch, and its path map."""
    letters = {chr(97 + i): name for i, name in enumerate(branch.targets)}
    answers = list(letters) if branch.mapped else list(branch.targets)
    nodes = [name for name in branch.targets if name != "__end__"]

    def path(state: dict[str, Any]) -> Any:
        total = state.get("total", 0)
        if total >= LIMIT:
            return answers[-1]
        if branch.kind == "one":
            return answers[total % len(answers)]
        if branch.kind == "all":
            return answers
        return [side.types.Send(name, packet(branch.source, state)) for name in nodes]

    path.__name__ = f"path_{branch.source}"
    return path, letters if branch.mapped else None
