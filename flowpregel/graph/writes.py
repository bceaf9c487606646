"""What a node of a graph writes: its state update, and the edges that lead from it.

Writers are plain objects, so that they travel to a worker process with the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from flowpregel._core.commands import CallTarget, Command, Send
from flowpregel._core.records import TASKS, Write
from flowpregel.channels.base import MISSING
from flowpregel.context import Scope
from flowpregel.errors import ConfigurationError, InvalidUpdateError, ParentCommand
from flowpregel.executors.attempt import call
from flowpregel.graph.spec import ROOT
from flowpregel.pregel.definition import END, START

TRIGGER: Final = "branch:to:"
"""Before the name of a node: the channel that makes it run."""


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
        several = isinstance(output, list | tuple)
        several = several and any(isinstance(item, Command | Send) for item in output)
        parts = map(self._part_writes, output if several else (output,))
        return [*chain.from_iterable(parts), *self.edges]

    def _part_writes(self, part: Any) -> Iterable[Write]:
        """Yield what *part* writes: an update of the state, a `Command` or a `Send`."""
        update: Any = part
        items: Iterable[Any] | None = None
        targets: Iterable[Write] = ()
        if isinstance(part, Command | Send):
            update, items, targets = _commanded(part)
        if isinstance(update, Mapping):
            items = update.items()
        if update is None:
            pass
        elif ROOT in self.keys:
            yield from [item for item in items or () if item[0] == ROOT] or (
                (ROOT, update),
            )
        elif items is not None:
            yield from [item for item in items if item[0] in self.keys]
        else:
            yield from self._object_writes(update)
        yield from targets

    def _object_writes(self, update: Any) -> Iterable[Write]:
        """Yield what an annotated object writes: those of the keys that it has.

        A pydantic model leaves out what is None by default and was not given.

        Raises:
            InvalidUpdateError: Its class has no annotations, and it is no dict.
        """
        if not any(inspect.get_annotations(base) for base in type(update).__mro__):
            raise InvalidUpdateError(
                f"Expected dict, got {update!r} from node {self.node!r}: return a dict "
                "with keys "
                "of the state, an object with them, a Command, or None"
            )
        fields = getattr(type(update), "model_fields", {})
        given = getattr(update, "model_fields_set", ())
        for key in self.keys:
            value = getattr(update, key, MISSING)
            is_left_out = (
                key in fields and fields[key].default is None and key not in given
            )
            if value is not MISSING and not (value is None and is_left_out):
                yield key, value


def _commanded(
    part: Command[Any] | Send,
) -> tuple[Any, Iterable[Any] | None, Iterable[Write]]:
    """Return the state update in *part*, its items if it is pairs, and the writes that
    lead on.

    Raises:
        ParentCommand: It is a `Command` for the graph around this one.
    """
    if isinstance(part, Send):
        return None, None, ((TASKS, part),)
    if part.graph == Command.PARENT:
        raise ParentCommand(part)
    update = part.update
    return update, update if _is_pairs(update) else None, _goto_writes(part.goto)


def _is_pairs(update: Any) -> bool:
    """Return whether *update* is (key, value) pairs, which only a `Command` may
    hold.
    """
    return isinstance(update, list | tuple) and all(
        isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
        for item in update
    )


def _goto_writes(goto: Any) -> Iterable[Write]:
    """Yield what `Command.goto` writes: node names, `Send`, or several of either."""
    for target in (goto,) if isinstance(goto, str | Send) else goto:
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
    """Asks a path function where to go, with the state as the node's own writes made
    it.

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
    path: CallTarget
    ends: Mapping[Any, str] | None
    selection: str | tuple[str, ...]
    mapper: Any = None
    passes_on: bool = False

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels it may write to, as far as that is known."""
        targets = () if self.ends is None else self.ends.values()
        return tuple(TRIGGER + target for target in targets if target != END)

    def __call__(
        self, output: Any, scope: Scope
    ) -> list[Write] | Awaitable[list[Write]]:
        """Return the writes that lead where the path function says."""
        selection = self.selection
        if isinstance(selection, str):
            state = scope.read((selection,), fresh=True).get(selection)
        else:
            state = scope.read(selection, fresh=True)
            if self.mapper is not None:
                state = self.mapper(state)
            elif self.passes_on and isinstance(output, dict):
                state = {**output, **state}
        if self.path.func is None:
            # Called when it is awaited: in a sync run nobody does, and nothing may be
            # left over.
            return self._later(state, scope)
        return self._writes_of(call(self.path, state, scope))

    async def _later(self, state: Any, scope: Scope) -> list[Write]:
        return self._writes_of(await call(self.path, state, scope))

    def _writes_of(self, result: Any) -> list[Write]:
        """Return the writes that lead to the path function's answer, or to each of
        several.
        """
        writes: list[Write] = []
        for answer in result if isinstance(result, list | tuple) else (result,):
            target = answer
            if not isinstance(answer, Send) and self.ends is not None:
                if answer not in self.ends:
                    known = ", ".join(map(repr, self.ends))
                    raise ConfigurationError(
                        f"Branch {self.name!r} of node {self.node!r} did not return a "
                        "valid "
                        f"destination: it returned {answer!r}, and its path map has "
                        f"{known}"
                    )
                target = self.ends[answer]
            if isinstance(target, Send):
                if target.node == END:
                    raise InvalidUpdateError(
                        f"Cannot send a packet to the END node: branch {self.name!r} "
                        "of "
                        f"node {self.node!r} returned {target!r}"
                    )
                writes.append((TASKS, target))
            elif not isinstance(target, str) or target == START:
                raise ConfigurationError(
                    f"Branch {self.name!r} of node {self.node!r} did not return a "
                    "valid "
                    f"destination, but {target!r}: return a node's name, a Send, or "
                    "several"
                )
            elif target != END:
                writes.append((TRIGGER + target, None))
        return writes


def check_input(
    model: Any, keys: tuple[str, ...], output: Any, scope: Scope
) -> list[Write]:
    """Check a run's input against a pydantic model, before any node runs; write
    nothing.

    What is missing is no fault here: nodes may still write it.

    Raises:
        pydantic.ValidationError: The state with the input in it does not fit.
    """
    try:
        model(**scope.read(keys, fresh=True))
    except ValueError as error:
        faults = getattr(error, "errors", None)
        if faults is None or any(fault["type"] != "missing" for fault in faults()):
            raise
    return []
