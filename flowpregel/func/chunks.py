"""Calls of a task that are made together: ``task.map(items, chunksize=n)``.

A chunk is one recorded call, sent in one message, and returns a list. Each item has a future.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowpregel._core.callee import Callee
from flowpregel._core.records import Arguments
from flowpregel.context import current_scope
from flowpregel.errors import ConfigurationError
from flowpregel.executors.attempt import call
from flowpregel.executors.shared import with_values
from flowpregel.func.describe import described

if TYPE_CHECKING:
    from flowpregel.executors.calls import CallFuture

R = TypeVar("R")


class ItemFuture(Generic[R]):
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
        return self._chunk.result(timeout)[self._index]

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
        return results[self._index]


class ChunkedCall:
    """Calls a task's function for each item of a chunk, one after the other.

    Args:
        callee: The function.
    """

    def __init__(self, callee: Callee) -> None:
        self._callee = callee

    def __call__(self, first: int, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results; *first* is the index of the first item in the whole map."""
        results = []
        for index, item in enumerate(items, first):
            try:
                results.append(self._call(item))
            except Exception as error:
                self._name_item(error, index, item)
                raise
        return results

    async def in_coroutine(self, first: int, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results of an async function."""
        results = []
        for index, item in enumerate(items, first):
            try:
                results.append(await self._call(item))
            except Exception as error:
                self._name_item(error, index, item)
                raise
        return results

    def _call(self, item: tuple[Any, ...]) -> Any:
        return call(self._callee, with_values(Arguments(item, {})), current_scope("a chunk"))

    def _name_item(self, error: Exception, index: int, item: tuple[Any, ...]) -> None:
        error.add_note(f"in item {index} of a map: {described(self._callee.name, item, {})}")


def chunks_of(
    items: Iterable[tuple[Any, ...]], size: int
) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Yield *items* in lists of *size*, each with the index of its first.

    Raises:
        ConfigurationError: *size* is no size.
    """
    if size < 1:
        raise ConfigurationError(f"map(chunksize={size!r}): use a whole number, at least 1")
    rest, first = iter(items), 0
    while chunk := [*islice(rest, size)]:
        yield first, chunk
        first += len(chunk)
