"""`task`, which makes a function a task, and `map`, which calls any function for many
items in one line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from flowpregel._pickling.digest import definition_of, digest_of
from flowpregel._tracebacks import UsersFrames
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.context import report_progress
from flowpregel.errors import ConfigurationError
from flowpregel.func import signatures as types
from flowpregel.func.entry import entrypoint
from flowpregel.func.options import TaskKeywords, TaskOptions, checked_options
from flowpregel.func.tasks import TaskFunction
from flowpregel.pregel import progress as views

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
Co: TypeAlias = Coroutine[Any, Any, R]
"""The return type of an async function."""
_OF_THE_RUN = ("adopt", "again", "on_conflict")
"""The options of `map` that are passed on to `Flow.run`."""


class TaskDecorator(Protocol):
    """The type of `task`, and of the decorator that `task` returns if it is called
    without a function.

    The overloads remove the parameters that a run fills in from the signature; the
    module `signatures` explains how.
    """

    @overload
    def __call__(self, func: types.FirstRuntime[P, Co[R]], /) -> TaskFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, func: types.FirstConfig[P, Co[R]], /) -> TaskFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, func: types.FirstWriter[P, Co[R]], /) -> TaskFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, func: types.Open0[Co[R]], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Open1[Co[R]], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Open2[Co[R]], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Open3[Co[R]], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Optional1[Co[R]], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Optional2[Co[R]], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Optional3[Co[R]], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Runtime0[Co[R]], /) -> TaskFunction[[], R]: ...
    @overload
    def __call__(self, func: types.Runtime1[A, Co[R]], /) -> TaskFunction[[A], R]: ...
    @overload
    def __call__(
        self, func: types.Runtime2[A, B, Co[R]], /
    ) -> TaskFunction[[A, B], R]: ...
    @overload
    def __call__(
        self, func: types.Runtime3[A, B, C, Co[R]], /
    ) -> TaskFunction[[A, B, C], R]: ...
    @overload
    def __call__(
        self, func: types.Runtime4[A, B, C, D, Co[R]], /
    ) -> TaskFunction[[A, B, C, D], R]: ...
    @overload
    def __call__(self, func: types.Config1[A, Co[R]], /) -> TaskFunction[[A], R]: ...
    @overload
    def __call__(
        self, func: types.Config2[A, B, Co[R]], /
    ) -> TaskFunction[[A, B], R]: ...
    @overload
    def __call__(self, func: types.Writer1[A, Co[R]], /) -> TaskFunction[[A], R]: ...
    @overload
    def __call__(
        self, func: types.Writer2[A, B, Co[R]], /
    ) -> TaskFunction[[A, B], R]: ...
    @overload
    def __call__(self, func: Callable[P, Co[R]], /) -> TaskFunction[P, R]: ...  # type: ignore[overload-cannot-match, overload-overlap]
    @overload
    def __call__(self, func: types.FirstRuntime[P, R], /) -> TaskFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, func: types.FirstConfig[P, R], /) -> TaskFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, func: types.FirstWriter[P, R], /) -> TaskFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, func: types.Open0[R], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Open1[R], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Open2[R], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Open3[R], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Optional1[R], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Optional2[R], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Optional3[R], /) -> TaskFunction[..., R]: ...
    @overload
    def __call__(self, func: types.Runtime0[R], /) -> TaskFunction[[], R]: ...
    @overload
    def __call__(self, func: types.Runtime1[A, R], /) -> TaskFunction[[A], R]: ...
    @overload
    def __call__(self, func: types.Runtime2[A, B, R], /) -> TaskFunction[[A, B], R]: ...
    @overload
    def __call__(
        self, func: types.Runtime3[A, B, C, R], /
    ) -> TaskFunction[[A, B, C], R]: ...
    @overload
    def __call__(
        self, func: types.Runtime4[A, B, C, D, R], /
    ) -> TaskFunction[[A, B, C, D], R]: ...
    @overload
    def __call__(self, func: types.Config1[A, R], /) -> TaskFunction[[A], R]: ...
    @overload
    def __call__(self, func: types.Config2[A, B, R], /) -> TaskFunction[[A, B], R]: ...
    @overload
    def __call__(self, func: types.Writer1[A, R], /) -> TaskFunction[[A], R]: ...
    @overload
    def __call__(self, func: types.Writer2[A, B, R], /) -> TaskFunction[[A, B], R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> TaskFunction[P, R]: ...  # type: ignore[overload-cannot-match]
    @overload
    def __call__(
        self, func: None = None, /, **options: Unpack[TaskKeywords]
    ) -> TaskDecorator: ...


if TYPE_CHECKING:
    task: TaskDecorator
else:

    def task(func: Any = None, /, **options: Any) -> Any:
        """Make a function a task, whose calls are recorded and may run in another
        process.

        Inside a run, a call returns a future at once. Wait for the result with
        ``.result()`` in sync code, or with ``await`` in async code. A call whose result
        was recorded is not made again when the run is resumed.

        Args:
            func: A function, a method, an async function, a partial, or another
                callable.
            options: The fields of `TaskOptions`, such as ``name``, ``retry_policy``,
                ``timeout``, ``cache``, ``cpus`` and ``memory``.

        Raises:
            ConfigurationError: *func* is a generator or cannot be called, or the value
                of an option is not allowed.
            TypeError: There is no such option.

        Example:
            >>> @task(timeout=60)
            ... def simulate(seed: int) -> float:
            ...     return seed / 2
            >>> simulate.func(3)
            1.5
        """
        decorate = partial(
            TaskFunction, options=TaskOptions(**checked_options(options))
        )
        return decorate if func is None else decorate(func)


def map(
    function: Callable[..., R],
    items: Iterable[Any],
    *,
    store: BaseCheckpointSaver | str | os.PathLike[str],
    id: str,
    chunksize: int = 1,
    errors: Literal["raise", "return"] = "raise",
    **options: Any,
) -> list[R]:
    """Call *function* for each item in worker processes, and return the results in
    order.

    Each call is recorded when it ends. After a crash, a kill or a failure, the same
    call of `map` resumes the run without repeating calls that have ended. Once all
    calls have ended, `map` returns the recorded results.

    Args:
        function: A function of one item. It needs no decorator.
        items: Any finite iterable.
        store: The store of the results: the path of a folder, or a saver.
        id: The name of these items in the store.
        chunksize: The number of items in one call; more than 1 is for short calls.
        errors: With ``"return"``, the result of a failed call is the exception.
        options: ``progress`` is whether to show a live view (default), or a function
            that wraps the stream of results, such as ``tqdm`` or
            ``rich.progress.track``. ``adopt=True`` resumes with other items under the
            same id. ``again`` and ``on_conflict`` are as for `Flow.run`. All other
            options are those of `task`: ``timeout``, ``retry_policy``, ``executor``,
            ...

    Raises:
        ConfigurationError: *items* is not an iterable, or *store* is None.
        InputMismatchError: The id was used for other items, and ``adopt`` is not set.
        FlowMismatchError: The id was used for another function.
        Exception: The exception that the function raised.

    Example:
        >>> store = "runs.lmdb"
        >>> flowpregel.map(simulate, range(9), store=store, id="a")  # doctest: +SKIP
        [0.5, 1.0, ...]
    """
    if not isinstance(items, Iterable):
        raise ConfigurationError(
            f"map(items={items!r}): use a list, or another iterable that ends"
        )
    if store is None:
        raise ConfigurationError(
            "map(store=None): use the path of a folder, such as 'runs.lmdb'"
        )
    arguments, show = [*items], options.pop("progress", True)
    run_options = {name: options.pop(name) for name in _OF_THE_RUN if name in options}
    called: TaskFunction[Any, R]
    if isinstance(function, TaskFunction):
        called = function.with_options(**options)
    else:
        called = TaskFunction(function, TaskOptions(**checked_options(options)))

    def body(_: str) -> Any:
        results: Iterable[Any] = called.imap(
            arguments, chunksize=chunksize, errors=errors
        )
        track = show if callable(show) else _tracked
        items = [*track(results, total=len(arguments))]
        return entrypoint.final(value=items, save=None)

    # The run must be identified by the function, and not by the module that calls
    # `map`.
    body.__module__ = definition_of(called.func)[0]
    body.__name__ = body.__qualname__ = f"map {called.name}"
    # The input of the run contains only a digest of the items, because the items
    # themselves are stored only with failed calls.
    digest = digest_of(arguments, "the items", strict=False)
    text = f"{len(arguments):,} items, {digest}"
    with UsersFrames(), views.progress() if show is True else nullcontext():
        flow = entrypoint(checkpointer=store)(body)
        results: list[R] = flow.run(text, id=id, **run_options)
        return results


def _tracked(results: Iterable[Any], total: int) -> Iterable[Any]:
    """Yield *results*, and report their number to the live view."""
    for done, result in enumerate(results, 1):
        report_progress(done, total)
        yield result
