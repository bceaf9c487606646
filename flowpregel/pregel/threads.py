"""The states of threads: read, listed, and edited from outside.

An edit is a superstep: as if a node had written, or as new input.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from flowpregel._core import ids, records
from flowpregel._core.barrier import (
    TaskOutput,
    barrier_of,
    check_writes,
    due_nodes,
)
from flowpregel._core.effects import Commit, StepContext
from flowpregel._core.program import Options, Program
from flowpregel._core.records import (
    INPUT,
    INTERRUPT,
    NOTHING_DUE,
    PAUSED,
    TASKS,
    Node,
    Saved,
    Task,
)
from flowpregel._core.run import Run
from flowpregel._core.run_state import RunState, Update, new_state
from flowpregel._core.start import input_writes, not_before
from flowpregel._core.stream_events import StreamEvents, finished_writes
from flowpregel._engine.nested import now
from flowpregel._interrupts import held
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.context import Job, RunClient, Scope, current
from flowpregel.errors import (
    ConfigurationError,
    GraphInterrupt,
    InvalidUpdateError,
    ParentCommand,
)
from flowpregel.pregel import snapshot
from flowpregel.pregel.config import Config, ParsedConfig, config_for, parse
from flowpregel.pregel.definition import END, GraphDefinition
from flowpregel.pregel.resume import OpenCheckpoint, for_saver, open_checkpoint
from flowpregel.pregel.snapshot import StateSnapshot

COPY = "__copy__"


class StateUpdate(NamedTuple):
    """One update of a thread's state."""

    values: Any
    as_node: str | None = None
    """The node to act as; None: the one that wrote last."""
    task_id: str | None = None


def open_thread(
    graph: GraphDefinition, config: Config
) -> tuple[GraphDefinition, BaseCheckpointSaver, ParsedConfig]:
    """Return the graph whose namespace a config names, what keeps its states, and the
    config.

    Args:
        graph: The outermost graph.
        config: May name a namespace of a graph in it.

    Raises:
        ConfigurationError: There is no checkpointer, or no such graph.
    """
    inner, saver, parsed = graph, graph.saver, parse(config)
    if saver is None:
        raise ConfigurationError(
            f"No checkpointer set: graph {graph.name!r} keeps no state to look at; "
            "pass checkpointer= where it is built"
        )
    parts = [part.split(":", 1)[0] for part in parsed.namespace.split("|")]
    path = [part for part in parts if part and not part.isdigit()]
    for name in path:
        found = dict(inner.get_subgraphs()).get(name)
        if found is None:
            raise ConfigurationError(
                f"Subgraph {'|'.join(path)!r} not found in graph {graph.name!r}"
            )
        inner, saver = found, found.saver or saver
    return inner, saver, parsed


@held()
def thread_state(
    graph: GraphDefinition, config: Config, *, deep: bool
) -> StateSnapshot:
    """Return a thread's state; *deep*: with the states of nested graphs."""
    graph, saver, parsed = open_thread(graph, config)
    saved = saver.load(parsed.address)
    if saved is None:
        return snapshot.empty_snapshot(dict(config))
    return snapshot.snapshot_of(
        graph, saver, saved, live=parsed.checkpoint_id is None, deep=deep
    )


def thread_history(
    graph: GraphDefinition, config: Config, *, before: Config | None, **asked: Any
) -> Iterator[StateSnapshot]:
    """Yield a thread's states, newest first; *asked*: ``filter`` and ``limit``."""
    graph, saver, parsed = open_thread(graph, config)
    bound = None if before is None else parse(before).checkpoint_id
    address = replace(parsed.address, checkpoint_id=None)
    found = saver.history(address, before=bound, **asked)
    for saved in snapshot.with_near_seeds(graph.program, found):
        yield snapshot.snapshot_of(graph, saver, saved)


def update(
    graph: GraphDefinition, config: Config, supersteps: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Apply supersteps of updates, and return the config of the last checkpoint."""
    if not supersteps:
        raise ConfigurationError("No supersteps provided")
    if not all(supersteps):
        raise ConfigurationError(
            "No updates provided: each superstep needs at least one"
        )
    graph, saver, parsed = open_thread(graph, config)
    address = parsed.address
    with held(), saver.lease(address.thread_id, address.namespace) as lease:
        waiting = deque(
            [StateUpdate(*update) for update in updates] for updates in supersteps
        )
        while waiting:
            updates, saved = waiting.popleft(), saver.load(address)
            parents = {} if saved is None else saved.checkpoint.metadata.get("parents")
            options = Options(
                address=replace(address, checkpoint_id=None),
                namespace=address.namespace,
                metadata={
                    **parsed.metadata,
                    **({"parents": parents} if parents else {}),
                },
                fence=lease.fence,
                now=now(),
            )
            batch = edited(graph.program, for_saver(options, saver), saved, updates)
            saver.commit((batch,))
            assert batch.checkpoint is not None
            address = replace(address, checkpoint_id=batch.checkpoint.id)
            if updates[0].as_node == COPY and isinstance(updates[0].values, list):
                copied = saver.load(address)
                assert copied is not None
                waiting.extendleft(_of_copy(graph.program, copied, updates[0].values))
    return config_for(address, parsed.checkpoint_map)


# ---------------------------------------------------------------- edits


def edited(
    program: Program,
    options: Options,
    saved: Saved | None,
    updates: Sequence[StateUpdate],
) -> records.Batch:
    """Return what one superstep of updates on *saved* adds to a thread.

    Args:
        program: Whose thread it is.
        options: Where its checkpoints are kept, and how.
        saved: The checkpoint to edit; None: nothing happened on the thread.
        updates: At least one.

    Raises:
        InvalidUpdateError: An update that cannot be made; the message says why.
    """
    first = updates[0]
    special = first.as_node in (INPUT, COPY) or (
        first.as_node == END and first.values is None
    )
    if special and len(updates) > 1:
        raise InvalidUpdateError(
            f"as_node={first.as_node!r} must be the only update of its superstep"
        )
    run, opened = _run_at(program, options, saved)
    source: records.Source = "update"
    if first.as_node == COPY:
        _copy(run, saved)
        source = "fork"
    elif first.as_node == INPUT:
        writes = input_writes(program, first.values)
        if not writes:
            raise InvalidUpdateError(
                f"the update as input has nothing for {program.input_channels}"
            )
        run.apply([TaskOutput(writes, INPUT)])
        source = "input"
    elif not special:
        run.apply(_written(run, opened, updates))
    elif opened is not None:
        # What is due ends: what tasks that are done wrote is applied, the others are
        # dropped.
        for task in opened.tasks:
            stored = opened.pending.get(task.id, ())
            task.attempt.writes = tuple(finished_writes(stored))
        run.apply(barrier_of(opened.tasks))
    if source != "input" or saved is not None:
        run.cursor.step += 1
    # A person who edits a thread decides whether it goes on.
    is_due = next(due_nodes(program, run.state, run.state.updated), None) is not None
    commit = run.save_checkpoint(source, PAUSED if is_due else NOTHING_DUE)[0]
    assert isinstance(commit, Commit)
    return commit.batch


def _run_at(
    program: Program, options: Options, saved: Saved | None
) -> tuple[Run, OpenCheckpoint | None]:
    """Return a run that stands at *saved*, and what that holds."""
    events = StreamEvents(frozenset(), (), ())
    if saved is None:
        return Run(program, options, events, new_state(program), options.now), None
    at = not_before(options.now, saved)
    opened = open_checkpoint(program, saved, options.next_version, at)
    run = Run(program, options, events, opened.state, at)
    run.cursor.checkpoint_id = run.cursor.stored_id = saved.checkpoint.id
    run.cursor.step = saved.checkpoint.step
    # What a Command wrote is pending: the edited checkpoint is the first to hold it.
    run.state.unsaved = opened.applied
    return run, opened


def _copy(run: Run, saved: Saved | None) -> None:
    """Have *run* keep a copy of *saved*, as a child of the same parent."""
    if saved is None:
        raise InvalidUpdateError("there is no checkpoint to copy on this thread")
    run.cursor.stored_id = saved.checkpoint.parent_id
    if not run.options.keeps_deltas:
        # The saver may take what did not change from the parent, which is older.
        kept = run.state.channels.keys() & saved.checkpoint.channel_versions.keys()
        run.state.unsaved = Update(0, sorted(kept))


def _written(
    run: Run, opened: OpenCheckpoint | None, updates: Sequence[StateUpdate]
) -> list[TaskOutput]:
    """Return what nodes bring that *updates* act as, kept as writes of the tasks they
    are.
    """
    task_ids = _ids_by_node(opened)
    task_outputs = []
    for index, update in enumerate(updates):
        if update.as_node is None and len(updates) > 1:
            raise InvalidUpdateError(
                "as_node is required when applying multiple updates"
            )
        node = _node_of(run.program, run.state, update.as_node)
        writes = tuple(_run_writers(run.program, node, update.values, run.state))
        check_writes(run.program, f"the update as {node.name!r}", writes)
        task_outputs.append(TaskOutput(writes, node.name, (INTERRUPT,)))
        if opened is not None and opened.saved.is_latest:
            known = task_ids[node.name]
            own = ids.task_id(run.cursor.checkpoint_id, INTERRUPT, index)
            task_id = update.task_id or (known.popleft() if known else own)
            kept = [write for write in writes if write[0] != TASKS]
            run.store_writes(task_id, f"~{INTERRUPT}, {index:010d}", kept)
    return task_outputs


def _node_of(program: Program, state: RunState, as_node: str | None) -> Node:
    name = _last_writer(program, state) if as_node is None else as_node
    if name is None:
        raise InvalidUpdateError(
            "Ambiguous update, specify as_node: several nodes wrote last, or none did"
        )
    node = program.nodes.get(name)
    if node is None:
        raise InvalidUpdateError(
            f"Node {name!r} does not exist; the nodes are: "
            f"{', '.join(sorted(program.nodes))}"
        )
    if not node.writers:
        raise InvalidUpdateError(
            f"Node {name!r} has no writers, so it cannot update the state"
        )
    return node


def _ids_by_node(opened: OpenCheckpoint | None) -> dict[str, deque[str]]:
    """Return the ids of the tasks that are due, by the name of their node."""
    found: dict[str, deque[str]] = defaultdict(deque)
    for task in opened.tasks if opened else ():
        found[task.name].append(task.id)
    return found


def _last_writer(program: Program, state: RunState) -> str | None:
    """Return the node that ran last; None if that is not one node."""
    if len(program.nodes) == 1:
        return next(iter(program.nodes))
    seen = sorted(
        (version, name)
        for name, versions in state.seen.items()
        if name in program.nodes
        for version in versions.values()
    )
    if not seen:
        channels = program.input_channels
        return (
            channels
            if isinstance(channels, str) and channels in program.nodes
            else None
        )
    is_tie = len(seen) > 1 and seen[-1][0] == seen[-2][0]
    return None if is_tie else seen[-1][1]


def _of_copy(
    program: Program, saved: Saved, items: Sequence[Any]
) -> Iterator[list[StateUpdate]]:
    """Yield the superstep of a copy's updates, if there are any, each with the id of a
    due task.
    """
    task_ids = _ids_by_node(open_checkpoint(program, saved))
    by_node: dict[str | None, list[StateUpdate]] = defaultdict(list)
    for item in items:
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) < 2:
            raise InvalidUpdateError(
                f"an update of a copy is (values, as_node), not {item!r}"
            )
        known = task_ids[item[1]]
        task_id = known.popleft() if known else None
        by_node[item[1]].append(StateUpdate(item[0], item[1], task_id))
    if by_node:
        yield [update for updates in by_node.values() for update in updates]


def _run_writers(
    program: Program, node: Node, value: Any, state: RunState
) -> Sequence[records.Write]:
    """Return what the writers of *node* write for *value*, outside any run."""
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    task = Task("", node, records.Kind.PULL, value, "", namespace=node.name)
    place = StepContext("", "", 0, 2, channels=state.channels, managed=program.managed)
    scope = Scope(Job(task, place), RunClient())
    token = current.set(scope)
    try:
        for writer in node.writers:
            written = writer(value, scope)
            is_async = hasattr(written, "__await__")
            scope.writes.extend(asyncio.run(written) if is_async else written)
    except ParentCommand:
        raise InvalidUpdateError(
            "There is no parent graph: Command.PARENT in an update"
        ) from None
    except GraphInterrupt as asked:
        raise InvalidUpdateError(
            f"the writers of node {node.name!r} cannot ask here: {asked.interrupts}"
        ) from None
    finally:
        current.reset(token)
    return scope.writes
