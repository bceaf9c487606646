"""The writers of a graph's nodes, which convert a node's output to channel writes.

A `NodeWriter` writes the state update and follows the edges that leave the node, a
`BranchWriter` follows one conditional edge. Both are plain objects, so that they can be
sent to a worker process with the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from flowpregel._annotations import annotations_of
from flowpregel._core.commands import CallTarget, Command, Send
from flowpregel._core.effects import Notice
from flowpregel._core.records import TASKS, Write
from flowpregel.channels.base import MISSING
from flowpregel.context import PathRun, Scope, node_callbacks
from flowpregel.errors import ConfigurationError, InvalidUpdateError, ParentCommand
from flowpregel.executors.attempt import call
from flowpregel.graph.spec import ROOT
from flowpregel.pregel.definition import END, START

TRIGGER: Final = "branch:to:"
"""The prefix of the name of the channel that triggers a node. The name of the node
follows.
"""


@dataclass(frozen=True, slots=True, eq=False)
class NodeWriter:
    """A writer of a node's state update, `Command`, and unconditional edges.

    Args:
        node: The name of the node whose output is written.
        keys: The state keys that the node may write, in order. Other keys in the output
            are left out.
        edges: The writes of the unconditional edges.
        is_passed_on: Whether a path function also gets the keys of the output that are
            not in the state.
    """

    node: str
    keys: Mapping[str, None]
    edges: tuple[Write, ...] = ()
    is_passed_on: bool = False

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels of the unconditional edges."""
        return tuple(channel for channel, _ in self.edges)

    def __call__(self, output: Any, scope: Any = None) -> list[Write]:
        """Return the writes for a node's *output*.

        Raises:
            InvalidUpdateError: The state cannot be updated with *output*.
            ParentCommand: *output* is a `Command` for the parent graph.
        """
        parts: Iterable[Any] = (output,)
        if isinstance(output, list | tuple) and _has_commands(output):
            parts = output
        writes: list[Write] = []
        for part in parts:
            if isinstance(part, Send):
                writes.append((TASKS, part))
            elif isinstance(part, Command):
                writes += self._command_writes(part, scope)
            else:
                writes += self._update_writes(part, scope)
        writes += self.edges
        return writes

    def _command_writes(
        self, command: Command[Any], scope: Scope | None
    ) -> list[Write]:
        """Return the writes for the update and for the destinations of a `Command`."""
        if command.graph == Command.PARENT:
            raise ParentCommand(command)
        update = command.update
        if _is_pairs(update):
            writes = self._item_writes(update, update, scope)
        else:
            writes = self._update_writes(update, scope)
        writes += _goto_writes(command.goto)
        return writes

    def _update_writes(self, update: Any, scope: Scope | None) -> list[Write]:
        """Return the writes for an update: a dict, an annotated object or a plain
        value.
        """
        if update is None:
            return []
        if isinstance(update, dict | Mapping):
            return self._item_writes(update, update.items(), scope)
        if ROOT in self.keys:
            return [(ROOT, update)]
        return list(self._object_writes(update))

    def _item_writes(
        self, update: Any, items: Iterable[Write], scope: Scope | None
    ) -> list[Write]:
        """Return the writes for an update that consists of keys and values."""
        writes = [item for item in items if item[0] in self.keys]
        # A dict without the key `ROOT` may be the plain value itself, so it becomes the
        # value of `ROOT`.
        if ROOT in self.keys:
            root_writes = [item for item in writes if item[0] == ROOT]
            return root_writes or [(ROOT, update)]
        is_lost = update and not writes and not self.is_passed_on
        if is_lost and scope is not None:
            keys = [key for key, _ in items]
            self._notice_unknown(keys, scope)
        return writes

    def _notice_unknown(self, keys: Iterable[Any], scope: Scope) -> None:
        """Give the user a notice about an update if none of the update's *keys* is in
        the state.

        For a nested graph there is no notice, because its state need not share a key
        with the outer state.
        """
        is_input = self.node == START
        # A node without callables (steps) exists only to write the output of a nested
        # graph. So its user gets no notice of keys that the outer state lacks.
        task = scope.job.task
        is_nested = scope.job.step.namespace if is_input else not task.node.steps
        if is_nested:
            return
        subject = "the input" if is_input else f"the update by node {self.node!r}"
        unknown = ", ".join(map(repr, keys))
        known = ", ".join(map(repr, self.keys))
        notice = Notice(
            f"{subject} has no key of the state, so nothing was written: its keys are "
            f"{unknown}, and those of the state are {known}"
        )
        scope.run_client.emit(notice)

    def _object_writes(self, update: Any) -> Iterable[Write]:
        """Yield the writes for an annotated object.

        A field of a pydantic model is left out if it is None by default and was not
        set.

        Raises:
            InvalidUpdateError: The class of *update* has no annotations.
        """
        if not any(annotations_of(base) for base in type(update).__mro__):
            raise InvalidUpdateError(
                f"Expected dict, got {update!r} from node {self.node!r}: return a dict "
                "with keys of the state, an object with them, a Command, or None "
                "(INVALID_GRAPH_NODE_RETURN_VALUE)"
            )
        fields = getattr(type(update), "model_fields", {})
        fields_set = getattr(update, "model_fields_set", ())
        for key in self.keys:
            value = getattr(update, key, MISSING)
            if value is MISSING:
                continue
            is_unset = key in fields and key not in fields_set
            if value is None and is_unset and fields[key].default is None:
                continue
            yield key, value


def _has_commands(output: Iterable[Any]) -> bool:
    """Return whether there is a `Command` or a `Send` in *output*."""
    return any(isinstance(item, Command | Send) for item in output)


def _is_pairs(update: Any) -> bool:
    """Return whether *update* is a list of (key, value) pairs, which is a form of
    update that a `Command` may contain.
    """
    if not isinstance(update, list | tuple):
        return False
    for item in update:
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        if not isinstance(item[0], str):
            return False
    return True


def _goto_writes(goto: Any) -> Iterable[Write]:
    """Yield the writes that start the tasks of a `Command.goto`, which is the name of a
    node, a `Send`, or a list of these.
    """
    is_target = isinstance(goto, str | Send) or not isinstance(goto, Iterable)
    targets = [goto] if is_target else goto
    for target in targets:
        if isinstance(target, Send):
            yield TASKS, target
        elif not isinstance(target, str):
            raise InvalidUpdateError(
                f"Command(goto=...) takes node names and Sends, not {target!r}"
            )
        elif target != END:
            yield TRIGGER + target, None


@dataclass(frozen=True, slots=True, eq=False)
class BranchWriter:
    """A writer that calls the path function of a conditional edge.

    The path function gets the state with the node's own writes applied.

    Args:
        node: The name of the node that the edge leaves.
        name: The name of the path function.
        path: The path function, which returns the names of the next nodes.
        ends: The node for each result of the path function, or None if a result is
            itself a node name.
        selection: The keys of the state that the path function gets. They must be in
            the ``reads`` of the node, too.
        mapper: A function that converts the state to an object, or None if the dict is
            used unchanged.
        passes_on: Whether the path function also gets the keys of the node's output
            that are not in the state.
    """

    node: str
    name: str
    path: CallTarget
    ends: Mapping[Any, str] | None
    selection: str | tuple[str, ...]
    mapper: Any = None
    passes_on: bool = False

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels of the known destinations."""
        if self.ends is None:
            return ()
        return tuple(TRIGGER + end for end in self.ends.values() if end != END)

    def __call__(
        self, output: Any, scope: Scope
    ) -> list[Write] | Awaitable[list[Write]]:
        """Return the writes for the result of the path function."""
        selection = self.selection
        if isinstance(selection, str):
            state = scope.read((selection,)).get(selection)
        else:
            state = scope.read(selection)
            if self.mapper is not None:
                state = self.mapper(state)
            elif self.passes_on and isinstance(output, dict):
                state = {**output, **state}
        if self.path.func is None:
            # An async path function is called only when `_later` is awaited. A sync run
            # raises an error instead, so the function's coroutine is never made, and
            # Python gives no warning that it was not awaited.
            return self._later(state, scope)
        if node_callbacks.get() is None:
            return self._writes_of(call(self.path, state, scope))
        with self._path_run(state, scope) as path_run:
            path_run.output = call(self.path, state, scope)
        return self._writes_of(path_run.output)

    async def _later(self, state: Any, scope: Scope) -> list[Write]:
        with self._path_run(state, scope, on_loop=True) as path_run:
            if path_run.delay is not None:
                await path_run.delay
            path_run.output = await call(self.path, state, scope)
        return self._writes_of(path_run.output)

    def _path_run(
        self, state: Any, scope: Scope, *, on_loop: bool = False
    ) -> AbstractContextManager[PathRun]:
        """Return a context manager that calls the run's callback handlers, if there are
        any, when the path function starts and ends.

        Args:
            state: The input of the path function.
            scope: The objects that the code of the attempt can reach.
            on_loop: Whether the path function is awaited on an event loop.
        """
        callbacks = node_callbacks.get()
        if callbacks is None:
            return nullcontext(PathRun())
        node = scope.job.task.node
        # LangChain's tags number the callables (steps) of a node from 1, and then its
        # writers. This is the number of the writer.
        position = len(node.steps) + node.writers.index(self) + 1
        name = _traced_name(self.path)
        tag = f"seq:step:{position}"
        return callbacks.path(scope, name, tag, state, on_loop=on_loop)

    def _writes_of(self, result: Any) -> list[Write]:
        """Return the writes for *result*, which is one result of the path function or a
        list of results.
        """
        answers = result if isinstance(result, list | tuple) else [result]
        writes: list[Write] = []
        for answer in answers:
            target = self._target_of(answer)
            if isinstance(target, Send):
                self._check_packet(target)
                writes.append((TASKS, target))
            elif not isinstance(target, str) or target == START:
                raise ConfigurationError(
                    f"Branch {self.name!r} of node {self.node!r} did not return a "
                    f"valid destination, but {target!r}: return a node's name, a Send, "
                    "or several"
                )
            elif target != END:
                writes.append((TRIGGER + target, None))
        return writes

    def _target_of(self, answer: Any) -> Any:
        """Return the destination for a result of the path function.

        Raises:
            ConfigurationError: The path map does not have this result.
        """
        if isinstance(answer, Send) or self.ends is None:
            return answer
        if answer in self.ends:
            return self.ends[answer]
        known = ", ".join(map(repr, self.ends))
        raise ConfigurationError(
            f"Branch {self.name!r} of node {self.node!r} did not return a valid "
            f"destination: it returned {answer!r}, and its path map has {known}"
        )

    def _check_packet(self, packet: Send) -> None:
        if packet.node == END:
            raise InvalidUpdateError(
                f"Cannot send a packet to the END node: branch {self.name!r} of node "
                f"{self.node!r} returned {packet!r}"
            )


def _traced_name(path: CallTarget) -> str | None:
    """Return the name under which a path function is reported to callback handlers, as
    in LangGraph, or None for a `Runnable`, which reports itself.
    """
    function = path.func or path.coroutine
    name = getattr(function, "__name__", "<lambda>")
    if inspect.ismethod(function) and name in ("invoke", "ainvoke"):
        return None
    return "RunnableCallable" if name == "<lambda>" else name


def check_input(
    model: Any, keys: tuple[str, ...], output: Any, scope: Scope
) -> list[Write]:
    """Check a run's input against a pydantic model, before any node runs.

    A missing key is not an error, because a node may still write the key.

    Args:
        model: The pydantic model of the state.
        keys: The keys of the input, whose values are read from the state.
        output: The output of the input node, which is not used.
        scope: The scope of the task, through which the state is read.

    Returns:
        No writes.

    Raises:
        pydantic.ValidationError: The state with the input does not fit the model.
    """
    try:
        model(**scope.read(keys))
    except ValueError as error:
        if not _lacks_keys_only(error):
            raise
    return []


def _lacks_keys_only(error: ValueError) -> bool:
    """Return whether a validation error reports only missing keys."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return False
    return all(fault["type"] == "missing" for fault in errors())
