"""Many calls of a task that are made as one.

A chunk of ``task.map(items, chunksize=n)`` is one recorded call, sent in one message, and
returns a list. Each item has a future.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextvars import copy_context
from typing import Any, Generic, TypeVar, cast

from flowpregel._core.callee import Callee
from flowpregel._core.records import Arguments, Raised
from flowpregel._text import described
from flowpregel.context import Scope, current_scope
from flowpregel.errors import ConfigurationError
from flowpregel.executors.attempt import call
from flowpregel.executors.calls import CallFuture
from flowpregel.executors.shared import with_values
from flowpregel.executors.unresolved import Unresolved

R = TypeVar("R")


def redacted_places(
    func: Callable[..., Any], hidden: Sequence[str], task: str
) -> frozenset[int | str]:
    """Return the positions and the names of the arguments of *func* that nobody is shown.

    Raises:
        ConfigurationError: It has no such parameter.
    """
    if not hidden:
        return frozenset()
    places = {}
    for index, each in enumerate(inspect.signature(func).parameters.values()):
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            places[each.name] = index
    if unknown := [name for name in hidden if name not in places]:
        has = f"it has {', '.join(places)}"
        raise ConfigurationError(f"task {task!r} has no parameter {unknown[0]!r} to redact; {has}")
    return frozenset({*hidden, *(places[name] for name in hidden)})


class ItemFuture(Unresolved, Generic[R]):
    """The result of one item of a chunk, to be waited for or awaited.

    It is done, or fails, when its chunk does.

    Args:
        chunk: The future of the chunk.
        index: The place of the item in the chunk.
    """

    __slots__ = ("_chunk", "_index")

    def __init__(self, chunk: CallFuture[list[R]], index: int) -> None:
        self._chunk = chunk
        self._index = index

    def result(self, timeout: float | None = None) -> R:
        """Return what the task returned for the item, or raise what failed in its chunk.

        Args:
            timeout: Seconds to wait at most; None is for ever.
        """
        chunk = self._chunk
        if chunk.of_items is None:
            chunk.of_items = chunk.result(timeout)
        return self._item_of(chunk.of_items)

    def value(self) -> R:
        """Return what `result` does, without looking at it."""
        return self._item_of(self._chunk.value())

    def _item_of(self, results: Any) -> R:
        return cast("R", results if isinstance(results, Exception) else results[self._index])

    def sibling(self, *, is_call: bool = True) -> CallFuture[Any]:
        """Return the future of a call of the same body, or of something else."""
        return self._chunk.sibling(is_call=is_call)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what failed in the chunk, or None."""
        return self._chunk.exception(timeout)

    def done(self) -> bool:
        """Return whether the chunk has ended."""
        return self._chunk.done()

    def add_done_callback(self, function: Callable[[ItemFuture[R]], object]) -> None:
        """Call *function* with this future when the chunk has ended."""
        self._chunk.add_done_callback(lambda _: function(self))

    def __await__(self) -> Generator[Any, Any, R]:
        results = yield from self._chunk.__await__()
        return self._item_of(results)


def arguments_of(iterables: Sequence[Iterable[Any]]) -> Iterable[tuple[Any, ...]]:
    """Return the arguments of each call of a map, in a list if they come of several iterables.

    Raises:
        TypeError, ValueError: None can be made of what was given.
    """
    try:
        found = zip(*iterables, strict=True)
        # An error about their lengths must not leave calls behind.
        return found if len(iterables) == 1 else [*found]
    except (TypeError, ValueError) as error:
        error.add_note(
            "map() takes a list, or another iterable such as range(3), for each parameter of the "
            "task, all of the same length"
        )
        raise


def call_later(scope: Scope, awaited: list[Any], make: Callable[[Any], object]) -> Any:
    """Make a call when others have ended, and return its future at once.

    Args:
        scope: Of the body that makes it.
        awaited: The futures among its arguments. If one fails, the call fails with that.
        make: Makes the call, given its future.
    """
    reply, made = awaited[0].sibling(), awaited[0].sibling(is_call=False)
    variables = copy_context()
    scope.deferred.add(made)

    def go_on(_: object = None) -> None:
        while awaited:
            if not awaited[-1].done():
                awaited[-1].add_done_callback(go_on)
                return
            awaited.pop()
        try:
            # Its body has not failed meanwhile, and still wants it.
            if made in scope.deferred and not reply.cancelled():
                variables.run(make, reply)
        except BaseException as error:  # noqa: BLE001 - the call fails with it
            reply.settle(Raised(error))
        scope.deferred.discard(made)
        made.set_result(None)

    go_on()
    return reply


class ChunkedCall:
    """Calls a task's function for each item of a chunk, one after the other.

    Args:
        callee: The function.
        redacted: The positions of arguments that no message shows.
    """

    def __init__(self, callee: Callee, redacted: Collection[int | str]) -> None:
        self._callee = callee
        self._redacted = redacted

    def __call__(self, first: int, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results; *first* is the index of the first item in the whole map."""
        results, scope = list[Any](), current_scope("a chunk")
        for index, item in enumerate(items, first):
            try:
                results.append(self._call(item, scope))
            except Exception as error:
                self._name(error, index, item)
                raise
        return results

    async def in_coroutine(self, first: int, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results of an async function."""
        results, scope = list[Any](), current_scope("a chunk")
        for index, item in enumerate(items, first):
            try:
                results.append(await self._call(item, scope))
            except Exception as error:
                self._name(error, index, item)
                raise
        return results

    def _call(self, item: tuple[Any, ...], scope: Scope) -> Any:
        return call(self._callee, with_values(Arguments(item, {})), scope)

    def _name(self, error: Exception, index: int, item: tuple[Any, ...]) -> None:
        """Name the item that failed in its *error*."""
        text = described(self._callee.name, item, {}, self._redacted)
        error.add_note(f"in item {index} of a map: {text}")
