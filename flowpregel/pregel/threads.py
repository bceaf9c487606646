"""The reading, listing and editing of the states of a graph's threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from flowpregel._core.program import Options
from flowpregel._core.records import Saved
from flowpregel._core.stream_events import checkpoint_config
from flowpregel._engine.inbox import now
from flowpregel._interrupts import defer_interrupts
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.pregel import snapshot
from flowpregel.pregel.config import Config, ParsedConfig, parse
from flowpregel.pregel.definition import GraphDefinition
from flowpregel.pregel.edits import COPY, StateUpdate, copy_updates, edited
from flowpregel.pregel.graph_drawing import GraphDrawing
from flowpregel.pregel.invocation import options_for_saver
from flowpregel.pregel.snapshot import StateSnapshot

if TYPE_CHECKING:
    from flowpregel._inspection.run_table import RunDrawing


class OpenThread(NamedTuple):
    """An opened thread: the parts that are needed to read and edit a thread of a graph,
    or of a graph nested in it.
    """

    definition: GraphDefinition
    """The parts of the graph that the thread belongs to."""
    saver: BaseCheckpointSaver
    """The saver of the thread."""
    config: ParsedConfig
    """The config that names the thread."""


@dataclass(frozen=True, slots=True)
class GraphThreads:
    """A reader and editor of the threads of a graph.

    The methods take configs that `config.merged` has merged.

    Args:
        definition: The parts of the graph.
    """

    definition: GraphDefinition

    def open(self, config: Config) -> OpenThread:
        """Return the thread that a config names.

        Args:
            config: A config that names the thread, and perhaps the namespace of a
                nested graph.

        Raises:
            ConfigurationError: There is no checkpointer, or no such nested graph.
        """
        definition = self.definition
        saver = definition.saver
        parsed = parse(config)
        if saver is None:
            raise ConfigurationError(
                f"No checkpointer set: graph {definition.name!r} has no stored state; "
                "pass checkpointer= where it is built (MISSING_CHECKPOINTER)"
            )
        path = _node_names(parsed.namespace)
        for name in path:
            graph = dict(definition.subgraphs()).get(name)
            if graph is None:
                raise ConfigurationError(
                    f"Subgraph {'|'.join(path)!r} not found in graph "
                    f"{self.definition.name!r}"
                )
            definition = graph.definition
            saver = definition.saver or saver
        return OpenThread(definition, saver, parsed)

    @defer_interrupts()
    def state(
        self,
        config: Config,
        *,
        deep: bool,
    ) -> StateSnapshot:
        """Return the state of a thread.

        Args:
            config: Names the thread, and perhaps a checkpoint.
            deep: Whether to include the states of nested graphs.
        """
        definition, saver, parsed = self.open(config)
        saved = saver.load(parsed.address)
        if saved is None:
            return snapshot.empty_snapshot(dict(config))
        return snapshot.snapshot_of(
            definition,
            saver,
            saved,
            live=parsed.checkpoint_id is None,
            deep=deep,
        )

    def history(
        self,
        config: Config,
        *,
        filter: Mapping[str, Any] | None,
        before: Config | None,
        limit: int | None,
    ) -> Iterator[StateSnapshot]:
        """Yield the states of a thread's checkpoints, newest first.

        The arguments are those of `Pregel.get_state_history`.
        """
        definition, saver, parsed = self.open(config)
        before_id = None if before is None else parse(before).checkpoint_id
        history = saver.history(
            replace(parsed.address, checkpoint_id=None),
            filter=filter,
            before=before_id,
            limit=limit,
        )
        for saved in snapshot.with_near_seeds(definition.program, history):
            yield snapshot.snapshot_of(definition, saver, saved)

    def update(
        self,
        config: Config,
        supersteps: Sequence[Sequence[Any]],
    ) -> dict[str, Any]:
        """Apply supersteps of updates, and return the config of the last checkpoint.

        Args:
            config: Names the thread, and perhaps a checkpoint to branch from.
            supersteps: The arguments of `StateUpdate`, for each update of each
                superstep.

        Raises:
            ConfigurationError: A superstep has no update.
            InvalidUpdateError: An update cannot be made.
        """
        if not supersteps:
            raise ConfigurationError("No supersteps provided")
        if not all(supersteps):
            raise ConfigurationError(
                "No updates provided: each superstep needs at least one"
            )
        thread = self.open(config)
        program = thread.definition.program
        saver = thread.saver
        address = thread.config.address
        pending = deque(
            [StateUpdate(*update) for update in updates] for updates in supersteps
        )
        holding = saver.lease(address.thread_id, address.namespace)
        with defer_interrupts(), holding as lease:
            while pending:
                updates = pending.popleft()
                saved = saver.load(address)
                options = _options_of_edit(thread, saved, lease.fence)
                batch = edited(
                    program,
                    options,
                    saved,
                    updates,
                )
                saver.commit((batch,))
                assert batch.checkpoint is not None
                address = replace(address, checkpoint_id=batch.checkpoint.id)
                first = updates[0]
                if first.as_node == COPY and isinstance(first.values, list):
                    copied = saver.load(address)
                    assert copied is not None
                    pending.extendleft(copy_updates(program, copied, first.values))
        return checkpoint_config(address, thread.config.checkpoint_map)

    @defer_interrupts()
    def last_run(
        self,
        config: Config,
        *,
        xray: bool | int,
        limit: int | None,
    ) -> RunDrawing:
        """Return the tasks of a thread's last run.

        The arguments are those of `Pregel.get_run`.
        """
        # The modules are seldom needed, so they are not imported with the package.
        from flowpregel._inspection.run_table import RunDrawing  # noqa: PLC0415
        from flowpregel._inspection.run_tasks import (  # noqa: PLC0415
            RunTaskReader,
            last_run,
        )

        definition, saver, parsed = self.open(config)
        depth = 1 << 30 if xray is True else int(xray)
        history = last_run(saver, parsed.address, limit)
        tasks = RunTaskReader(definition, saver).tasks(history, depth)
        leaves = GraphDrawing(definition).graph(xray=xray).leaves()
        nodes = {
            id_: shape.name for id_, shape in leaves.items() if shape.kind == "node"
        }
        return RunDrawing(tuple(tasks), nodes)


def _node_names(namespace: str) -> list[str]:
    """Return the names of the nodes in a namespace, from the outermost node to the one
    that runs the nested graph.
    """
    names: list[str] = []
    for part in namespace.split("|"):
        name, _, _ = part.partition(":")
        if name and not name.isdigit():
            names.append(name)
    return names


def _options_of_edit(
    thread: OpenThread,
    saved: Saved | None,
    fence: int | None,
) -> Options:
    """Return the options with which an edit of a thread is saved.

    Args:
        thread: The edited thread.
        saved: The edited checkpoint, or None if the thread has none.
        fence: The fence of the thread's lease: a number which the store compares at
            each commit, so that a process that has lost the lease cannot write.
    """
    address = thread.config.address
    metadata = dict(thread.config.metadata)
    if saved is not None:
        parents = saved.checkpoint.metadata.get("parents")
        if parents:
            metadata["parents"] = parents
    options = Options(
        address=replace(address, checkpoint_id=None),
        namespace=address.namespace,
        metadata=metadata,
        fence=fence,
        now=now(),
    )
    return options_for_saver(options, thread.saver)
