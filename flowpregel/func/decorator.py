"""`task`, which makes a function a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from flowpregel.func import signatures as types
from flowpregel.func.options import TaskKeywords, TaskOptions, checked_options
from flowpregel.func.tasks import TaskFunction

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
Co: TypeAlias = Coroutine[Any, Any, R]
"""The type that an async function returns when it is called."""


class TaskDecorator(Protocol):
    """The type of `task`, and of the decorator that `task` returns if it is called
    without a function.

    The overloads remove the parameters that a run fills in, such as ``runtime``, from
    the signature; the module `signatures` explains how.
    """

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: types.FirstRuntime[P, Co[R]], /
    ) -> TaskFunction[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: types.FirstConfig[P, Co[R]], /
    ) -> TaskFunction[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: types.FirstWriter[P, Co[R]], /
    ) -> TaskFunction[P, R]: ...
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
    def __call__(  # type: ignore[overload-cannot-match, overload-overlap]
        self, func: Callable[P, Co[R]], /
    ) -> TaskFunction[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: types.FirstRuntime[P, R], /
    ) -> TaskFunction[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: types.FirstConfig[P, R], /
    ) -> TaskFunction[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: types.FirstWriter[P, R], /
    ) -> TaskFunction[P, R]: ...
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
    def __call__(  # type: ignore[overload-cannot-match]
        self, func: Callable[P, R], /
    ) -> TaskFunction[P, R]: ...
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
