"""The calls of a map: all of them at once, or a window of them that moves along."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import (
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar

from flowpregel._core.asked import Asked
from flowpregel._core.callee import callee_of
from flowpregel._core.digest import arguments_digest
from flowpregel._core.records import Arguments, Node
from flowpregel.context import Scope
from flowpregel.errors import ConfigurationError, GraphInterrupt, TaskCancelled
from flowpregel.executors.calls import CallFuture

R = TypeVar("R")
MadeCall: TypeAlias = tuple[CallFuture[Any], int | None]
"""The future of a call, and how many items it has; None: it is no chunk, but a call by itself."""

_LEAST: Final = 16


def check_map(method: str, chunksize: Any, errors: Any, shares: Any) -> None:
    """Refuse options of a map that cannot be.

    Args:
        method: What was called.
        chunksize, errors: As they were given.
        shares: How the task shares its results; None: it does not.

    Raises:
        ConfigurationError: The message says why.
    """
    if errors not in ("raise", "return"):
        raise ConfigurationError(f"{method}(errors={errors!r}): use 'raise' or 'return'")
    if not isinstance(chunksize, int) or chunksize < 1:
        raise ConfigurationError(
            f"{method}(chunksize={chunksize!r}): use a whole number, at least 1"
        )
    if chunksize != 1 and shares is not None:
        raise ConfigurationError(
            f"{method}(chunksize={chunksize}): the task shares its results, which is for single "
            f"calls: use {method}() without chunksize"
        )


def checked_window(window: Any) -> int:
    """Return how many calls of a stream may be under way.

    Raises:
        ConfigurationError: *window* is no such number.
    """
    if window is None:
        return max(_LEAST, 4 * (os.cpu_count() or 1))
    if not isinstance(window, int) or window < 1:
        raise ConfigurationError(f"imap(window={window!r}): use a whole number, at least 1")
    return window


class AbandonedCalls:
    """The calls of a loop that was left early, among what its body has put off.

    Not when the loop is left: an exception may have left it that is a question, or a failure, and
    then it is gone through again.
    """

    def __init__(self, under_way: Mapping[int, MadeCall]) -> None:
        self._under_way = under_way

    def result(self) -> None:
        """Give them up, when the body has ended well: nobody will ask for their results."""
        for future, _ in self._under_way.values():
            future.cancel()

    def __await__(self) -> Generator[None, None, None]:
        self.result()
        yield from ()


class ResultStream(Generic[R]):
    """The results of many calls, of which a window is under way: iterate over it, once.

    A sync body uses ``for``, an async one ``async for``.

    Args:
        calls: Makes the calls.
        window: How many of them run, wait to run, or have results that were not asked for.
        scope: Of the body.
        unordered: If results come as calls end: the name of the task, to record their order.
            None: they come in the order of the items.
    """

    def __init__(
        self, calls: Iterable[MadeCall], window: int, scope: Scope, unordered: str | None
    ) -> None:
        self._calls = enumerate(calls)
        self._window = window
        self._scope = scope
        self._unordered = unordered
        self._under_way: dict[int, MadeCall] = {}
        """The calls whose results were not asked for, by the index of the call."""
        self._posted: deque[int] = deque()
        """The calls that have ended, as their futures tell it, on whichever OS thread."""
        self._ended: list[int] = []
        """Those of *posted* whose turn it may be."""
        self._next: deque[int] = deque()
        """The calls whose turn it is."""
        self._awaited: CallFuture[Any] | None = None
        """Done when a call has ended."""

    def __iter__(self) -> Iterator[R]:
        for future, size in self._steps():
            yield from _results(future.result(), size)

    async def __aiter__(self) -> AsyncIterator[R]:
        for future, size in self._steps():
            for each in _results(await future, size):
                yield each

    def _steps(self) -> Iterator[MadeCall]:
        """Yield what is to be waited for: calls, and futures that have no item."""
        left = AbandonedCalls(self._under_way)
        self._scope.deferred.add(left)
        while True:
            for index, made in islice(self._calls, self._window - len(self._under_way)):
                self._under_way[index] = made
                if self._unordered is not None:
                    made[0].add_done_callback(partial(self._note, index))
            if not self._under_way:
                self._scope.deferred.discard(left)
                return
            index = next(iter(self._under_way))
            if self._unordered is not None:
                if not self._next:
                    yield from self._wait_for_some(self._unordered)
                index = self._next.popleft()
            yield self._under_way.pop(index)

    def _note(self, index: int, _: object) -> None:
        """Note that a call has ended."""
        self._posted.append(index)
        if self._awaited is not None:
            with suppress(InvalidStateError):
                self._awaited.set_result(None)

    def _wait_for_some(self, name: str) -> Generator[MadeCall, Any, None]:
        """Wait until calls have ended, and note that it is their turn.

        In a run that goes on these are the ones that had ended when it was here before: the
        answer to "which have ended, of those that are under way" is recorded like a call.
        """
        self._take_posted()
        while not self._ended:
            first, _ = next(iter(self._under_way.values()))
            self._awaited = first.sibling(is_call=False)
            if not self._posted:
                yield self._awaited, 0
            self._take_posted()
        for future in [self._under_way[index][0] for index in self._ended]:
            if isinstance(Future.exception(future), GraphInterrupt | TaskCancelled):
                yield future, 0  # the body ends with it, and there is nothing to record
        ended = tuple(self._ended)
        if self._scope.job.compares:
            under_way = tuple(self._under_way)
            arguments = arguments_digest(under_way, {}, "indices")
            text = f"{name}.imap: which ended first, of {len(under_way)} from {under_way[0]}"
            asked = Asked(f"{name}.imap", arguments, "", text, is_placed=False)
            recorded = self._scope.ends.call(_ARRIVALS, Arguments((ended,), {}), asked)
            yield recorded, 0
            ended = recorded.value()
        self._next.extend(ended)
        self._ended = [index for index in self._ended if index not in ended]

    def _take_posted(self) -> None:
        posted = [self._posted.popleft() for _ in range(len(self._posted))]
        # Of those whose turn was recorded, some are told of later.
        self._ended += [index for index in posted if index in self._under_way]


def _results(result: Any, size: int | None) -> Iterable[Any]:
    """Return the results of a call: of a chunk as many as it has items."""
    if size is None:
        return (result,)
    return result if size and isinstance(result, list) else [result] * size


_ARRIVALS: Final = Node(
    name="imap", steps=(callee_of(tuple),), executor="inline", is_task=True, hidden=True
)
