"""How a task is retried, bounded in time, and cached: values that decide and never act."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self, TypeAlias

from flowpregel.errors import (
    ConfigurationError,
    FlowPregelError,
    NodeTimeoutError,
    WorkerDiedError,
)

RetryOn: TypeAlias = (
    type[BaseException] | Sequence[type[BaseException]] | Callable[[BaseException], bool]
)

_FINAL_ERRORS: tuple[builtins.type[BaseException], ...] = (
    ValueError, TypeError, ArithmeticError, ImportError, LookupError, NameError,
    SyntaxError, RuntimeError, ReferenceError, StopIteration, StopAsyncIteration, OSError,
)  # fmt: skip


def default_retry_on(error: BaseException) -> bool:
    """Return whether *error* is likely to pass: broken connections, HTTP 5xx, the unknown.

    Mistakes in the code (``ValueError``, ``TypeError``, ...) and what the
    operating system refuses are final; so are our own errors, but for timeouts and
    dead workers.
    """
    if isinstance(error, FlowPregelError):
        return isinstance(error, NodeTimeoutError | WorkerDiedError)
    if isinstance(error, ConnectionError):
        return True
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return 500 <= status < 600
    return not isinstance(error, _FINAL_ERRORS) and isinstance(error, Exception)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When to try a failed task again.

    Example:
        >>> RetryPolicy(initial_interval=1.0, jitter=False).delay(2, luck=0.0)
        2.0
    """

    initial_interval: float = 0.5
    """Seconds before the second attempt."""
    backoff_factor: float = 2.0
    """How much longer each further wait is."""
    max_interval: float = 128.0
    """The longest wait, in seconds."""
    max_attempts: int = 3
    """How often to try, the first attempt included."""
    jitter: bool = True
    """Whether to add up to one second, at most the wait itself, at random."""
    retry_on: RetryOn = default_retry_on
    """An error class, several, or a function that says whether to retry an error."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigurationError(f"max_attempts is {self.max_attempts}; use at least 1")
        if self.initial_interval < 0 or self.max_interval < 0:
            raise ConfigurationError("retry intervals are seconds and cannot be negative")
        if self.backoff_factor < 1:
            raise ConfigurationError(f"backoff_factor is {self.backoff_factor}; use at least 1")

    def matches(self, error: BaseException) -> bool:
        """Return whether this policy is meant for *error*."""
        if isinstance(self.retry_on, type):
            return isinstance(error, self.retry_on)
        if isinstance(self.retry_on, Sequence):
            return isinstance(error, tuple(self.retry_on))
        return bool(self.retry_on(error))

    def delay(self, attempt: int, luck: float) -> float | None:
        """Return the seconds to wait after *attempt*, or None to give up.

        Args:
            attempt: Which attempt failed, counted from 1.
            luck: A random number in [0, 1).
        """
        if attempt >= self.max_attempts:
            return None
        wait = min(
            self.max_interval, self.initial_interval * self.backoff_factor ** (attempt - 1)
        )
        return wait + luck * min(1.0, wait) if self.jitter else wait


@dataclass(frozen=True, kw_only=True)
class TimeoutPolicy:
    """How long a task may take, in seconds (numbers) or as a ``timedelta``."""

    run_timeout: float | timedelta | None = None
    """The most seconds one attempt may take."""
    idle_timeout: float | timedelta | None = None
    """The most seconds without a sign of life."""
    refresh_on: Literal["auto", "heartbeat"] = "auto"
    """What counts as a sign of life: anything the task emits, or its heartbeats alone."""

    def __post_init__(self) -> None:
        for name in ("run_timeout", "idle_timeout"):
            value = getattr(self, name)
            seconds = value.total_seconds() if isinstance(value, timedelta) else value
            if seconds is not None and not seconds > 0:
                raise ConfigurationError(f"{name} must be greater than 0 seconds, not {value!r}")
            object.__setattr__(self, name, None if seconds is None else float(seconds))
        if self.refresh_on not in ("auto", "heartbeat"):
            raise ConfigurationError(
                f"refresh_on is {self.refresh_on!r}; use 'auto' or 'heartbeat'"
            )

    @classmethod
    def coerce(cls, value: float | timedelta | Self | None) -> Self | None:
        """Return *value* as a policy: plain seconds are a run timeout, None is none."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
            return cls(run_timeout=value)
        raise ConfigurationError(
            f"a timeout is seconds, a timedelta or a TimeoutPolicy, not {value!r}"
        )


@dataclass(frozen=True, kw_only=True)
class CachePolicy:
    """How long a task's result is shared with later tasks that have the same input."""

    key_func: Callable[..., str | bytes] | None = None
    """Makes the key from the task's input; None digests the input's content."""
    ttl: float | None = None
    """Seconds a result may be used; None is for ever."""
