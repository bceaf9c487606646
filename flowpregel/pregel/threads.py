"""The states of threads: read, listed, and edited from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowpregel._core.program import Options
from flowpregel._core.records import Address, Saved, Task
from flowpregel._engine.inbox import now
from flowpregel._interrupts import held
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.pregel.config import Config, ParsedConfig, config_for, parse
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.edit import COPY, Edit, StateUpdate, grouped
from flowpregel.pregel.runner import for_saver
from flowpregel.pregel.snapshot import StateSnapshot, empty_snapshot, snapshot, with_near_seeds


@dataclass(frozen=True, slots=True)
class ThreadStates:
    """The states of the threads of a graph; `Pregel` documents the arguments.

    Args:
        graph: The outermost graph. A config may name a namespace of one in it.
    """

    graph: GraphDefinition

    def opened(self, config: Config) -> tuple[GraphDefinition, BaseCheckpointSaver, ParsedConfig]:
        """Return the graph whose namespace a config names, the saver, and the config.

        Raises:
            ConfigurationError: There is no checkpointer, or no such graph.
        """
        graph, saver, parsed = self.graph, self.graph.saver, parse(config)
        if saver is None:
            raise ConfigurationError(
                f"No checkpointer set: graph {graph.name!r} keeps no state to look at; "
                "pass checkpointer= where it is built"
            )
        if not parsed.namespace:
            return graph, saver, parsed
        parts = [part.split(":", 1)[0] for part in parsed.namespace.split("|")]
        path = "|".join(part for part in parts if not part.isdigit())
        for _, inner in graph.get_subgraphs(namespace=path):
            return inner, saver, parsed
        raise ConfigurationError(f"Subgraph {path!r} not found in graph {graph.name!r}")

    def state(self, config: Config, *, deep: bool) -> StateSnapshot:
        """Return a thread's state; *deep*: with the states of nested graphs."""
        graph, saver, parsed = self.opened(config)
        saved = saver.load(parsed.address)
        if saved is None:
            return empty_snapshot(dict(config))
        return snapshot_of(graph, saver, saved, live=parsed.checkpoint_id is None, deep=deep)

    def history(
        self, config: Config, *, before: Config | None, **asked: Any
    ) -> Iterator[StateSnapshot]:
        """Yield a thread's states, newest first; *asked*: ``filter`` and ``limit``."""
        graph, saver, parsed = self.opened(config)
        bound = None if before is None else parse(before).checkpoint_id
        address = replace(parsed.address, checkpoint_id=None)
        for saved in with_near_seeds(graph.program, saver.history(address, before=bound, **asked)):
            yield snapshot_of(graph, saver, saved)

    def update(self, config: Config, supersteps: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Apply supersteps of updates, and return the config of the last checkpoint."""
        if not supersteps:
            raise ConfigurationError("No supersteps provided")
        if not all(supersteps):
            raise ConfigurationError("No updates provided: each superstep needs at least one")
        graph, saver, parsed = self.opened(config)
        address = parsed.address
        with held(), saver.lease(address.thread_id, address.namespace) as lease:
            for updates in supersteps:
                address = _edited(graph, saver, parsed, address, updates, lease.fence)
        return config_for(address, parsed.checkpoint_map)


def snapshot_of(
    graph: GraphDefinition,
    saver: BaseCheckpointSaver,
    saved: Saved,
    *,
    live: bool = False,
    deep: bool = False,
) -> StateSnapshot:
    """Return what *saved* holds; *deep*: with the states of nested graphs."""

    def state_of(task: Task) -> Any:
        inner = task.node.graph
        if not isinstance(inner, GraphDefinition) or inner.checkpointer is False:
            return None
        address = Address(saved.address.thread_id, inner.namespace_at(task.namespace))
        configurable = {"thread_id": address.thread_id}
        if not deep:
            return {"configurable": {**configurable, "checkpoint_ns": address.namespace}}
        kept = saver.load(address)
        if kept is None:
            return empty_snapshot({"configurable": configurable})
        return snapshot_of(inner, saver, kept, live=True, deep=True)

    return snapshot(graph.program, saved, live=live, task_state=state_of)


def _edited(
    graph: GraphDefinition,
    saver: BaseCheckpointSaver,
    parsed: ParsedConfig,
    address: Address,
    updates: Sequence[Any],
    fence: int | None,
) -> Address:
    """Commit one superstep of updates, and return where it is."""
    updates = [StateUpdate(*update) for update in updates]
    saved = saver.load(address)
    parents = {} if saved is None else saved.checkpoint.metadata.get("parents")
    options = Options(
        address=replace(address, checkpoint_id=None),
        namespace=address.namespace,
        metadata={**parsed.metadata, **({"parents": parents} if parents else {})},
        fence=fence,
        now=now(),
    )
    batch = Edit(graph.program, for_saver(options, saver)).batch(saved, updates)
    saver.commit((batch,))
    assert batch.checkpoint is not None
    made = replace(address, checkpoint_id=batch.checkpoint.id)
    if updates[0].as_node == COPY and isinstance(updates[0].values, list) and updates[0].values:
        copied = saver.load(made)
        assert copied is not None
        again = grouped(graph.program, copied, updates[0].values)
        return _edited(graph, saver, parsed, made, again, fence)
    return made
