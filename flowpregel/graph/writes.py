"""What a node of a graph writes: its state update, and the edges that lead from it.

Writers are plain objects, so that they travel to a worker process with the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowpregel._core.callee import Callee
from flowpregel._core.commands import Command, Send
from flowpregel._core.records import TASKS, Write
from flowpregel.channels.base import MISSING
from flowpregel.context import Scope
from flowpregel.errors import ConfigurationError, InvalidUpdateError, ParentCommand
from flowpregel.executors.attempt import call
from flowpregel.graph.names import END, ROOT, START, trigger_of


@dataclass(frozen=True, slots=True, eq=False)
class NodeWriter:
    """Writes a node's output to the state, and goes where `Command` and edges say.

    Args:
        node: Whose output it is.
        keys: The state keys it may write, in order; others in its output are left out.
        edges: What the edges that always lead on write.
    """

    node: str
    keys: Mapping[str, None]
    edges: tuple[Write, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that its edges write to."""
        return tuple(channel for channel, _ in self.edges)

    def __call__(self, output: Any, scope: Any = None) -> list[Write]:
        """Return the writes for a node's *output*.

        Raises:
            InvalidUpdateError: *output* is nothing that a state can take.
            ParentCommand: It is a `Command` for the graph around this one.
        """
        writes: list[Write] = []
        for part in _parts(output):
            if isinstance(part, Command):
                if part.graph == Command.PARENT:
                    raise ParentCommand(part)
                writes += self._update(part.update, pairs=True)
                writes += goto_writes(part.goto)
            elif isinstance(part, Send):
                writes.append((TASKS, part))
            else:
                writes += self._update(part, pairs=False)
        return [*writes, *self.edges]

    def _update(self, update: Any, *, pairs: bool) -> Iterable[Write]:
        if update is None:
            return ()
        items: Iterable[Any] | None = None
        if isinstance(update, Mapping):
            items = update.items()
        elif pairs and _is_pairs(update):
            items = update
        if ROOT in self.keys:
            items = [] if items is None else [item for item in items if item[0] == ROOT]
            return items or ((ROOT, update),)
        if items is not None:
            return (item for item in items if item[0] in self.keys)
        if _is_annotated(type(update)):
            return object_writes(update, self.keys)
        raise InvalidUpdateError(
            f"Expected dict, got {update!r} from node {self.node!r}: return a dict with keys of "
            "the state, an object with them, a Command, or None"
        )


def _parts(output: Any) -> Sequence[Any]:
    """Return an output as its parts: a list that holds a `Command` or `Send` has several."""
    if isinstance(output, list | tuple) and any(
        isinstance(item, Command | Send) for item in output
    ):
        return output
    return (output,)


def _is_pairs(update: Any) -> bool:
    """Return whether *update* is (key, value) pairs, which only a `Command` may hold."""
    return isinstance(update, list | tuple) and all(
        isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) for item in update
    )


def goto_writes(goto: Any) -> Iterable[Write]:
    """Yield what `Command.goto` writes: node names, `Send`, or several of either."""
    for target in (goto,) if isinstance(goto, str | Send) else goto:
        if isinstance(target, Send):
            yield TASKS, target
        elif isinstance(target, str):
            if target != END:
                yield trigger_of(target), None
        else:
            raise InvalidUpdateError(
                f"Command(goto=...) takes node names and Sends, not {target!r}"
            )


def _is_annotated(typ: type[Any]) -> bool:
    return any(inspect.get_annotations(base) for base in typ.__mro__)


def object_writes(update: Any, keys: Iterable[str]) -> list[Write]:
    """Return what an annotated object writes: those of *keys* that it has.

    A pydantic model leaves out what is None by default and was not given.
    """
    fields = getattr(type(update), "model_fields", {})
    given = getattr(update, "model_fields_set", ())
    found = []
    for key in keys:
        value = getattr(update, key, MISSING)
        if value is MISSING:
            continue
        if value is None and key in fields and fields[key].default is None and key not in given:
            continue
        found.append((key, value))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class BranchWriter:
    """Asks a path function where to go, with the state as the node's own writes made it.

    Args:
        node: The node that the branch leaves.
        name: The name of the path function.
        path: What to call.
        ends: Where each of its answers leads; None: an answer is a node's name.
        selection: What of the state it is given; its node's ``reads`` name the same.
        mapper: Makes an object of it.
        passes_on: Whether it is given what its node returned beside the state's keys.
    """

    node: str
    name: str
    path: Callee
    ends: Mapping[Any, str] | None
    selection: str | tuple[str, ...]
    mapper: Any = None
    passes_on: bool = False

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels it may write to, as far as that is known."""
        targets = () if self.ends is None else self.ends.values()
        return tuple(trigger_of(target) for target in targets if target != END)

    def __call__(self, output: Any, scope: Scope) -> list[Write] | Awaitable[list[Write]]:
        """Return the writes that lead where the path function says."""
        if self.path.is_async:
            # Called when it is awaited: in a sync run nobody does, and nothing may be left over.
            return self._later(output, scope)
        return self._writes_of(call(self.path, self._state(output, scope), scope))

    async def _later(self, output: Any, scope: Scope) -> list[Write]:
        return self._writes_of(await call(self.path, self._state(output, scope), scope))

    def _state(self, output: Any, scope: Scope) -> Any:
        if isinstance(self.selection, str):
            return scope.read((self.selection,), fresh=True).get(self.selection)
        values = scope.read(self.selection, fresh=True)
        if self.mapper is not None:
            return self.mapper(values)
        if self.passes_on and isinstance(output, dict):
            return {**output, **values}
        return values

    def _writes_of(self, result: Any) -> list[Write]:
        answers = result if isinstance(result, list | tuple) else (result,)
        return [write for answer in answers for write in self._leads_to(answer)]

    def _leads_to(self, answer: Any) -> Iterable[Write]:
        target = answer
        if not isinstance(answer, Send) and self.ends is not None:
            if answer not in self.ends:
                known = ", ".join(map(repr, self.ends))
                raise ConfigurationError(
                    f"Branch {self.name!r} of node {self.node!r} did not return a valid "
                    f"destination: it returned {answer!r}, and its path map has {known}"
                )
            target = self.ends[answer]
        if isinstance(target, Send):
            if target.node == END:
                raise InvalidUpdateError(
                    f"Cannot send a packet to the END node: branch {self.name!r} of "
                    f"node {self.node!r} returned {target!r}"
                )
            return ((TASKS, target),)
        if not isinstance(target, str) or target == START:
            raise ConfigurationError(
                f"Branch {self.name!r} of node {self.node!r} did not return a valid "
                f"destination, but {target!r}: return a node's name, a Send, or several"
            )
        return () if target == END else ((trigger_of(target), None),)


@dataclass(frozen=True, slots=True, eq=False)
class InputValidator:
    """Checks a run's input against a pydantic model, before any node runs.

    What is missing is no fault here: nodes may still write it.
    """

    model: Any
    keys: tuple[str, ...]

    def __call__(self, output: Any, scope: Scope) -> list[Write]:
        """Write nothing.

        Raises:
            pydantic.ValidationError: The state with the input in it does not fit.
        """
        values = scope.read(self.keys, fresh=True)
        try:
            self.model(**values)
        except ValueError as error:
            faults = getattr(error, "errors", None)
            if faults is None or any(fault["type"] != "missing" for fault in faults()):
                raise
        return []
