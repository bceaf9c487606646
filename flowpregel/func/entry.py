"""`entrypoint`, which compiles a function that calls tasks to a `Pregel` with
one node.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar, get_args, get_origin, overload

from flowpregel._annotations import hints_of
from flowpregel._core.commands import (
    is_coroutine_function,
    is_generator_function,
    name_of,
)
from flowpregel._core.program import names
from flowpregel._core.records import PREVIOUS
from flowpregel._text import no_such_option
from flowpregel.channels import EphemeralValue, LastValue
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.events import Durability
from flowpregel.executors.calls import refuse_futures
from flowpregel.func.flow import Flow, run_identity_of
from flowpregel.func.options import check_names, is_task
from flowpregel.func.parameters import FlowParameters, parameters_of
from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy
from flowpregel.pregel._write import ChannelWriteEntry
from flowpregel.pregel.config import parse
from flowpregel.pregel.definition import END, START
from flowpregel.pregel.hooks import EndHooks, Hook
from flowpregel.pregel.invocation import check_choices
from flowpregel.pregel.node import Channel, PregelNode
from flowpregel.pregel.schedule import CatchUp, Schedule

P = ParamSpec("P")
R = TypeVar("R")
ValueT = TypeVar("ValueT")
SaveT = TypeVar("SaveT")
_OF_SCHEDULE = frozenset({"timezone", "catch_up", "jitter"})
"""The options of `entrypoint` that require one of the options *cron* and *every*."""


@dataclass(frozen=True, eq=False)
class EntrypointOptions:
    """The options of a workflow; `entrypoint` documents the fields."""

    checkpointer: BaseCheckpointSaver | str | os.PathLike[str] | bool | None = None
    store: Any = None
    cache: Any = None
    context_schema: type[Any] | None = None
    cache_policy: CachePolicy | None = None
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None
    timeout: float | timedelta | TimeoutPolicy | None = None
    executor: Any = None
    adopts: str | Sequence[str] = ()
    on_end: Hook | None = None
    on_failure: Hook | None = None
    durability: Durability | None = None
    max_concurrency: int | None = None
    metadata: Mapping[str, Any] | None = None
    tags: Sequence[str] | None = None
    context: Any = None
    check_mutations: bool | None = None
    cron: str | None = None
    every: float | timedelta | str | None = None
    timezone: str = "UTC"
    catch_up: CatchUp = "last"
    jitter: float | timedelta | str = 0.0

    def __post_init__(self) -> None:
        check_names("entrypoint", "adopts", self.adopts)
        for name in ("on_end", "on_failure"):
            hook: Any = getattr(self, name)
            if hook is None:
                continue
            if not callable(hook) or is_coroutine_function(hook):
                raise ConfigurationError(
                    f"entrypoint({name}={hook!r}): use a function, not async"
                )
        check_choices(self.run_options)
        parse(self.config)
        _ = self.schedule

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the workflow, or None.

        Raises:
            ConfigurationError: An option of the schedule is not allowed.
        """
        if self.cron is not None or self.every is not None:
            return Schedule(
                cron=self.cron,
                every=self.every,
                timezone=self.timezone,
                catch_up=self.catch_up,
                jitter=self.jitter,
            )
        for field in fields(EntrypointOptions):
            value = getattr(self, field.name)
            if field.name in _OF_SCHEDULE and value != field.default:
                raise ConfigurationError(
                    f"entrypoint({field.name}={value!r}) is part of a schedule: pass "
                    "cron= or every=, too"
                )
        return None

    @property
    def run_options(self) -> dict[str, Any]:
        """The workflow's default options for each run."""
        options = {
            "durability": self.durability,
            "context": self.context,
            "check_mutations": self.check_mutations,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def config(self) -> dict[str, Any]:
        """The default config of each run, to which the run's own config is added."""
        config: dict[str, Any] = {
            "max_concurrency": self.max_concurrency,
            "metadata": self.metadata,
            "tags": self.tags,
        }
        if self.on_end is not None or self.on_failure is not None:
            config["callbacks"] = [EndHooks(self.on_end, self.on_failure)]
        return {name: value for name, value in config.items() if value is not None}


class entrypoint(EntrypointOptions):
    """Make a function a workflow, which calls tasks, waits for them, and can be
    resumed.

    `Flow.run` takes the function's own arguments. For `invoke` and the other methods of
    LangGraph, the input is the value of the function's only parameter, or a dict of the
    values of several parameters. The function may also have these parameters, which the
    run fills in by name: ``previous`` (the value that the thread's last run returned or
    saved), ``config``, ``runtime``, ``context``, ``store``, ``writer``.

    The function is the body of the workflow. It runs in this process, on a separate OS
    thread, or on the event loop if it is an ``async def``. When a run is resumed, the
    body runs again from the beginning, and calls of tasks that had finished return
    their recorded results.

    Args:
        checkpointer: The saver that stores runs, or the path of an LMDB folder.
        store: A long-term store for values that outlive threads.
        cache: The cache that shares results between runs, for tasks with a cache
            policy.
        context_schema: The class to which a run's ``context`` dict is converted.
        cache_policy: The policy for sharing the result of the whole workflow.
        retry_policy: The policy for retries of the body. Tasks have their own policies.
        timeout: Seconds that an async body may take, or a policy.
        executor: The default executor of tasks: ``"processes"``, ``"threads"``,
            ``"inline"``, an executor, or a function that makes an executor when the
            first task needs it.
        adopts: The former name of the function, or several names. Runs of workflows
            with these names can be resumed.
        on_end: A function that is called once in this process, with a `RunEnd`, when a
            run has succeeded.
        on_failure: A function that is called in the same way when a run has failed. If
            the process of a run died, the next process that resumes the run calls the
            function.
        durability, max_concurrency, context, check_mutations: The defaults for each
            run; see `Flow.run`.
        metadata, tags: Added to the metadata and tags of each run.
        cron: The times at which ``flowpregel work`` begins a run, as a cron expression,
            such as ``"0 3 * * *"``. The first parameter of the function gets the due
            time, a datetime.
        every: The period between two runs, in place of *cron*: seconds, a timedelta, or
            a string such as ``"1h"``.
        timezone: The name of the time zone of *cron*, such as ``"Europe/Berlin"``.
        catch_up: The due times for which runs begin later, if they passed while no
            ``flowpregel work`` was running: none (``"skip"``), the ``"last"`` one, or
            ``"all"``.
        jitter: The longest random delay of a scheduled run.

    Raises:
        ConfigurationError: The function cannot be a workflow; the message gives the
            reason.
        TypeError: There is no such option.

    Example:
        >>> from flowpregel.func import entrypoint, task
        >>> @task
        ... def double(n: int) -> int:
        ...     return 2 * n
        >>> @entrypoint(executor="inline")
        ... def total(numbers: list[int]) -> int:
        ...     return sum(future.result() for future in double.map(numbers))
        >>> total.run([1, 2, 3])
        12
    """

    @dataclass(frozen=True, slots=True)
    class final(Generic[ValueT, SaveT]):
        """A return value of a workflow, with a different value to save for the next
        run.

        Args:
            value: The value that the run returns.
            save: The value that the next run on this thread gets as ``previous``.
        """

        value: ValueT
        save: SaveT

    @overload
    def __new__(  # type: ignore[misc]
        cls, func: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Flow[P, R]: ...
    @overload
    def __new__(cls, func: Callable[P, R], /) -> Flow[P, R]: ...  # type: ignore[misc]
    @overload
    def __new__(
        cls,
        checkpointer: BaseCheckpointSaver | str | os.PathLike[str] | bool | None = None,
        store: Any = None,
        cache: Any = None,
        context_schema: type[Any] | None = None,
        cache_policy: CachePolicy | None = None,
        retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
        timeout: float | timedelta | TimeoutPolicy | None = None,
        executor: Any = None,
        adopts: str | Sequence[str] = (),
        on_end: Hook | None = None,
        on_failure: Hook | None = None,
        durability: Durability | None = None,
        max_concurrency: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        context: Any = None,
        check_mutations: bool | None = None,
        cron: str | None = None,
        every: float | timedelta | str | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "last",
        jitter: float | timedelta | str = 0.0,
    ) -> entrypoint: ...
    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Return a decorator, or the workflow itself for ``@entrypoint`` without
        parentheses.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(no_such_option("@entrypoint", name, known))
        is_bare = len(args) == 1 and not options and callable(args[0])
        if is_bare and not isinstance(args[0], BaseCheckpointSaver):
            return cls()(args[0])
        return super().__new__(cls)

    @overload
    def __call__(
        self, func: Callable[P, Coroutine[Any, Any, entrypoint.final[R, Any]]]
    ) -> Flow[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, Coroutine[Any, Any, R]]) -> Flow[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, entrypoint.final[R, Any]]) -> Flow[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R]) -> Flow[P, R]: ...
    def __call__(self, func: Callable[..., Any]) -> Any:
        """Return the workflow of *func*."""
        name = name_of(func)
        parameters = _checked_parameters(
            func, name, has_timeout=self.timeout is not None
        )
        return flow_of_body(self, func, parameters)


def flow_of_body(
    options: EntrypointOptions, func: Callable[..., Any], parameters: FlowParameters
) -> Any:
    """Return the workflow of a body.

    Args:
        options: The options of the workflow.
        func: The function of the workflow (its body).
        parameters: The parameters of the workflow, which convert the arguments of
            a run to its input, and the input to the arguments of *func*.
    """
    name = name_of(func)
    first = next(iter(parameters.signature.parameters)) if parameters.is_one else None
    input_type, returned, saved = _types_of(func, first)
    graph: Flow[..., Any] = Flow(
        parameters,
        run_identity_of(func, name, names(options.adopts)),
        nodes={name: _body_node(options, func, parameters)},
        channels={
            # The input channel accepts two writes in one superstep (``guard=False``),
            # because a run with ``adopt`` writes the new input after the recorded one.
            START: EphemeralValue(input_type, guard=False),
            END: LastValue(returned),
            PREVIOUS: LastValue(saved),
        },
        input_channels=START,
        output_channels=END,
        stream_channels=END,
        stream_mode="updates",
        checkpointer=options.checkpointer,
        store=options.store,
        cache=options.cache,
        context_schema=options.context_schema,
        name=name,
        executor=options.executor,
        config=options.config,
    )
    graph.run_options = options.run_options
    graph.schedule = options.schedule
    if graph.schedule is not None:
        _check_scheduled(name, parameters)
    graph.__doc__ = func.__doc__
    return graph


def _check_scheduled(name: str, parameters: FlowParameters) -> None:
    """Raise an error if the function of a scheduled workflow cannot be called with the
    due time alone.

    Raises:
        ConfigurationError: A further parameter has no default.
    """
    try:
        parameters.signature.bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"entrypoint {name!r} has a schedule, so its function is called with the "
            f"due time alone, but {error}"
        ) from error


def _body_node(
    options: EntrypointOptions, func: Callable[..., Any], parameters: FlowParameters
) -> PregelNode:
    """Return the node that calls *func*. The node writes the result, and the value to
    save for the next run.
    """
    writes = [
        ChannelWriteEntry(END, mapper=_final_value),
        ChannelWriteEntry(PREVIOUS, mapper=_save_of),
    ]
    return PregelNode(
        channels=START,
        triggers=[START],
        mapper=parameters.arguments_of,
        bound=func,
        writers=[Channel.write_to(*writes)],
        retry_policy=options.retry_policy,
        cache_policy=options.cache_policy,
        timeout=options.timeout,
        role="body",
    )


def _final_value(returned: Any) -> Any:
    value = returned.value if isinstance(returned, entrypoint.final) else returned
    refuse_futures(value)
    return value


def _save_of(returned: Any) -> Any:
    return returned.save if isinstance(returned, entrypoint.final) else returned


def _checked_parameters(func: Any, name: str, *, has_timeout: bool) -> FlowParameters:
    """Return the parameters of a workflow's function.

    Raises:
        ConfigurationError: *func* cannot be a workflow.
    """
    if not callable(func):
        raise ConfigurationError(f"@entrypoint() takes a function, not {func!r}")
    if is_task(func):
        raise ConfigurationError(
            f"@entrypoint() takes a function, and {name!r} is a task: call it in the "
            f"body of a workflow, or pass its plain function, {name}.func"
        )
    if isinstance(func, Flow):
        raise ConfigurationError(
            f"@entrypoint() takes a function, and {name!r} is a workflow already"
        )
    if is_generator_function(func):
        raise ConfigurationError(
            f"entrypoint {name!r} is a generator: return the result, send its parts "
            "to the stream with get_stream_writer(), and read them with "
            f"{name}.stream(..., stream_mode='custom')"
        )
    parameters = parameters_of(func, name)
    first = next(iter(parameters.signature.parameters), None)
    if first == "self" and inspect.isfunction(func):
        raise ConfigurationError(
            f"entrypoint {name!r} is a method, and would be called without its "
            "object: make the workflow from the bound method, as in `self.flow = "
            f"entrypoint(...)(self.{name})`"
        )
    if first is None:
        raise ConfigurationError(
            f"entrypoint {name!r} takes no input: give it a parameter"
        )
    if has_timeout and not is_coroutine_function(func):
        raise ConfigurationError(
            f"entrypoint {name!r} is sync, so its body cannot be stopped at its "
            "timeout: give the timeout to its tasks, or make it async"
        )
    return parameters


def _types_of(func: Any, only: str | None) -> tuple[Any, Any, Any]:
    """Return the types of a body's input and result, and of the value that the body
    saves for the next run.

    Args:
        func: The function of the workflow (its body).
        only: The name of the body's only parameter, or None if there are several.
    """
    hints = hints_of(func)
    input_type = dict if only is None else hints.get(only, Any)
    returned = hints.get("return", Any)
    if get_origin(returned) is entrypoint.final:
        value_type, saved_type = get_args(returned)
        return input_type, value_type, saved_type
    if returned is entrypoint.final:
        return input_type, Any, Any
    return input_type, returned, returned
