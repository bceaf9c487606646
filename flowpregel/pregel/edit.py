"""Edits a thread's state from outside: as if a node had written, or as new input."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowpregel._core import effects, ids, records
from flowpregel._core.program import Options, Program, State, new_state
from flowpregel._core.records import INPUT, INTERRUPT, TASKS, Batch, Node, Saved, Source, Write
from flowpregel._core.run_state import Run
from flowpregel._core.start import input_writes, not_before
from flowpregel._core.stream_events import StreamEvents, outputs
from flowpregel._core.update import Writes, barrier_of, check_writes
from flowpregel._engine.drivers import run_to_end
from flowpregel.context import Job, RunClient, Scope, current
from flowpregel.errors import GraphInterrupt, InvalidUpdateError, ParentCommand
from flowpregel.pregel.snapshot import OpenCheckpoint, open_checkpoint

END = "__end__"
COPY = "__copy__"


class StateUpdate(NamedTuple):
    """One update of a thread's state."""

    values: Any
    as_node: str | None = None
    """The node to act as; None: the one that wrote last."""
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """Makes the batch of one superstep of updates.

    Args:
        program: Whose thread it is.
        options: Where its checkpoints are kept, and how.
    """

    program: Program
    options: Options

    def batch(self, saved: Saved | None, updates: Sequence[StateUpdate]) -> Batch:
        """Return what the superstep of *updates* on *saved* adds to the thread.

        Raises:
            InvalidUpdateError: An update that cannot be made; the message says why.
        """
        first = updates[0]
        special = first.as_node in (INPUT, COPY) or (first.as_node == END and first.values is None)
        if special and len(updates) > 1:
            raise InvalidUpdateError(
                f"as_node={first.as_node!r} must be the only update of its superstep"
            )
        run, opened = self._opened(saved)
        step = run.step + 1
        if first.as_node == COPY:
            if saved is None:
                raise InvalidUpdateError("there is no checkpoint to copy on this thread")
            run.kept_id = saved.checkpoint.parent_id
            return self._sealed(run, "fork", step)
        if first.as_node == INPUT:
            run.apply([self._as_input(first)])
            return self._sealed(run, "input", -1 if saved is None else step)
        if not special:
            run.apply(self._as_nodes(run, opened, updates))
        elif opened is not None:
            # What is due ends: what tasks that are done wrote is applied, the others are dropped.
            for task in opened.tasks:
                task.writes = tuple(outputs(opened.pending.get(task.id, ())))
            run.apply(barrier_of(opened.tasks))
        return self._sealed(run, "update", step)

    def _opened(self, saved: Saved | None) -> tuple[Run, OpenCheckpoint | None]:
        """Return a run that stands at *saved*, and what that holds."""
        opened = None
        now = self.options.now
        if saved is not None:
            now = not_before(now, saved)
            opened = open_checkpoint(self.program, saved, self.options.next_version, now)
        run = Run(
            program=self.program,
            options=self.options,
            stream_events=StreamEvents(frozenset(), (), ()),
            state=new_state(self.program) if opened is None else opened.state,
            now=now,
        )
        if opened is not None:
            run.kept_id = opened.saved.checkpoint.id
            run.step = opened.saved.checkpoint.step
            if opened.applied is not None:
                # What a Command wrote is pending: the edited checkpoint is the first to hold it.
                run.unsaved = opened.applied
        return run, opened

    def _sealed(self, run: Run, source: Source, step: int) -> Batch:
        """Return the batch with the edited state as a checkpoint."""
        run.source, run.step = source, step
        run.parent_id = run.kept_id
        run.updated = None
        run.checkpoint_id = ids.checkpoint_id(run.tick(), step)
        return run.batch(run.make_checkpoint())

    # ------------------------------------------------------------ the kinds of updates

    def _as_input(self, update: StateUpdate) -> Writes:
        writes = list(input_writes(self.program, update.values))
        if not writes:
            raise InvalidUpdateError(
                f"the update as input has nothing for {self.program.input_channels}"
            )
        return Writes(writes, INPUT)

    def _as_nodes(
        self, run: Run, opened: OpenCheckpoint | None, updates: Sequence[StateUpdate]
    ) -> list[Writes]:
        task_ids = _ids_by_node(opened)
        brought = []
        for index, update in enumerate(updates):
            node = self._node_of(run.state, update, alone=len(updates) == 1)
            writes = tuple(_run_writers(self.program, node, update.values, run.state))
            check_writes(self.program, f"the update as {node.name!r}", writes)
            brought.append(Writes(writes, node.name, (INTERRUPT,)))
            if opened is not None and opened.saved.is_latest:
                known = task_ids[node.name]
                base = opened.saved.checkpoint.id
                own = ids.task_id(base, INTERRUPT, index)
                task_id = update.task_id or (known.popleft() if known else own)
                kept = [write for write in writes if write[0] != TASKS]
                run.keep(base, task_id, f"~{INTERRUPT}, {index:010d}", kept)
        return brought

    def _node_of(self, state: State, update: StateUpdate, *, alone: bool) -> Node:
        if update.as_node is None and not alone:
            raise InvalidUpdateError("as_node is required when applying multiple updates")
        name = last_writer(self.program, state) if update.as_node is None else update.as_node
        if name is None:
            raise InvalidUpdateError(
                "Ambiguous update, specify as_node: several nodes wrote last, or none did"
            )
        node = self.program.nodes.get(name)
        if node is None:
            raise InvalidUpdateError(
                f"Node {name!r} does not exist; the nodes are: "
                f"{', '.join(sorted(self.program.nodes))}"
            )
        if not node.writers:
            raise InvalidUpdateError(f"Node {name!r} has no writers, so it cannot update the state")
        return node


def _ids_by_node(opened: OpenCheckpoint | None) -> dict[str, deque[str]]:
    """Return the ids of the tasks that are due, by the name of their node."""
    found: dict[str, deque[str]] = defaultdict(deque)
    for task in opened.tasks if opened else ():
        found[task.name].append(task.id)
    return found


def last_writer(program: Program, state: State) -> str | None:
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
        return channels if isinstance(channels, str) and channels in program.nodes else None
    is_tie = len(seen) > 1 and seen[-1][0] == seen[-2][0]
    return None if is_tie else seen[-1][1]


def grouped(program: Program, saved: Saved, items: Sequence[Any]) -> list[StateUpdate]:
    """Return the updates of a ``__copy__`` with values, each with the id of a due task."""
    task_ids = _ids_by_node(open_checkpoint(program, saved))
    by_node: dict[str | None, list[StateUpdate]] = defaultdict(list)
    for item in items:
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) < 2:
            raise InvalidUpdateError(f"an update of a copy is (values, as_node), not {item!r}")
        update = StateUpdate(item[0], item[1])
        known = task_ids[item[1]]
        by_node[item[1]].append(update._replace(task_id=known.popleft() if known else None))
    return [update for updates in by_node.values() for update in updates]


def _run_writers(program: Program, node: Node, value: Any, state: State) -> Sequence[Write]:
    """Return what the writers of *node* write for *value*, outside any run."""
    task = records.Task("", node, records.Kind.PULL, value, "", namespace=node.name)
    managed = {name: item.get(0, 2) for name, item in program.managed.items()}
    place = effects.StepId("", "", 0, 2)
    scope = Scope(Job(task, place, channels=state.channels, managed=managed), RunClient())
    token = current.set(scope)
    try:
        for writer in node.writers:
            written = writer(value, scope)
            is_async = hasattr(written, "__await__")
            scope.writes.extend(run_to_end(written) if is_async else written)
    except ParentCommand:
        raise InvalidUpdateError("There is no parent graph: Command.PARENT in an update") from None
    except GraphInterrupt as asked:
        raise InvalidUpdateError(
            f"the writers of node {node.name!r} cannot ask here: {asked.interrupts}"
        ) from None
    finally:
        current.reset(token)
    return scope.writes
