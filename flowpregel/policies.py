"""Policies for retries, timeouts and caching, and the resources of a task.

Policies are plain values, which the core and the executors apply.
"""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from flowpregel import errors
from flowpregel.errors import ConfigurationError
from flowpregel.units import bytes_of

RetryOn: TypeAlias = (
    type[BaseException]
    | Sequence[type[BaseException]]
    | Callable[[BaseException], bool]
)

_PASSING_ERRORS: tuple[builtins.type[BaseException], ...] = (
    ConnectionError,
    errors.MachineLostError,
    errors.NodeCancelledError,
    errors.NodeTimeoutError,
    errors.WorkerDiedError,
)
_FINAL_ERRORS: tuple[builtins.type[BaseException], ...] = (
    errors.FlowPregelError,
    ValueError,
    TypeError,
    ArithmeticError,
    ImportError,
    LookupError,
    NameError,
    SyntaxError,
    RuntimeError,
    ReferenceError,
    StopIteration,
    StopAsyncIteration,
    OSError,
)


def default_retry_on(error: BaseException) -> bool:
    """Return whether *error* is likely to be temporary, so that a retry may succeed.

    Temporary errors are broken connections, HTTP status 5xx, timeouts, the death of a
    worker, the loss of a machine, and exceptions of unknown classes. Not temporary are
    mistakes in the code (``ValueError``, ``TypeError``, ...), errors of the operating
    system (``OSError``) and errors of flowpregel.

    Args:
        error: The exception that an attempt raised.

    Example:
        >>> default_retry_on(ConnectionError()), default_retry_on(ValueError())
        (True, False)
    """
    if isinstance(error, _PASSING_ERRORS):
        return True
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return 500 <= status < 600
    return not isinstance(error, _FINAL_ERRORS) and isinstance(error, Exception)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether *error* means that an attempt ran out of memory.

    Args:
        error: The exception that an attempt raised.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError())
        (True, False)
    """
    if isinstance(error, errors.WorkerDiedError):
        return error.is_out_of_memory
    return isinstance(error, MemoryError)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The rule by which a failed task is retried.

    Example:
        >>> from flowpregel import task
        >>> @task(retry_policy=RetryPolicy(max_attempts=5, retry_on=ConnectionError))
        ... def look_up(word: str) -> str:
        ...     return f"the entry of {word}"
        >>> RetryPolicy(initial_interval=1.0, jitter=False).delay(2, jitter=0.0)
        2.0
    """

    initial_interval: float = 0.5
    """Seconds before the second attempt."""
    backoff_factor: float = 2.0
    """The factor by which each wait is longer than the wait before."""
    max_interval: float = 128.0
    """The longest wait in seconds, without jitter."""
    max_attempts: int = 3
    """The maximum number of attempts, including the first."""
    jitter: bool = True
    """True to add a random time to each wait: at most one second, and at most the wait
    itself.
    """
    retry_on: RetryOn = default_retry_on
    """An exception class, several classes, or a function that takes an error and
    returns True to retry.
    """
    max_worker_deaths: int = 3
    """The number of deaths of workers and losses of machines after which a task is not
    retried, even if `max_attempts` is higher. A task that kills its worker at each
    attempt (because it crashes, or needs more memory than available) delays all other
    tasks while new workers start.
    """
    on_memory: Literal["alone"] | float | None = None
    """The treatment of an attempt that ran out of memory: its worker was killed by the
    kernel's OOM killer, or it raised a ``MemoryError``. None treats it like any other
    failure. Otherwise it is retried whatever `retry_on` is. With ``"alone"``, no other
    task of the pool runs beside the next attempt. With a number, the next attempt
    claims the measured peak memory, or ``memory=`` if that is more, times the number.
    """

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_worker_deaths"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ConfigurationError(
                    f"{name} is {value!r}; use a whole number of at least 1"
                )
        for name in ("initial_interval", "max_interval"):
            if not _is_number(value := getattr(self, name)) or value < 0:
                raise ConfigurationError(f"{name} is {value!r}; use seconds, 0 or more")
        if not _is_number(self.backoff_factor) or self.backoff_factor < 1:
            raise ConfigurationError(
                f"backoff_factor is {self.backoff_factor!r}; use a number of at least 1"
            )
        _check_on_memory(self.on_memory)
        if not _says_what_to_retry(self.retry_on):
            raise ConfigurationError(
                f"retry_on is {self.retry_on!r}; use an exception class, a sequence of "
                "them, or a function that takes the error and returns a bool"
            )

    def matches(self, error: BaseException) -> bool:
        """Return whether this policy applies to *error*.

        Example:
            >>> policy = RetryPolicy(retry_on=ConnectionError)
            >>> policy.matches(ConnectionError()), policy.matches(ValueError())
            (True, False)
        """
        if self.on_memory is not None and is_out_of_memory(error):
            return True
        if isinstance(self.retry_on, type | Sequence):
            kinds = (
                self.retry_on
                if isinstance(self.retry_on, type)
                else tuple(self.retry_on)
            )
            return isinstance(error, kinds)
        return bool(self.retry_on(error))

    def delay(self, attempt: int, jitter: float) -> float | None:
        """Return the seconds to wait after *attempt*, or None to give up.

        Args:
            attempt: The number of the failed attempt, counted from 1.
            jitter: A random number in [0, 1).
        """
        if attempt >= self.max_attempts:
            return None
        try:
            grown = self.initial_interval * float(self.backoff_factor) ** (attempt - 1)
        except OverflowError:
            # The power overflows a float after about a thousand attempts, so the
            # longest wait is used.
            grown = self.max_interval if self.initial_interval else 0.0
        wait = min(self.max_interval, grown)
        return wait + jitter * min(1.0, wait) if self.jitter else wait


def _check_on_memory(value: Any) -> None:
    """Raise a `ConfigurationError` unless *value* is allowed for ``on_memory``."""
    is_factor = _is_number(value) and value >= 1
    if not is_factor and value not in (None, "alone"):
        raise ConfigurationError(
            f"on_memory is {value!r}; use 'alone', or a factor of at least 1 for the "
            "memory of the next attempt"
        )


def _is_number(value: Any) -> bool:
    """Return whether *value* is a finite number and not a bool."""
    return (
        isinstance(value, int | float)
        and type(value) is not bool
        and math.isfinite(value)
    )


def _says_what_to_retry(value: Any) -> bool:
    if isinstance(value, type | Sequence):
        kinds = (value,) if isinstance(value, type) else value
        return all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
        )
    return callable(value)


class TimeLimit(NamedTuple):
    """A limit that a `TimeoutPolicy` sets for an attempt."""

    at: float
    """The time at which the attempt reaches the limit, in seconds on the executor's
    clock, or infinity if there is no limit.
    """
    kind: Literal["run", "idle"]
    seconds: float
    """The seconds that the attempt may take, or may go without a sign of life."""

    def error(self, task: str, elapsed: float) -> errors.NodeTimeoutError:
        """Return the error of a *task* that has reached the limit after *elapsed*
        seconds.
        """
        return errors.NodeTimeoutError(task, elapsed, self.kind, self.seconds)


@dataclass(frozen=True, kw_only=True)
class TimeoutPolicy:
    """The time that a task may take, in seconds (numbers) or as a ``timedelta``.

    Example:
        >>> from flowpregel import task
        >>> @task(timeout=TimeoutPolicy(run_timeout=3600, idle_timeout=60))
        ... def train(epochs: int) -> float:
        ...     return 1 / epochs
    """

    run_timeout: float | timedelta | None = None
    """The maximum duration of one attempt."""
    idle_timeout: float | timedelta | None = None
    """The maximum time without a sign of life."""
    refresh_on: Literal["auto", "heartbeat"] = "auto"
    """The signs of life that count: ``"auto"`` for all that the task emits,
    ``"heartbeat"`` for heartbeats only.
    """

    def __post_init__(self) -> None:
        for name in ("run_timeout", "idle_timeout"):
            value = getattr(self, name)
            if value is None:
                continue
            seconds = value.total_seconds() if isinstance(value, timedelta) else value
            if not _is_number(seconds) or seconds <= 0:
                raise ConfigurationError(
                    f"{name} must be greater than 0 seconds, not {value!r}; use None "
                    "for no limit"
                )
            object.__setattr__(self, name, float(seconds))
        if self.refresh_on not in ("auto", "heartbeat"):
            raise ConfigurationError(
                f"refresh_on is {self.refresh_on!r}; use 'auto' or 'heartbeat'"
            )

    @classmethod
    def coerce(cls, value: float | timedelta | Self | None) -> Self | None:
        """Return *value* as a policy, or None for None. Plain seconds are a
        *run_timeout*.

        Example:
            >>> TimeoutPolicy.coerce(60).run_timeout
            60.0
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
            return cls(run_timeout=value)
        raise ConfigurationError(
            f"a timeout is seconds, a timedelta or a TimeoutPolicy, not {value!r}"
        )

    def next_limit(self, began: float, alive: float) -> TimeLimit:
        """Return the limit that an attempt reaches first.

        Args:
            began: The time at which the attempt began, in seconds on any clock.
            alive: The time of the attempt's last sign of life, on the same clock.

        Example:
            >>> policy = TimeoutPolicy(run_timeout=60, idle_timeout=10)
            >>> policy.next_limit(began=0.0, alive=30.0).at
            40.0
        """
        run_seconds = _seconds_of(self.run_timeout)
        idle_seconds = _seconds_of(self.idle_timeout)
        run_limit = TimeLimit(began + run_seconds, "run", run_seconds)
        idle_limit = TimeLimit(alive + idle_seconds, "idle", idle_seconds)
        return run_limit if run_limit.at <= idle_limit.at else idle_limit


def _seconds_of(timeout: Any) -> float:
    """Return a checked timeout in seconds: infinity for None."""
    return math.inf if timeout is None else float(timeout)


@dataclass(frozen=True, kw_only=True)
class CachePolicy:
    """The sharing of a task's result with later tasks that have the same input.

    Example:
        >>> from flowpregel import task
        >>> @task(cache_policy=CachePolicy(key_func=str.lower, ttl=3600))
        ... def look_up(word: str) -> str:
        ...     return f"the entry of {word}"
    """

    key_func: Callable[..., str | bytes] | None = None
    """A function that computes the key from the task's input. None means a digest of
    the input's content.
    """
    ttl: float | None = None
    """Seconds for which a result may be used, or None for no limit."""

    def __post_init__(self) -> None:
        if self.key_func is not None and not callable(self.key_func):
            raise ConfigurationError(
                f"key_func is {self.key_func!r}; use a function that makes a str or "
                "bytes from the task's input"
            )
        if self.ttl is not None and (not _is_number(self.ttl) or self.ttl <= 0):
            raise ConfigurationError(
                f"ttl must be greater than 0 seconds, not {self.ttl!r}; use None for "
                "no limit"
            )


@dataclass(frozen=True, kw_only=True)
class TracePolicy:
    """The input and the output of a node that tracers record.

    The policy only changes the values that LangChain's tracers in
    ``config["callbacks"]`` get when the node starts and ends, for example to leave out
    a long history of messages. It hides no secrets: tracers get the values of the run
    itself, and of models and tools that the node calls, unchanged.

    Example:
        >>> from flowpregel.graph import StateGraph
        >>> from flowpregel.types import TracePolicy, omit_payload
        >>> policy = TracePolicy(process_inputs=omit_payload)
        >>> graph = StateGraph(dict).add_node("load", dict, trace_policy=policy)
        >>> graph.nodes["load"].trace_policy is policy
        True
    """

    process_inputs: Callable[[Any], Any] | None = None
    """A function that returns the value to record for the node's input. If this field
    is None, the input itself is recorded.
    """
    process_outputs: Callable[[Any], Any] | None = None
    """A function that returns the value to record for the node's output. If this field
    is None, the output itself is recorded.
    """


def omit_payload(value: Any) -> dict[str, Any]:
    """Return an empty dict: a function for `TracePolicy` that records no value.

    Args:
        value: The input or the output of a node.

    Example:
        >>> from flowpregel.types import omit_payload
        >>> omit_payload({"messages": ["a long history"]})
        {}
    """
    return {}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that a call of a task takes while it runs, and its priority.

    Example:
        >>> Resources(memory="2GB").memory
        2000000000
    """

    cpus: float | None = None
    """The number of CPUs. None takes one, and does not change the number of BLAS and
    OpenMP threads.
    """
    memory: int | str | None = None
    """The memory in bytes, or as text such as ``"2GB"`` or ``"512MiB"``. None means the
    peak of earlier calls.
    """
    gpus: int = 0
    """The number of GPUs for exclusive use by the call, which sees no other GPUs
    (``CUDA_VISIBLE_DEVICES``).
    """
    limit: str | Sequence[str] = ()
    """The names of limits that the executor sets on the number of calls at a time. The
    call counts once against each of these limits.
    """
    rate: str | None = None
    """The maximum number of calls of the task that start in a period, such as
    ``"60/min"``, or with *cost*, the maximum cost of these calls.
    """
    cost: Callable[..., float] | None = field(default=None, compare=False)
    """A function that returns the cost of a call from the arguments of the call. None
    means that each call costs 1.
    """
    priority: int | None = None
    """The priority. Among waiting calls, the one with the highest priority starts
    first. None means the priority of the calling task, or 0.
    """
    isolation: Literal["fresh"] | None = None
    """``"fresh"`` for a new worker process that runs only this call, and then ends."""

    def __post_init__(self) -> None:
        if self.cpus is not None and (not _is_number(self.cpus) or self.cpus <= 0):
            raise ConfigurationError(f"cpus={self.cpus!r}: use a number greater than 0")
        if type(self.gpus) is not int or self.gpus < 0:
            raise ConfigurationError(f"gpus={self.gpus!r}: use a whole number")
        if self.priority is not None and type(self.priority) is not int:
            raise ConfigurationError(f"priority={self.priority!r}: use a whole number")
        if self.isolation not in (None, "fresh"):
            raise ConfigurationError(
                f"isolation={self.isolation!r}: use 'fresh', for a process of its own "
                "for each call, or None"
            )
        if self.memory is not None:
            object.__setattr__(self, "memory", bytes_of(self.memory))
        object.__setattr__(self, "limit", _limit_names(self.limit))
        self._check_rate()

    def _check_rate(self) -> None:
        """Raise an error if the rate or its cost is not allowed."""
        if self.rate is not None:
            rate_of(self.rate)
        if self.cost is None:
            return
        if self.rate is None or not callable(self.cost):
            raise ConfigurationError(
                f"cost={self.cost!r}: use a function of the arguments, with rate="
            )

    @property
    def of_a_process(self) -> tuple[str, ...]:
        """The names of the options that have a value and that only worker processes
        support.
        """
        names = ("cpus", "memory", "gpus", "isolation")
        return tuple(name for name in names if getattr(self, name))


def _limit_names(limit: Any) -> tuple[str, ...]:
    """Return the names in the option ``limit``, which may be a single name."""
    is_single = isinstance(limit, str) or not isinstance(limit, Iterable)
    names = (limit,) if is_single else tuple(limit)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(
            f"limit={limit!r}: use the name of a limit, or several"
        )
    return names


_SECONDS = {
    "s": 1,
    "second": 1,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "day": 86400,
}


def rate_of(text: str) -> tuple[int, int]:
    """Return a rate as a number of calls and a number of seconds.

    Example:
        >>> rate_of("60/min")
        (60, 60)
    """
    match = re.fullmatch(r"([1-9]\d*)\s*/\s*([a-z]+)", str(text))
    if match is None or match[2] not in _SECONDS:
        raise ConfigurationError(
            f"rate={text!r}: use text such as '60/min'; the units are "
            f"{', '.join(_SECONDS)}"
        )
    return int(match[1]), _SECONDS[match[2]]
