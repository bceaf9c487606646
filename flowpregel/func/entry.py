"""`entrypoint`: a function that calls tasks, compiled to a `Pregel` of one node."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar, get_args, get_origin

from flowpregel._core.callee import is_coroutine_function, is_generator_function, name_of
from flowpregel._core.records import PREVIOUS
from flowpregel.channels import EphemeralValue, LastValue
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.node import Channel, ChannelWriteEntry, PregelNode
from flowpregel.pregel.pregel import Pregel

ValueT = TypeVar("ValueT")
SaveT = TypeVar("SaveT")


@dataclass(eq=False)
class entrypoint:
    """Make a function a workflow: it calls tasks and waits for them, and can be resumed.

    The function takes one input. It may also have these parameters, filled in by
    name: ``previous`` (what the thread's last run returned or saved), ``config``,
    ``runtime``, ``context``, ``store``, ``writer``.

    Its body runs in this process, in an OS thread of its own (``async def``: on the
    event loop). When a run is resumed the body runs again from its beginning, and
    calls of tasks that had finished return what was recorded.

    Args:
        checkpointer: Keeps runs: a saver, or the path of an LMDB folder.
        store: A long-term store for what outlives threads.
        cache: Shares results between runs, for tasks with a cache policy.
        context_schema: The class that a run's ``context`` dict becomes.
        cache_policy: How long the whole workflow's result is shared.
        retry_policy: When the body is tried again. Tasks have their own policies.
        timeout: Seconds that an async body may take, or a policy.
        executor: Where tasks run that do not say it themselves: ``"processes"``,
            ``"threads"``, ``"inline"``, or an executor.

    Raises:
        ConfigurationError: The function cannot be a workflow; the message says why.

    Example:
        >>> from flowpregel.func import entrypoint, task
        >>> @task
        ... def double(n: int) -> int:
        ...     return 2 * n
        >>> @entrypoint(executor="inline")
        ... def total(numbers: list[int]) -> int:
        ...     return sum(future.result() for future in double.map(numbers))
        >>> total.invoke([1, 2, 3])
        12
    """

    @dataclass(frozen=True, slots=True)
    class final(Generic[ValueT, SaveT]):
        """Returned by a workflow, saves another thing for the next run than it returns.

        Args:
            value: What the run returns.
            save: What the next run on this thread is given as ``previous``.
        """

        value: ValueT
        save: SaveT

    checkpointer: BaseCheckpointSaver | str | os.PathLike[str] | bool | None = None
    store: Any = None
    cache: Any = None
    context_schema: type[Any] | None = None
    cache_policy: CachePolicy | None = None
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None
    timeout: float | timedelta | TimeoutPolicy | None = None
    executor: Any = None

    def __post_init__(self) -> None:
        if callable(self.checkpointer) and not isinstance(self.checkpointer, BaseCheckpointSaver):
            raise ConfigurationError("write @entrypoint(), with parentheses")
        self.timeout = TimeoutPolicy.coerce(self.timeout)

    def __call__(self, func: Callable[..., Any]) -> Pregel:
        """Return the workflow of *func*."""
        name = name_of(func)
        parameters = _check_body(func, name, has_timeout=self.timeout is not None)
        writes = [
            ChannelWriteEntry(END, mapper=_value_of),
            ChannelWriteEntry(PREVIOUS, mapper=_save_of),
        ]
        node = PregelNode(
            channels=START,
            triggers=[START],
            bound=func,
            writers=[Channel.write_to(*writes)],
            retry_policy=self.retry_policy,
            cache_policy=self.cache_policy,
            timeout=self.timeout,
            role="body",
        )
        given, returned, saved = _types_of(func, parameters[0].name if parameters else "")
        graph = Pregel(
            nodes={name: node},
            channels={
                START: EphemeralValue(given),
                END: LastValue(returned),
                PREVIOUS: LastValue(saved),
            },
            input_channels=START,
            output_channels=END,
            stream_channels=END,
            stream_mode="updates",
            checkpointer=self.checkpointer,
            store=self.store,
            cache=self.cache,
            context_schema=self.context_schema,
            name=name,
            executor=self.executor,
        )
        graph.__doc__ = func.__doc__
        return graph


def _value_of(returned: Any) -> Any:
    return returned.value if isinstance(returned, entrypoint.final) else returned


def _save_of(returned: Any) -> Any:
    return returned.save if isinstance(returned, entrypoint.final) else returned


def _check_body(func: Any, name: str, *, has_timeout: bool) -> list[inspect.Parameter]:
    """Refuse what cannot be a workflow, and return its parameters, as far as they are known."""
    if not callable(func):
        raise ConfigurationError(f"@entrypoint() takes a function, not {func!r}")
    if is_generator_function(func):
        raise ConfigurationError(
            f"entrypoint {name!r} is a generator: return the result, give the stream its parts "
            f"with get_stream_writer(), and read them with {name}.stream(..., "
            "stream_mode='custom')"
        )
    try:
        parameters = [*inspect.signature(func).parameters.values()]
    except (TypeError, ValueError):
        return []
    if parameters and parameters[0].name == "self" and inspect.isfunction(func):
        raise ConfigurationError(
            f"entrypoint {name!r} is a method, and nothing would give it its object: make the "
            f"workflow of the bound method, as in `self.flow = entrypoint(...)(self.{name})`"
        )
    if not any(p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD for p in parameters):
        raise ConfigurationError(
            f"entrypoint {name!r} takes no input: give it one parameter (several values go in a "
            "dict or a tuple)"
        )
    if has_timeout and not is_coroutine_function(func):
        raise ConfigurationError(
            f"entrypoint {name!r} is sync, and its body cannot be stopped when its timeout is "
            "over: give the timeout to its tasks, or make it async"
        )
    return parameters


def _types_of(func: Any, first: str) -> tuple[Any, Any, Any]:
    """Return the types of a body's input (*first*), of what it returns, and of what it saves."""
    try:
        hints = typing.get_type_hints(func)
    except Exception:  # noqa: BLE001 - annotations may name what is not there at run time
        hints = dict(getattr(func, "__annotations__", {}))
    given, returned = hints.get(first, Any), hints.get("return", Any)
    saved = returned
    if get_origin(returned) is entrypoint.final:
        returned, saved = get_args(returned)
    elif returned is entrypoint.final:
        returned = saved = Any
    return tuple(Any if isinstance(kind, str) else kind for kind in (given, returned, saved))  # type: ignore[return-value]
