"""A thread's state: looked at, its history, and edited from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowpregel._core.commands import Command
from flowpregel._core.program import Options, State
from flowpregel._core.records import Address, Escaped, Kind, Node, Raised, Returned, Task, Write
from flowpregel._engine.drivers import elsewhere, run_to_end
from flowpregel._engine.inbox import now
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.context import RunClient, TaskInfo
from flowpregel.errors import ConfigurationError, InvalidUpdateError
from flowpregel.executors.attempt import aperform, perform
from flowpregel.executors.base import Job
from flowpregel.pregel.config import Parsed, merged, of_keywords, parse
from flowpregel.pregel.edit import COPY, Edit, StateUpdate, grouped
from flowpregel.pregel.history import with_near_seeds
from flowpregel.pregel.nesting import Nesting
from flowpregel.pregel.request import with_saver
from flowpregel.pregel.snapshot import StateSnapshot, empty_snapshot, snapshot

Config = Mapping[str, Any]


class Threads(Nesting):
    """The part of `Pregel` that looks at threads, and edits them.

    Each ``a...`` method is its sync form, run on another OS thread.
    """

    def get_state(
        self, config: Config | None = None, *, subgraphs: bool = False, **settings: Any
    ) -> StateSnapshot:
        """Return the state of a thread: as it is, or at one of its checkpoints.

        Without a ``checkpoint_id`` it shows how things stand, the output of tasks
        that are done included; with one, how that step began.

        Args:
            config: Names the thread; or pass ``thread_id=`` (and ``checkpoint_id=``).
            subgraphs: Show the states of nested graphs too, in the tasks they are.

        Raises:
            ConfigurationError: There is no checkpointer, or no thread_id.
        """
        saver, parsed = self._opened(config, settings)
        graph = self._graph_at(parsed.namespace)
        address = parsed.address
        saved = saver.load(address)
        if saved is None:
            return empty_snapshot(merged(self.config, config, of_keywords(settings)))
        return graph.snapshot_of(saver, saved, address.checkpoint_id is None, deep=subgraphs)

    def snapshot_of(
        self, saver: BaseCheckpointSaver, saved: Any, live: bool, *, deep: bool
    ) -> StateSnapshot:
        """Return what *saved* holds; *deep*: with the states of nested graphs."""

        def state_of(task: Task) -> Any:
            graph = task.node.graph
            if not isinstance(graph, Threads) or graph.checkpointer is False:
                return None
            address = Address(saved.address.thread_id, graph.namespace_of(task))
            if not deep:
                configurable = {"thread_id": address.thread_id, "checkpoint_ns": address.namespace}
                return {"configurable": configurable}
            inner = saver.load(address)
            if inner is None:
                return empty_snapshot({"configurable": {"thread_id": address.thread_id}})
            return graph.snapshot_of(saver, inner, True, deep=True)

        return snapshot(self.program, saved, live=live, task_state=state_of)

    def get_state_history(
        self,
        config: Config | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
        **settings: Any,
    ) -> Iterator[StateSnapshot]:
        """Yield the states of a thread's checkpoints, newest first.

        Args:
            config: Names the thread; or pass ``thread_id=``.
            filter: Only checkpoints whose metadata has these values.
            before: Only those before the one this config names.
            limit: At most this many.
        """
        saver, parsed = self._opened(config, settings)
        graph = self._graph_at(parsed.namespace)
        bound = None if before is None else parse(before).checkpoint_id
        address = replace(parsed.address, checkpoint_id=None)
        found = saver.history(address, filter=filter, before=bound, limit=limit)
        for saved in found if limit == 1 else with_near_seeds(graph.program, found):
            yield graph.snapshot_of(saver, saved, False, deep=False)

    def update_state(
        self,
        config: Config | None = None,
        values: Any = None,
        as_node: str | None = None,
        task_id: str | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Write to a thread's state as if a node had, and return the new checkpoint's config.

        Args:
            config: Names the thread, and perhaps a checkpoint to branch from.
            values: What the node would have returned.
            as_node: The node to act as; by default the one that wrote last.
                ``"__input__"`` acts as new input, ``"__end__"`` with None drops
                what is still to do, ``"__copy__"`` copies the checkpoint.
            task_id: The task that the write is to count as.

        Raises:
            InvalidUpdateError: The update cannot be made; the message says why.
        """
        updates = [[StateUpdate(values, as_node, task_id)]]
        return self.bulk_update_state(config, updates, **settings)

    def bulk_update_state(
        self,
        config: Config | None,
        supersteps: Sequence[Sequence[StateUpdate]],
        **settings: Any,
    ) -> dict[str, Any]:
        """Apply several supersteps of updates, and return the config of the last checkpoint.

        Args:
            config: Names the thread, and perhaps a checkpoint to branch from.
            supersteps: For each superstep its updates: `StateUpdate` or tuples
                ``(values, as_node)`` or ``(values, as_node, task_id)``.

        Raises:
            ConfigurationError: There is nothing to apply.
            InvalidUpdateError: An update cannot be made.
        """
        if not supersteps:
            raise ConfigurationError("No supersteps provided")
        if not all(supersteps):
            raise ConfigurationError("No updates provided: each superstep needs at least one")
        saver, parsed = self._opened(config, settings)
        graph = self._graph_at(parsed.namespace)
        address = parsed.address
        with saver.lease(address.thread_id, address.namespace) as lease:
            for updates in supersteps:
                address = graph.edit_superstep(saver, parsed, address, updates, lease.fence)
        return _config_of(address, parsed)

    def edit_superstep(
        self,
        saver: BaseCheckpointSaver,
        parsed: Parsed,
        address: Address,
        updates: Sequence[Any],
        fence: int | None,
    ) -> Address:
        """Commit one superstep of updates, and return where it is."""
        updates = [StateUpdate(*update) for update in updates]
        saved = saver.load(address)
        options = Options(
            address=Address(address.thread_id, address.namespace),
            namespace=address.namespace,
            metadata=_metadata(parsed, saved),
            fence=fence,
            now=now(),
        )
        edit = Edit(self.program, with_saver(options, saver), self._run_writers)
        batch = edit.batch(saved, updates)
        saver.commit((batch,))
        assert batch.checkpoint is not None
        made = replace(address, checkpoint_id=batch.checkpoint.id)
        if updates[0].as_node == COPY and isinstance(updates[0].values, list) and updates[0].values:
            copied = saver.load(made)
            assert copied is not None
            again = grouped(self.program, copied, updates[0].values)
            return self.edit_superstep(saver, parsed, made, again, fence)
        return made

    def _run_writers(self, node: Node, value: Any, state: State) -> Sequence[Write]:
        info = TaskInfo(task_id="", name=node.name, namespace=node.name, step=0, stop=2)
        bare = replace(node, steps=(), role="leaf", graph=None)
        managed = {name: item.get(0, 2) for name, item in self.program.managed.items()}
        job = Job(
            info=info,
            kind=Kind.PULL,
            node=bare,
            input=value,
            channels=state.channels,
            managed=managed,
        )
        outcome = perform(job, _NO_ENDS)
        if isinstance(outcome, Raised) and isinstance(outcome.error, TypeError):
            outcome = run_to_end(aperform(job, _NO_ENDS))
        match outcome:
            case Returned():
                return outcome.writes
            case Raised():
                raise outcome.error
            case Escaped(Command()):
                raise InvalidUpdateError("There is no parent graph: Command.PARENT in an update")
        raise InvalidUpdateError(f"the writers of node {node.name!r} cannot run here: {outcome}")

    # ------------------------------------------------------------ where

    def _opened(
        self, config: Config | None, settings: Mapping[str, Any]
    ) -> tuple[BaseCheckpointSaver, Parsed]:
        parsed = parse(merged(self.config, config, of_keywords(settings)))
        if not isinstance(self.checkpointer, BaseCheckpointSaver):
            raise ConfigurationError(
                f"No checkpointer set: graph {self.name!r} keeps no state to look at; "
                "pass checkpointer= where it is built"
            )
        return self.checkpointer, parsed

    def _graph_at(self, namespace: str) -> Threads:
        """Return the graph that keeps its checkpoints in *namespace*."""
        if not namespace:
            return self
        parts = [part.split(":", 1)[0] for part in namespace.split("|")]
        path = "|".join(part for part in parts if not part.isdigit())
        for found, graph in self.get_subgraphs(namespace=path):
            if found == path and isinstance(graph, Threads):
                return graph
        raise ConfigurationError(f"Subgraph {path!r} not found in graph {self.name!r}")

    # ------------------------------------------------------------ async forms

    async def aget_state(
        self, config: Config | None = None, *, subgraphs: bool = False, **settings: Any
    ) -> StateSnapshot:
        """`get_state`, without blocking the event loop."""
        return await elsewhere(self.get_state, config, subgraphs=subgraphs, **settings)

    async def aget_state_history(
        self, config: Config | None = None, **asked: Any
    ) -> AsyncIterator[StateSnapshot]:
        """`get_state_history`, without blocking the event loop."""
        for item in await elsewhere(lambda: [*self.get_state_history(config, **asked)]):
            yield item

    async def aupdate_state(
        self,
        config: Config | None = None,
        values: Any = None,
        as_node: str | None = None,
        task_id: str | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """`update_state`, without blocking the event loop."""
        return await elsewhere(self.update_state, config, values, as_node, task_id, **settings)

    async def abulk_update_state(
        self,
        config: Config | None,
        supersteps: Sequence[Sequence[StateUpdate]],
        **settings: Any,
    ) -> dict[str, Any]:
        """`bulk_update_state`, without blocking the event loop."""
        return await elsewhere(self.bulk_update_state, config, supersteps, **settings)

    async def aget_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[str, Any]]:
        """`get_subgraphs`, as an async iterator."""
        for item in self.get_subgraphs(namespace=namespace, recurse=recurse):
            yield item


def _nothing(*_: Any) -> None:
    """Connect the writers of an update to no run."""


_NO_ENDS = RunClient(_nothing, _nothing, _nothing)


def _metadata(parsed: Parsed, saved: Any) -> dict[str, Any]:
    metadata = dict(parsed.metadata)
    if saved is not None and (parents := saved.checkpoint.metadata.get("parents")):
        metadata["parents"] = parents
    return metadata


def _config_of(address: Address, parsed: Parsed) -> dict[str, Any]:
    configurable: dict[str, Any] = {
        "thread_id": address.thread_id,
        "checkpoint_ns": address.namespace,
        "checkpoint_id": address.checkpoint_id,
    }
    if parsed.checkpoint_map:
        configurable["checkpoint_map"] = {
            **parsed.checkpoint_map,
            address.namespace: address.checkpoint_id,
        }
    return {"configurable": configurable}
