"""`task`: makes a function a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from flowpregel.func.options import TaskOptions, checked_options
from flowpregel.func.tasks import TaskFunction
from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy

P = ParamSpec("P")
R = TypeVar("R")


class _Decorator(Protocol):
    """What ``task(...)`` returns without a function."""

    @overload
    def __call__(self, func: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> TaskFunction[P, R]: ...


@overload
def task(func: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R]: ...
@overload
def task(func: Callable[P, R], /) -> TaskFunction[P, R]: ...
@overload
def task(
    func: None = None,
    /,
    *,
    name: str | None = None,
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
    cache_policy: CachePolicy | None = None,
    cache: bool = False,
    timeout: float | timedelta | TimeoutPolicy | None = None,
    executor: Any = None,
    version: str | None = None,
    on_code_change: Literal["keep", "rerun", "error"] | None = None,
    adopts: str | Sequence[str] = (),
    redact: str | Sequence[str] = (),
    cpus: float | None = None,
    memory: int | str | None = None,
    gpus: int | None = None,
    limit: str | Sequence[str] | None = None,
    rate: str | None = None,
    priority: int | None = None,
) -> _Decorator: ...


def task(func: Any = None, /, **options: Any) -> Any:
    """Make a function a task: a call that is recorded, and may run in another process.

    Inside a run a call returns a future at once; ``.result()`` waits for it in
    sync code, ``await`` in async code. A call whose result was recorded is not
    made again when its run is resumed.

    Args:
        func: A function, a method, an async function, a partial, any callable.
        options: The fields of `TaskOptions`: ``name``, ``retry_policy``,
            ``cache_policy``, ``cache``, ``timeout``, ``executor``, ``version``,
            ``on_code_change``, ``adopts``, ``redact``, and what a call takes: ``cpus``,
            ``memory``, ``gpus``, ``limit``, ``rate``, ``priority``.

    Raises:
        ConfigurationError: *func* is a generator or cannot be called, or an
            option cannot be.
        TypeError: There is no such option.

    Example:
        >>> @task(timeout=60)
        ... def simulate(seed: int) -> float:
        ...     return seed / 2
        >>> simulate.func(3)
        1.5
    """
    decorate = partial(TaskFunction, options=TaskOptions(**checked_options(options)))
    return decorate if func is None else decorate(func)
