"""Handlers that are called when a run stops to ask, and when it resumes."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict
from uuid import UUID

from langgraph.callbacks import (
    GraphCallbackHandler,
    GraphInterruptEvent,
    GraphResumeEvent,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from tests.parity.programs import print_outcomes


class State(TypedDict):
    """A number."""

    number: int


class Watcher(GraphCallbackHandler):
    """A handler that notes its calls, by the names of runs."""

    def __init__(self, app: Any) -> None:
        self.events: list[Any] = []
        self._app = app
        self._names: dict[UUID, str] = {}
        self.config = {"configurable": {"thread_id": "1"}, "callbacks": [self]}

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, **more: Any
    ) -> None:
        """Note the start of a graph or node."""
        self._names[run_id] = more["name"]
        self.events.append(["start", more["name"]])

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """Note the end of a graph or node."""
        self.events.append(["end", self._names[run_id]])

    def on_chain_error(self, error: Any, *, run_id: UUID, **_: Any) -> None:
        """Note that a graph or node was interrupted."""
        self.events.append(["error", self._names[run_id]])

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """Note a stop, with its questions."""
        assert isinstance(event, GraphInterruptEvent)
        questions = [question.value for question in event.interrupts]
        self.events.append(["interrupt", *self._facts_of(event), questions])

    def on_resume(self, event: GraphResumeEvent) -> None:
        """Note a resumption."""
        assert isinstance(event, GraphResumeEvent)
        self.events.append(["resume", *self._facts_of(event)])

    def _facts_of(self, event: Any) -> Any:
        """Return the run, its status and place, and whether it is at its checkpoint."""
        namespace = [label.split(":")[0] for label in event.checkpoint_ns]
        snapshot = self._app.get_state(self.config)
        checkpoint_id = snapshot.config["configurable"]["checkpoint_id"]
        is_outermost = event.checkpoint_id == checkpoint_id
        return self._names[event.run_id], event.status, namespace, is_outermost


def count(state: State) -> Any:
    """Ask in a nested graph."""
    return {"number": state["number"] + interrupt("How many?")}


def begin(state: State) -> Any:
    """Add one."""
    return {"number": state["number"] + 1}


def end(state: State) -> Any:
    """Ask again."""
    return {"number": state["number"] + interrupt("How many more?")}


def events_of(*inputs: Any, is_async: bool = False, **options: Any) -> Any:
    """Return the calls of a handler for several runs of a thread."""
    inner = StateGraph(State).add_node(count).add_edge(START, "count").compile()
    builder = StateGraph(State).add_sequence([begin, ("inner", inner), end])
    builder.add_edge(START, "begin")
    app = builder.compile(checkpointer=InMemorySaver(), **options)
    watcher = Watcher(app)
    for given in inputs:
        if is_async:
            asyncio.run(app.ainvoke(given, watcher.config))
        else:
            app.invoke(given, watcher.config)
        watcher.events.append(["---"])
    return watcher.events


ANSWERED = ({"number": 0}, Command(resume=10), Command(resume=100), {"number": 1})
CONTINUED = ({"number": 0}, None, None)


def questions() -> Any:
    """Questions of a nested graph and of a node, and a new run."""
    return events_of(*ANSWERED)


def questions_on_a_loop() -> Any:
    """The same on an event loop."""
    return events_of(*ANSWERED, is_async=True)


def breakpoints() -> Any:
    """Breakpoints of all kinds."""
    return [
        events_of(*CONTINUED, **options)
        for options in (
            {"interrupt_before": ["inner"]},
            {"interrupt_after": ["begin"]},
            {"interrupt_after": "*"},
            {"interrupt_before": "*", "interrupt_after": ["begin"]},
        )
    ]


if __name__ == "__main__":
    print_outcomes([questions, questions_on_a_loop, breakpoints])
