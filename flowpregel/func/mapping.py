"""Many calls of one task: `map`, `imap` with a limited number (window) of calls at a
time, and calls for several items (chunks).

With ``task.map(items, chunksize=n)``, a chunk of *n* items is one recorded call, which
is sent in one message and returns a list. Each item still has its own future, and its
own result or exception; `flowpregel._core.chunks` describes how they are recorded.
"""

from __future__ import annotations

import inspect
import os
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from flowpregel._annotations import signature_of
from flowpregel._core.chunks import ItemOutcomes, ItemsFailed
from flowpregel._core.commands import CallTarget, call_target_of
from flowpregel._core.ids import CallKey
from flowpregel._core.records import (
    Arguments,
    Node,
    Raised,
    add_failed_calls,
    failed_calls,
)
from flowpregel._pickling.digest import arguments_digest
from flowpregel._text import described
from flowpregel.context import Scope, current_scope
from flowpregel.errors import (
    ConfigurationError,
    GraphDrained,
    GraphInterrupt,
    TaskCancelled,
)
from flowpregel.executors.attempt import call, call_checked, publish_outputs
from flowpregel.executors.calls import CallFuture, Unresolved
from flowpregel.executors.handles import with_values

R = TypeVar("R")
MappedCall: TypeAlias = tuple[CallFuture[Any], int | None]
"""The future of a call, and the number of items that the call computes (its chunk), or
None if the call is for a single item.
"""

WINDOW: Final = max(16, 4 * (os.cpu_count() or 1))
"""The default window of a stream: the maximum number of calls whose results were not
read yet.
"""


def check_map(
    method: str, chunksize: Any, errors: Any, shares: Any, window: Any = 1
) -> None:
    """Check the options of a map.

    Args:
        method: The name of the method, for messages.
        chunksize, errors, window: The options of the caller.
        shares: The cache policy of the task, or None if the task does not share its
            results with other runs.

    Raises:
        ConfigurationError: The value of an option is not allowed.
    """
    if errors not in ("raise", "return"):
        raise ConfigurationError(
            f"{method}(errors={errors!r}): use 'raise' or 'return'"
        )
    for name, number in (("chunksize", chunksize), ("window", window)):
        if not isinstance(number, int) or number < 1:
            raise ConfigurationError(
                f"{method}({name}={number!r}): use a whole number, at least 1"
            )
    if chunksize != 1 and shares is not None:
        raise ConfigurationError(
            f"{method}(chunksize={chunksize}): the task shares its results, which "
            f"only single calls can: use {method}() without chunksize"
        )


class AbandonedCalls:
    """The calls of a `ResultStream` whose loop was left early. They are cancelled when
    the body returns.

    They are not cancelled as soon as the loop is left, because the reason may be an
    interrupt or a failure. In that case the body runs through the loop again later, and
    needs their results.
    """

    def __init__(self, under_way: Mapping[int, MappedCall]) -> None:
        self._under_way = under_way

    def result(self) -> None:
        """Cancel the calls, whose results are not needed once the body has returned."""
        for future, _ in self._under_way.values():
            future.cancel()

    def __await__(self) -> Generator[None, None, None]:
        self.result()
        yield from ()


class ResultStream(Generic[R]):
    """The results of many calls, with only a window of the calls under way at a time.

    A stream can be iterated over once: with ``for`` in a sync body, and with ``async
    for`` in an async body.

    Args:
        calls: An iterator that makes the calls.
        window: The maximum number of calls that run, wait to run, or have results that
            were not yet read.
        scope: The `Scope` of the body that reads the results: the objects that the
            present attempt of the body can reach.
        unordered: The name of the task, if the results come in the order in which calls
            end. This order is recorded under the name, for a replay. None if the
            results come in the order of the items.

    Example:
        >>> from flowpregel.func import entrypoint, task
        >>> @task(executor="inline")
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> @entrypoint()
        ... def total(count: int) -> int:
        ...     return sum(result for result in double.imap(range(count), window=100))
        >>> total.run(1000)
        999000
    """

    def __init__(
        self,
        calls: Iterable[MappedCall],
        window: int,
        scope: Scope,
        unordered: str | None,
    ) -> None:
        self._calls = enumerate(calls)
        self._window = window
        self._scope = scope
        self._unordered = unordered
        self._under_way: dict[int, MappedCall] = {}
        """The calls whose results were not yet read, by the index of the call."""
        self._ended: deque[int] = deque()
        """The indices of ended calls, added by the calls' futures on any OS thread."""
        self._next: deque[int] = deque()
        """The indices of the ended calls whose results are passed to the reader next.
        """
        self._awaited: CallFuture[Any] | None = None
        """A future that is done when a call ends, or None until one is awaited."""

    def __iter__(self) -> Iterator[R]:
        for future, size in self._steps():
            try:
                result = future.result()
            except Exception:
                if future.items is None:
                    raise
                result = None
            yield from _results(future, result, size)

    async def __aiter__(self) -> AsyncIterator[R]:
        for future, size in self._steps():
            try:
                result = await future
            except Exception:
                if future.items is None:
                    raise
                result = None
            for item in _results(future, result, size):
                yield item

    def _steps(self) -> Iterator[MappedCall]:
        """Yield the futures to wait for, each with its number of items: None for a call
        for a single item, 0 for a future whose result is not passed to the reader.
        """
        abandoned = AbandonedCalls(self._under_way)
        self._scope.deferred.add(abandoned)
        while True:
            self._fill_window()
            if not self._under_way:
                self._scope.deferred.discard(abandoned)
                return
            index = next(iter(self._under_way))
            if self._unordered is not None:
                if not self._next:
                    yield from self._wait_for_some(self._unordered)
                index = self._next.popleft()
            yield self._under_way.pop(index)

    def _fill_window(self) -> None:
        """Make calls until the limit on calls whose results were not read yet is
        reached.
        """
        free = self._window - len(self._under_way)
        for index, (future, size) in islice(self._calls, free):
            self._under_way[index] = future, size
            if self._unordered is not None:
                future.add_done_callback(partial(self._add_ended, index))

    def _add_ended(self, index: int, _: object) -> None:
        """Note that the call with this *index* has ended, and wake the reader if it
        waits.
        """
        self._ended.append(index)
        if self._awaited is not None:
            with suppress(InvalidStateError):
                self._awaited.set_result(None)

    def _wait_for_some(self, name: str) -> Generator[MappedCall, Any, None]:
        """Wait until at least one call has ended, and queue the results of the ended
        calls.

        The indices of the ended calls are recorded as the result of a call, so that a
        resumed run gets the results in the same order.
        """
        ended = self._ended_of_window()
        while not ended:
            first, _ = next(iter(self._under_way.values()))
            self._awaited = first.sibling(is_call=False)
            # A call may have ended before `_awaited` was set. Then there is nothing to
            # wait for.
            if not self._ended:
                yield self._awaited, 0
            ended = self._ended_of_window()
        for index in ended:
            future, _ = self._under_way[index]
            if isinstance(Future.exception(future), GraphInterrupt | TaskCancelled):
                # The call was interrupted or cancelled. The loop that iterates over
                # this stream gets that as an error, and the attempt of the body ends.
                # So the order in which the calls ended is not recorded.
                yield future, 0
        if self._scope.job.compares:
            recorded = self._record_order(name, ended)
            yield recorded, 0
            ended = recorded.value()
        self._next.extend(ended)

    def _record_order(
        self, name: str, ended: tuple[int, ...]
    ) -> CallFuture[tuple[int, ...]]:
        """Make a call whose recorded result is *ended*: the indices of the calls that
        have ended, among the calls under way.
        """
        under_way = tuple(self._under_way)
        key = CallKey(
            name=f"{name}.imap",
            arguments=arguments_digest(under_way, {}, "indices"),
            code="",
            text=(
                f"{name}.imap: which ended first, of {len(under_way)} from "
                f"{under_way[0]}"
            ),
            is_placed=False,
        )
        arguments = Arguments((ended,), {})
        future: CallFuture[tuple[int, ...]]
        future = self._scope.run_client.call(_ARRIVALS, arguments, key)
        return future

    def _ended_of_window(self) -> tuple[int, ...]:
        """Return the indices of the ended calls whose results were not read yet. Other
        ended calls are forgotten.
        """
        indices = [self._ended.popleft() for _ in range(len(self._ended))]
        ended = tuple(index for index in indices if index in self._under_way)
        self._ended.extendleft(reversed(ended))
        return ended


def _results(future: CallFuture[Any], result: Any, size: int | None) -> Iterable[Any]:
    """Return the results of a call: a single one, or one for each item of a chunk.

    Args:
        future: The future of the call, which is done.
        result: The result of the call.
        size: The number of items of the chunk, or None if the call is not that of a
            chunk.
    """
    if size is None:
        return (result,)
    if future.items is not None:
        return (_result_of_item(future, position) for position in range(size))
    if size and isinstance(result, list):
        return result
    # The result is the exception of the whole chunk, which counts for each item.
    return [result] * size


def _error_of_item(chunk: CallFuture[Any], position: int) -> BaseException | None:
    """Return the exception of an item of a failed chunk, or None if the item has not
    failed.
    """
    assert chunk.items is not None
    error = chunk.items.errors.get(position)
    if error is not None and chunk.failure is not None:
        # The exception of an item may be a copy from a worker. The copy lacks an
        # attribute of the original exception: the ids of the failed calls that caused
        # the exception.
        add_failed_calls(error, failed_calls(chunk.failure))
    return error


def _result_of_item(chunk: CallFuture[Any], position: int) -> Any:
    """Return the result of an item of a chunk that has failed items."""
    assert chunk.items is not None
    error = _error_of_item(chunk, position)
    if error is None:
        return chunk.items.results[position]
    if chunk.returns_errors:
        return error
    raise error


_ARRIVALS: Final = Node(
    name="imap",
    steps=(call_target_of(tuple),),
    executor="inline",
    is_task=True,
    hidden=True,
)


# chunks and delayed calls --------------------------------------------------


def redacted_positions(
    func: Callable[..., Any], hidden: Sequence[str], task: str
) -> frozenset[int | str]:
    """Return the positions and the names of the arguments of *func* that messages must
    not show.

    Raises:
        ConfigurationError: *func* has no such parameter.
    """
    if not hidden:
        return frozenset()
    positions = {}
    for index, parameter in enumerate(signature_of(func).parameters.values()):
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            positions[parameter.name] = index
    redacted: set[int | str] = set()
    for name in hidden:
        if name not in positions:
            raise ConfigurationError(
                f"task {task!r} has no parameter {name!r} to redact; it has "
                f"{', '.join(positions)}"
            )
        redacted.add(name)
        redacted.add(positions[name])
    return frozenset(redacted)


def positional_parameters(func: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters to which positional arguments are bound, or an
    empty tuple if they are not known.
    """
    try:
        parameters = signature_of(func).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return tuple(part.name for part in parameters if part.kind in kinds)


class ItemFuture(Unresolved, Generic[R]):
    """The future of one item of a chunk, which is done when the chunk has ended. It
    fails if the item has failed, or if the chunk failed as a whole.

    Args:
        chunk: The future of the chunk.
        index: The position of the item in the chunk.
    """

    __slots__ = ("_chunk", "_index")

    def __init__(self, chunk: CallFuture[list[R]], index: int) -> None:
        self._chunk = chunk
        self._index = index

    @property
    def task_name(self) -> str:  # type: ignore[override]
        """The name of the task of the chunk."""
        return self._chunk.task_name

    def result(self, timeout: float | None = None) -> R:
        """Return the result of the task for the item, or raise the item's exception.

        Args:
            timeout: The maximum number of seconds to wait, or None for no limit.
        """
        chunk = self._chunk
        if chunk.of_items is None:
            try:
                chunk.of_items = chunk.result(timeout)
            except Exception:
                if chunk.items is None:
                    raise
        self._mark_read()
        return self._item_of(chunk.of_items)

    def value(self) -> R:
        """Return the result of the item without marking it as retrieved."""
        results = None
        try:
            results = self._chunk.value()
        except Exception:
            if self._chunk.items is None:
                raise
        return self._item_of(results)

    def _item_of(self, results: Any) -> R:
        if self._chunk.items is not None:
            return cast("R", _result_of_item(self._chunk, self._index))
        if isinstance(results, Exception):
            # The whole chunk has failed, and with ``errors="return"`` its exception is
            # the result of each item.
            return cast("R", results)
        return cast("R", results[self._index])

    def _mark_read(self) -> None:
        """Note that the caller has read the outcome of the item. Once the outcomes of
        all failed items were read, the failure of the chunk is regarded as read.
        """
        chunk = self._chunk
        if chunk.items is not None:
            chunk.read_errors = {*chunk.read_errors, self._index}
            chunk.looked_at = chunk.read_errors >= chunk.items.errors.keys()

    def sibling(self, *, is_call: bool = True) -> CallFuture[Any]:
        """Return a new future that belongs to the same body: for another call or, if
        not *is_call*, for something else that the body waits for.
        """
        return self._chunk.sibling(is_call=is_call)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception of the item, or None if it has not failed."""
        error = self._chunk.exception(timeout)
        if self._chunk.items is None:
            return error
        self._mark_read()
        return _error_of_item(self._chunk, self._index)

    def done(self) -> bool:
        """Return whether the chunk has ended."""
        return self._chunk.done()

    def add_done_callback(self, function: Callable[[ItemFuture[R]], object]) -> None:
        """Call *function* with this future when the chunk has ended."""
        self._chunk.add_done_callback(lambda _: function(self))

    def __await__(self) -> Generator[Any, Any, R]:
        results = None
        try:
            results = yield from self._chunk.__await__()
        except Exception:
            if self._chunk.items is None:
                raise
        self._mark_read()
        return self._item_of(results)


def check_iterables(method: str, iterables: Sequence[Any]) -> None:
    """Check that a map has at least one iterable.

    Raises:
        TypeError: There is no iterable.
    """
    if not iterables:
        raise TypeError(
            f"{method}() takes a list, or another iterable, for each parameter of the "
            "task"
        )


def arguments_of(iterables: Sequence[Iterable[Any]]) -> Iterable[tuple[Any, ...]]:
    """Return the arguments of each call of a map: an iterator for a single iterable,
    and a list for several.

    Raises:
        TypeError: A value in *iterables* is not iterable.
        ValueError: The iterables differ in length.
    """
    try:
        arguments = zip(*iterables, strict=True)
        # The iterables are read to the end now, so that an error about different
        # lengths is raised before any call is made.
        return arguments if len(iterables) == 1 else list(arguments)
    except (TypeError, ValueError) as error:
        error.add_note(
            "map() takes a list, or another iterable such as range(3), for each "
            "parameter of the task, all of the same length"
        )
        raise


def call_later(scope: Scope, awaited: list[Any], make: Callable[[Any], object]) -> Any:
    """Make a call of a task once the futures among its arguments are done.

    The future of the call is returned at once.

    Args:
        scope: The scope of the body that makes the call.
        awaited: The futures among the arguments. If one fails, the call fails with the
            same exception.
        make: A function that takes the future of the call, and makes the call.
    """
    reply = awaited[0].sibling()
    submission = awaited[0].sibling(is_call=False)
    variables = copy_context()
    scope.deferred.add(submission)

    def submit_when_ready(_: object = None) -> None:
        while awaited:
            if not awaited[-1].done():
                awaited[-1].add_done_callback(submit_when_ready)
                return
            awaited.pop()
        try:
            # While the call waited for its arguments, the body may have failed, or may
            # have cancelled the call. In both cases, the call is not made.
            if submission in scope.deferred and not reply.cancelled():
                variables.run(make, reply)
        except BaseException as error:  # noqa: BLE001 - the call fails with it
            reply.settle(Raised(error))
        scope.deferred.discard(submission)
        submission.set_result(None)

    submit_when_ready()
    return reply


class ChunkedCall:
    """A function that calls a task's function for each item of a chunk, in order.

    Args:
        callee: The task's function.
        redacted: The positions of arguments that messages must not show.
    """

    def __init__(self, callee: CallTarget, redacted: Collection[int | str]) -> None:
        self._callee = callee
        self._redacted = redacted

    def __call__(self, first: int, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results of *items*. *first* is the index of the first of them in
        the map.

        Raises:
            ItemsFailed: The function raised an exception for an item.
        """
        attempt = self._attempt(first, items)
        for position in attempt.due:
            try:
                result = self._call(items[position], attempt.scope)
                attempt.end_item(position, result)
            except Exception as error:  # noqa: BLE001 - the outcome of the item
                attempt.fail(position, error)
        return attempt.end()

    async def in_coroutine(
        self, first: int, items: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Call the function as `__call__` does, for a task whose function is async."""
        attempt = self._attempt(first, items)
        for position in attempt.due:
            try:
                result = await self._call(items[position], attempt.scope)
                attempt.end_item(position, result)
            except Exception as error:  # noqa: BLE001 - the outcome of the item
                attempt.fail(position, error)
        return attempt.end()

    def _call(self, item: tuple[Any, ...], scope: Scope) -> Any:
        """Call the task's function for one item."""
        call_item = call_checked if scope.job.run.checks_mutations else call
        arguments = with_values(Arguments(item, {}))
        return call_item(self._callee, arguments, scope)

    def _attempt(self, first: int, items: Sequence[tuple[Any, ...]]) -> ChunkAttempt:
        def described_item(position: int) -> str:
            text = described(self._callee.name, items[position], {}, self._redacted)
            return f"in item {first + position} of a map: {text}"

        return ChunkAttempt(current_scope("a chunk"), len(items), described_item)


def chunk_node(node: Node) -> Node:
    """Return a node that calls the function of *node* for each item of a chunk."""
    (callee,) = node.steps
    chunked = ChunkedCall(callee, node.redacted)
    step = CallTarget(
        func=chunked if callee.func else None,
        coroutine=None if callee.func else chunked.in_coroutine,
        injections=(),
        name=callee.name,
        calls_items=True,
    )
    # The arguments of a chunk's call are the index of the first item, and the items. So
    # messages must not show the items if any argument of the task is redacted.
    hidden: tuple[int | str, ...] = (1, "items") if node.redacted else ()
    return replace(
        node,
        steps=(step,),
        home=f"{node.home}.map",
        redacted=frozenset(hidden),
        parameters=("first", "items"),
    )


class ChunkAttempt:
    """One attempt of a chunk, with the outcomes of the items so far.

    Args:
        scope: The objects that the code of the attempt can reach.
        count: The number of items in the chunk.
        described_item: A function that describes the item at a position, for a note on
            its exception.
    """

    def __init__(
        self, scope: Scope, count: int, described_item: Callable[[int], str]
    ) -> None:
        self.scope = scope
        self.due: Iterable[int] = range(count)
        """The positions of the items without a result, for which this attempt calls the
        function.
        """
        self.results: dict[int, Any] = {}
        """The results so far, by the position of the item in the chunk."""
        self._count = count
        self._described_item = described_item
        self._errors: dict[int, BaseException] = {}
        self._final: frozenset[int] = frozenset()
        saved = scope.job.task.attempt.saved
        if isinstance(saved, ItemOutcomes):
            self._resume(saved)

    def _resume(self, saved: ItemOutcomes) -> None:
        """Continue with the item outcomes that an earlier attempt of the chunk has
        saved.
        """
        self.due = saved.due()
        self.results.update(saved.results)
        self._final = saved.final
        for position in saved.final:
            self._errors[position] = saved.errors[position]
        # The saved value contains the items' outcomes, and the state that the task's
        # function saved itself. The function must find only its own state. The job is
        # copied before the change, because the run may use the same objects.
        job = self.scope.job
        attempt = replace(job.task.attempt, saved=saved.state)
        self.scope.job = replace(job, task=replace(job.task, attempt=attempt))

    def end_item(self, position: int, result: Any) -> None:
        """Store the result of an item in this object, and move its output files to
        their final paths.

        The files are not held back until the other items have ended, because the result
        stays even if another item fails.
        """
        if self.scope.files is not None:
            publish_outputs(self.scope)
        self.results[position] = result

    def fail(self, position: int, error: Exception) -> None:
        """Store the exception of an item in this object. If it must end the whole
        attempt, raise it.
        """
        if self.scope.files is not None:
            self.scope.files.discard()
        error.add_note(self._described_item(position))
        scope = self.scope
        if isinstance(error, GraphDrained) or scope.refused or scope.question:
            raise error
        self._errors[position] = error

    def end(self) -> list[Any]:
        """Return the results in the order of the items.

        Raises:
            ItemsFailed: An item has failed.
        """
        if self._errors:
            outcomes = ItemOutcomes(
                count=self._count,
                results=self.results,
                errors=self._errors,
                final=self._final,
            )
            raise ItemsFailed(outcomes)
        return [self.results[position] for position in range(self._count)]
