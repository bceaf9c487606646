"""Which tasks are due: planned from channels, versions, and what was seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, cast

from flowpregel._core import ids
from flowpregel._core.commands import Send
from flowpregel._core.effects import Call, StepId
from flowpregel._core.program import Program
from flowpregel._core.records import CALL, INTERRUPT, PULL, TASKS, Kind, Node, Task
from flowpregel._core.state import State
from flowpregel.channels import LastValue
from flowpregel.channels.base import MISSING

PUSHED = ("__pregel_push",)
"""What a `Send` is triggered by: no channel, so nothing is marked as seen."""
DEEPEST = 1_000
"""How deep tasks, or graphs, may be nested: as deep as Python's own calls, unless told otherwise.
In OS threads and worker processes no stack would end what calls itself for ever."""


def plan(
    program: Program, state: State, updated: Collection[str] | None, place: StepId
) -> list[Task]:
    """Return the tasks of the next superstep: PULL by node name, then PUSH by index.

    Args:
        program: The nodes and what triggers them.
        state: The channels as the last barrier left them.
        updated: The channels that may trigger a node; none, or None: any may.
        place: Where in the run this is.
    """
    tasks = []
    read: dict[tuple[int, int], Any] = {}
    for name in _candidates(program, state, updated):
        node = program.nodes[name]
        if _is_due(node, state):
            given = _input_of(node, program, state, place, read)
            path = f"~__pregel_pull, {node.name}"
            tasks.append(_task(node, PULL, given, path, place, node.triggers))
    topic = state.channels.get(TASKS)
    if topic is not None and topic.is_available():
        # A node may be gone since: who goes on with the thread is told so (`begin`).
        tasks.extend(
            _push(program, send, i, place)
            for i, send in enumerate(topic.get())
            if send.node in program.nodes
        )
    return tasks


def _candidates(program: Program, state: State, updated: Collection[str] | None) -> Sequence[str]:
    """Return the nodes that may be due.

    When nothing was updated that is any: of a channel that holds a value from the
    start nobody is told, so the nodes that it triggers run when nothing else is due.
    """
    if not updated:
        return sorted(program.nodes) if state.versions else []
    if len(updated) == 1:
        return program.triggers.get(next(iter(updated)), ())
    triggers = program.triggers
    return sorted({name for channel in triggers.keys() & updated for name in triggers[channel]})


def _is_due(node: Node, state: State) -> bool:
    """Return whether a trigger holds a value the node has not seen."""
    channels = state.channels
    seen = state.seen.get(node.name)
    for trigger in node.triggers:
        if not channels[trigger].is_available():
            continue
        if seen is None:
            break
        version = state.versions.get(trigger)
        last = seen.get(trigger)
        if version is not None and (last is None or version > last):  # type: ignore[operator]
            break
    else:
        return False
    read = node.channels
    return read == trigger or not isinstance(read, str) or channels[read].is_available()


def _input_of(
    node: Node, program: Program, state: State, place: StepId, read: dict[tuple[int, int], Any]
) -> Any:
    """Return what *node* is given; what several nodes *read* is read once, and copied for each."""
    name = node.channels
    if isinstance(name, str):
        channel = state.channels[name]
        value = channel if node.contexts else channel.get()
        return value if node.mapper is None else _mapped(node, value)
    key = id(name), id(node.mapper)
    if key not in read:
        value = _values_of(node, program, state, place)
        read[key] = value if node.mapper is None else _mapped(node, value)
    return copy(read[key])


def _values_of(node: Node, program: Program, state: State, place: StepId) -> dict[str, Any]:
    managed, channels, plain = program.managed, state.channels, program.plain
    holding = cast("Mapping[str, LastValue[Any]]", channels)
    values: dict[str, Any] = {}
    for name in node.channels:
        if name in plain:
            if (value := holding[name].value) is not MISSING:
                values[name] = value
        elif name in managed:
            values[name] = managed[name].get(place.step, place.stop)
        elif name in node.contexts:
            values[name] = channels[name]
        elif (channel := channels[name]).is_available():
            values[name] = channel.get()
    return values


def _mapped(node: Node, value: Any) -> Any:
    """Return the input that a node's own mapper makes of what was read."""
    assert node.mapper is not None
    try:
        return node.mapper(value)
    except Exception as error:
        error.add_note(f"while the input of node {node.name!r} was made")
        raise


def _push(program: Program, send: Send, index: int, place: StepId) -> Task:
    path = f"~__pregel_push, {index:010d}"
    node = program.nodes[send.node]
    task = _task(node, Kind.PUSH, send.arg, path, place, PUSHED)
    task.timeout = send.timeout or node.timeout
    return task


def _task(
    node: Node, kind: Kind, given: Any, path: str, place: StepId, triggers: tuple[str, ...]
) -> Task:
    namespace = f"{place.namespace}|{node.name}" if place.namespace else node.name
    identity = ids.planned_id(place.checkpoint_id, namespace, place.step, path, triggers)
    space = f"{namespace}:{identity}"
    return Task(identity, node, kind, given, path, triggers, space, None, node.timeout)


class CallPlanner:
    """Makes the tasks of the calls that bodies make.

    Args:
        place: Where the bodies run.
    """

    def __init__(self, place: StepId) -> None:
        self._place = place
        self._around = f"{place.namespace}|" if place.namespace else ""
        self._known: dict[str, tuple[Callable[[Iterable[int]], list[str]], str]] = {}
        """For each caller: what makes the ids of its calls, and the beginning of their paths."""

    def tasks(self, caller: Task, calls: Sequence[Call]) -> list[Task]:
        """Return the tasks of the next calls that *caller* makes, and count them.

        Who called, and the how-manieth call it was, make the id; which function it
        was and with what is compared with what was recorded.
        """
        numbered, path = self._known.get(caller.id) or self._begin(caller)
        around, depth, tasks = self._around, caller.depth + 1, []
        indices = range(caller.calls, caller.calls + len(calls))
        caller.calls += len(calls)
        for index, identity, call in zip(indices, numbered(indices), calls, strict=True):
            node = call.node
            task = Task(
                identity,
                node,
                CALL,
                call.arguments,
                f"{path}{index:010d}",
                (),
                f"{around}{node.name}:{identity}",
                caller,
                node.timeout,
                depth,
                call.variables,
            )
            if node.role == "graph":
                suffix = f"|{caller.graphs}" if caller.graphs else ""
                caller.graphs += 1
                task.namespace = f"{caller.namespace}{suffix}"
            tasks.append(task)
        return tasks

    def _begin(self, caller: Task) -> tuple[Callable[[Iterable[int]], list[str]], str]:
        """Return what the first call of *caller* needs, and keep it for the others."""
        place = self._place
        numbered = ids.task_ids(place.checkpoint_id, place.namespace, place.step, caller.id)
        known = self._known[caller.id] = numbered, f"~__pregel_push, {caller.path}, "
        return known

    def ended(self, caller: Task) -> None:
        """Forget a task that makes no more calls."""
        self._known.pop(caller.id, None)


def too_deep(name: str) -> RecursionError:
    """Return the error for a task or a graph that is nested too deep."""
    return RecursionError(
        f"{name!r} is nested more than {DEEPEST:,} deep: does it call itself without end?"
    )


def handler_task(program: Program, failed: Task, error: BaseException, place: StepId) -> Task:
    """Return the task of the node that handles the failure of *failed*."""
    assert failed.node.handler is not None
    node = program.nodes[failed.node.handler]
    path = f"{failed.path}, node_error_handler"
    task = _task(node, Kind.HANDLER, failed.input, path, place, failed.triggers)
    task.error = error
    task.parent = failed
    return task


def breaks_before(state: State, tasks: Iterable[Task], where: frozenset[str] | str) -> bool:
    """Return whether a breakpoint on one of *tasks* stops the run here.

    A breakpoint the user was shown does not stop again until a channel changes.
    """
    if not where:
        return False
    shown: Mapping[str, Any] = state.seen.get(INTERRUPT, {})
    if not any(
        name not in shown or version > shown[name] for name, version in state.versions.items()
    ):
        return False
    return any(not task.node.hidden if where == "*" else task.name in where for task in tasks)
