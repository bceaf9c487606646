"""`map` and `imap`: calls of any function with many items, in one line.

Without an id, a run is named by the function alone, and not by its code or the items.
So a program that was edited, or has different items, finds the calls of earlier runs.
The result of a recorded call is used only for an equal item and equal code: the run
always continues with the present items (``adopt``), and calls of changed code are made
again. Recorded calls stay in the store, so two maps of one function do not replace each
other's results.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Semaphore
from typing import Any, Final, Generic, Literal, TypeVar, Unpack, overload

from flowpregel._pickling.digest import definition_of, digest_of
from flowpregel._tracebacks import UsersFrames
from flowpregel.checkpoint.base import BaseCheckpointSaver, OnConflict
from flowpregel.context import report_progress
from flowpregel.errors import ConfigurationError, TaskCancelled
from flowpregel.func import mapping
from flowpregel.func.default_store import default_store
from flowpregel.func.entry import entrypoint
from flowpregel.func.flow import Flow
from flowpregel.func.options import (
    DEFAULT_STORE,
    TaskKeywords,
    TaskOptions,
    checked_options,
)
from flowpregel.func.run_handle import RunHandle
from flowpregel.func.tasks import TaskFunction
from flowpregel.policies import RetryPolicy
from flowpregel.pregel.node import policies_of
from flowpregel.pregel.progress import is_notebook

R = TypeVar("R")
_RETRY_ALONE: Final = RetryPolicy(
    retry_on=(),
    max_attempts=2,
    initial_interval=0,
    on_memory="alone",
)
"""The retry policy for calls that ran out of memory: repeat the call while no other
call runs. It applies unless the user's own policies handle this case.
"""
WINDOW: Final = 8 * mapping.WINDOW
"""The greatest number of calls of `map` that are under way or have results that were
not read yet.
"""


class MapKeywords(TaskKeywords, total=False):
    """The keywords of `map` that its signature does not name, for type checkers."""

    progress: bool | Callable[..., Iterable[Any]] | None
    adopt: bool
    again: bool
    on_conflict: OnConflict


class StreamKeywords(MapKeywords, total=False):
    """The keywords of `imap` that its signature does not name, for type checkers."""

    window: int | None
    ordered: bool


@overload
def map(
    function: TaskFunction[..., R],
    items: Iterable[Any],
    *,
    store: BaseCheckpointSaver | str | os.PathLike[str] | None = ...,
    id: str | None = ...,
    chunksize: int = ...,
    errors: Literal["raise", "return"] = ...,
    **options: Unpack[MapKeywords],
) -> list[R]: ...
@overload
def map(
    function: Callable[..., R],
    items: Iterable[Any],
    *,
    store: BaseCheckpointSaver | str | os.PathLike[str] | None = ...,
    id: str | None = ...,
    chunksize: int = ...,
    errors: Literal["raise", "return"] = ...,
    **options: Unpack[MapKeywords],
) -> list[R]: ...
def map(
    function: Callable[..., Any],
    items: Iterable[Any],
    *,
    store: BaseCheckpointSaver | str | os.PathLike[str] | None = DEFAULT_STORE,
    id: str | None = None,
    chunksize: int = 1,
    errors: Literal["raise", "return"] = "raise",
    **options: Unpack[MapKeywords],
) -> list[Any]:
    """Call *function* for each item in worker processes, and return the results in
    order.

    Each call is recorded when it ends. After a crash, a kill or a failure, run the
    program again: `map` resumes without repeating calls that have ended. Once all calls
    have ended, `map` returns the recorded results. If the items or the function's code
    have changed, only the calls that have changed are made.

    Args:
        function: A function of one item. It needs no decorator.
        items: Any finite iterable.
        store: The store of the results: the path of a folder, a URL, or a saver. The
            default is the folder ``.flowpregel`` in the working directory. None stores
            nothing.
        id: The name of the run in the store. By default the function's module and name.
            With an id of your own, other items are an error unless *adopt* is set, and
            results that other code computed are kept, with a notice.
        chunksize: The number of items in one recorded call, for very short calls. If an
            item is added, the chunk that gets it is computed again. With another
            chunksize, all items are computed again.
        errors: With ``"return"``, the result of a failed call is the exception.
        options: ``progress`` is whether to show a live view (by default on a terminal
            and in a notebook), or a function that wraps the stream of results, such as
            ``tqdm`` or ``rich.progress.track``. ``adopt=True`` resumes with other items
            under the same id. ``again`` and ``on_conflict`` are as for `Flow.run`. All
            other options are those of `task`: ``timeout``, ``retry_policy``,
            ``executor``, ...

    Raises:
        ConfigurationError: *items* is not an iterable, or an id is given but *store*
            is None.
        StoreError: The store cannot be created or opened.
        InputMismatchError: The id was used for other items, and ``adopt`` is not set.
        FlowMismatchError: The id was used for another function.
        Exception: The exception that the function raised.

    Example:
        >>> import flowpregel
        >>> flowpregel.map(len, ["ada", "robert"])  # in worker processes
        [3, 6]
    """
    plain = PlainMap("map", function, store, id, {**options})
    plain.check_items(items)
    arguments = [*items]

    def body(_: str) -> Any:
        results = plain.task.imap(
            arguments, window=WINDOW, chunksize=chunksize, errors=errors
        )
        values = [*plain.tracked(results, arguments)]
        return entrypoint.final(value=values, save=None)

    with UsersFrames():
        flow = plain.flow_of(body)
        results: list[Any] = flow.run(
            text_of(arguments, chunksize), **plain.run_options(flow)
        )
        return results


@overload
def imap(
    function: TaskFunction[..., R],
    items: Iterable[Any],
    *,
    store: BaseCheckpointSaver | str | os.PathLike[str] | None = ...,
    id: str | None = ...,
    chunksize: int = ...,
    errors: Literal["raise", "return"] = ...,
    **options: Unpack[StreamKeywords],
) -> Generator[R, None, None]: ...
@overload
def imap(
    function: Callable[..., R],
    items: Iterable[Any],
    *,
    store: BaseCheckpointSaver | str | os.PathLike[str] | None = ...,
    id: str | None = ...,
    chunksize: int = ...,
    errors: Literal["raise", "return"] = ...,
    **options: Unpack[StreamKeywords],
) -> Generator[R, None, None]: ...
def imap(
    function: Callable[..., Any],
    items: Iterable[Any],
    *,
    store: BaseCheckpointSaver | str | os.PathLike[str] | None = DEFAULT_STORE,
    id: str | None = None,
    chunksize: int = 1,
    errors: Literal["raise", "return"] = "raise",
    **options: Unpack[StreamKeywords],
) -> Generator[Any, None, None]:
    """Call *function* for each item in worker processes, and yield the results as they
    come.

    Neither the items nor the results need to fit into memory: an item is taken from
    *items* only when there is room for its call. Calls are recorded as by `map`, and
    the program that is run again gets recorded results from the store. If you leave the
    loop early, calls that have not ended are stopped.

    Args:
        function, store, id, chunksize, errors: As for `map`.
        items: Any iterable, which may be endless. An iterator is read on another OS
            thread.
        options: ``window`` is the maximum number of calls that run, wait to run, or
            have results that were not yet read (by default four for each processor, and
            at least 16). With ``ordered=False``, results come in the order in which
            calls end. All other options are those of `map`. ``adopt`` is only needed
            for a list with other items: the items of an iterator are not compared as a
            whole with those of an earlier run.

    Raises:
        ConfigurationError, StoreError: As for `map`, at once.
        FlowMismatchError: As for `map`.
        InputMismatchError: The id was used for another list, and ``adopt`` is not set.
        Exception: The exception that the function raised, after the earlier results.

    Example:
        >>> import flowpregel
        >>> for length in flowpregel.imap(len, ["ada", "robert"]):
        ...     print(length)
        3
        6
    """
    further: dict[str, Any] = {**options}
    ordered = further.pop("ordered", True)
    window = further.pop("window", None)
    if window is None:
        window = mapping.WINDOW
    plain = PlainMap("imap", function, store, id, further)
    plain.check_items(items)
    mapping.check_map("imap", chunksize, errors, plain.task.options.shares, window)
    results = ResultQueue[Any](window)

    def body(_: str) -> Any:
        stream = plain.task.imap(
            items, window=window, chunksize=chunksize, ordered=ordered, errors=errors
        )
        for result in plain.tracked(stream, items):
            results.put(result)
        return entrypoint.final(value=None, save=None)

    flow = plain.flow_of(body)
    flow.once = replace(flow.once, replays=True)
    keywords = plain.run_options(flow)
    if isinstance(items, Sequence):
        text = text_of(items, chunksize)
    else:
        # The items of an iterator are unknown before the run. So the recorded input,
        # which identifies the items of a run, is a unique string: the items of two runs
        # are never taken for the same.
        text = f"items of an iterator, {uuid.uuid4()}"
        keywords["adopt"] = True
    return results.of(partial(flow.start, text, **keywords))


class PlainMap:
    """A function that is called for many items, and the options of the calls and the
    run.

    Args:
        method: The name of the public function, for messages.
        function: The user's function, or a task.
        store, run_id: The ``store`` and the ``id`` of the public function.
        options: The options of the task and of the run.
    """

    def __init__(
        self,
        method: str,
        function: Callable[..., Any],
        store: Any,
        run_id: str | None,
        options: dict[str, Any],
    ) -> None:
        if store is None and run_id is not None:
            raise ConfigurationError(
                f"{method}(store=None, id={run_id!r}): nothing is stored, so leave out "
                "the id, or pass the path of a folder, such as 'runs.lmdb'"
            )
        self._method = method
        self._store = store
        self._id = run_id
        self._progress = options.pop("progress", None)
        self._options: dict[str, Any] = {}
        for name in _RUN_OPTIONS:
            if name in options:
                self._options[name] = options.pop(name)
        code_policy = options.get("on_code_change")
        if run_id is None and code_policy is None and store is not None:
            code_policy = "rerun"
            options["on_code_change"] = code_policy
        if code_policy is not None:
            self._options["on_code_change"] = code_policy
        options["retry_policy"] = _retry_policies(function, options)
        self.task: TaskFunction[Any, Any]
        """The task that is made from the user's function."""
        if isinstance(function, TaskFunction):
            self.task = function.with_options(**options)
        else:
            self.task = TaskFunction(function, TaskOptions(**checked_options(options)))

    def check_items(self, items: Any) -> None:
        """Check that *items* can be iterated over.

        Raises:
            ConfigurationError: *items* cannot be iterated over.
        """
        if not isinstance(items, Iterable):
            raise ConfigurationError(
                f"{self._method}(items={items!r}): use a list, or another iterable"
            )

    def flow_of(self, body: Callable[[str], Any]) -> Flow[[str], Any]:
        """Return the workflow that runs *body*. Its name comes from the user's
        function, so that it does not depend on the module that calls `map`.
        """
        module, _ = definition_of(self.task.func)
        name = f"{self._method} {self.task.name}"
        body.__module__ = module
        body.__name__ = name
        body.__qualname__ = name
        store = self._store
        if store == DEFAULT_STORE:
            store = default_store(self._method)
        return entrypoint(checkpointer=store)(body)

    def run_options(self, flow: Flow[[str], Any]) -> dict[str, Any]:
        """Return the options for the run of *flow*."""
        options: dict[str, Any] = {**self._options}
        progress = self._progress
        if progress is None:
            progress = sys.stderr.isatty() or is_notebook()
        options["progress"] = progress is True
        if self._store is not None:
            options["id"] = self._id
            if self._id is None:
                options["id"] = flow.once.flow
                options.setdefault("adopt", True)
        return options

    def tracked(self, results: Iterable[R], items: Iterable[Any]) -> Iterable[R]:
        """Return *results* with their progress shown: the live view counts them, or the
        user's ``progress`` function wraps them.
        """
        total = len(items) if isinstance(items, Sized) else None
        if callable(self._progress):
            wrapped: Iterable[R] = self._progress(results, total=total)
            return wrapped
        return _reported(results, total)


def _retry_policies(
    function: Callable[..., Any], options: Mapping[str, Any]
) -> Sequence[RetryPolicy]:
    """Return the user's retry policies. If none of them is for calls that ran out of
    memory, add a policy for such calls.
    """
    policy = None
    if isinstance(function, TaskFunction):
        policy = function.options.retry_policy
    policies = policies_of(options.get("retry_policy", policy))
    if any(policy.on_memory is not None for policy in policies):
        return policies
    return (*policies, _RETRY_ALONE)


class ResultQueue(Generic[R]):
    """A queue of the results on their way from the body of a run to the user's loop.

    Args:
        size: The maximum number of results that were not yet read. The body of the run
            waits before it adds more.
    """

    def __init__(self, size: int) -> None:
        self._entries: SimpleQueue[tuple[R] | None] = SimpleQueue()
        """The results, each in a tuple, and None at the end."""
        self._free = Semaphore(size)
        """A semaphore that counts the results that may still be added."""
        self._is_closed = False

    def put(self, result: R) -> None:
        """Add a result once there is room for it."""
        if not self._is_closed:
            self._free.acquire()
        self._entries.put((result,))

    def of(self, start: Callable[[], RunHandle[Any]]) -> Generator[R, None, None]:
        """Start the run, and yield its results. If the caller leaves its loop early,
        stop the run.
        """
        with UsersFrames():
            handle = start()
            handle.add_done_callback(lambda _: self._entries.put(None))
            try:
                entry = self._entries.get()
                while entry is not None:
                    (result,) = entry
                    yield result
                    self._free.release()
                    entry = self._entries.get()
                handle.result()
            finally:
                if handle.status == "running":
                    self._stop(handle)

    def _stop(self, handle: RunHandle[Any]) -> None:
        """Stop the run, and wait until it has ended."""
        self._is_closed = True
        self._free.release()
        handle.cancel()
        with suppress(TaskCancelled, Exception):
            handle.result()


def text_of(items: Sequence[Any], chunksize: int) -> str:
    """Return the string that is recorded as the input of a run over *items*: their
    number, their digest, and the size of the chunks. The items themselves are stored
    only with failed calls.
    """
    text = f"{len(items):,} items, {digest_of(items, 'the items', strict=False)}"
    return text if chunksize == 1 else f"{text}, in chunks of {chunksize}"


def _reported(results: Iterable[R], total: int | None) -> Iterator[R]:
    """Yield *results*, and report to the live view how many were yielded so far."""
    for done, result in enumerate(results, 1):
        report_progress(done, total)
        yield result


_RUN_OPTIONS: Final = ("adopt", "again", "on_conflict")
"""The options of `map` and `imap` that apply to the run as a whole, and not to each
call.
"""
