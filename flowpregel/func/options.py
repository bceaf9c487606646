"""The options of a task, checked when the task is defined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, cast

from flowpregel._core.program import names
from flowpregel._core.records import Node
from flowpregel._text import no_such_option
from flowpregel.errors import ConfigurationError
from flowpregel.executors.by_name import check_executor
from flowpregel.policies import CachePolicy, Resources, RetryPolicy, TimeoutPolicy
from flowpregel.pregel.node import checked_cache_policy, policies_of

DEFAULT_STORE: Final = ".flowpregel"
"""The default store of `map`, `imap` and ``task.run``: a folder in the working
directory.
"""


class TaskKeywords(TypedDict, total=False):
    """The keywords of `task`, for type checkers: the fields of `TaskOptions`."""

    name: str | None
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None
    cache_policy: CachePolicy | None
    cache: bool
    timeout: float | timedelta | TimeoutPolicy | None
    executor: Any
    version: str | None
    on_code_change: Literal["keep", "rerun", "error"] | None
    adopts: str | Sequence[str]
    redact: str | Sequence[str]
    cpus: float | None
    memory: int | str | None
    gpus: int | None
    limit: str | Sequence[str] | None
    rate: str | None
    cost: Callable[..., float] | None
    priority: int | None
    isolation: Literal["fresh"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of a task, which apply to each call.

    Example:
        >>> TaskOptions(memory="2GB").resources.memory
        2000000000
    """

    name: str | None = None
    """The name of the task in streams and messages. None means the function's name."""
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None
    """The policy for retries of failed calls, or several policies, of which the first
    that matches the error decides.
    """
    cache_policy: CachePolicy | None = None
    """The policy for sharing results between runs, in the entrypoint's cache or store.
    """
    cache: bool = False
    """True to share results between runs without a time limit; short for
    ``cache_policy=CachePolicy()``.
    """
    timeout: float | timedelta | TimeoutPolicy | None = None
    """Seconds that one attempt may take, or a policy."""
    executor: Any = None
    """The executor of calls: ``"processes"``, ``"threads"``, ``"inline"``, an executor
    object, or a function that makes one when the first call needs it.
    """
    version: str | None = None
    """A version that is compared instead of the code: change the version to mark the
    code as changed. With None, the code itself is compared.
    """
    on_code_change: Literal["keep", "rerun", "error"] | None = None
    """The treatment of a recorded result that different code computed. None means the
    option of the run.
    """
    adopts: str | Sequence[str] = ()
    """The former name of the task, or several names. Calls that were recorded under
    these names are still used.
    """
    redact: str | Sequence[str] = ()
    """The names of parameters whose arguments are left out of messages, and are not
    stored if a call fails.
    """
    cpus: float | None = None
    """The number of CPUs that a call takes. None means one."""
    memory: int | str | None = None
    """The memory that a call takes: bytes, or text such as ``"2GB"``."""
    gpus: int | None = None
    """The number of GPUs that a call has to itself while it runs."""
    limit: str | Sequence[str] | None = None
    """The name of a limit of the executor, or several names. A limit bounds the number
    of calls that run at once.
    """
    rate: str | None = None
    """The maximum number of calls that start in a period, such as ``"60/min"``, or with
    *cost*, the maximum cost of these calls.
    """
    cost: Callable[..., float] | None = None
    """A function that returns the cost of a call from the arguments of the call. It is
    called in the process that drives the run, before each attempt. None means 1.
    """
    priority: int | None = None
    """The priority of a call. Among waiting calls, the one with the highest priority
    starts first.
    """
    isolation: Literal["fresh"] | None = None
    """``"fresh"`` to run each call in a new worker process that ends with the call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", TimeoutPolicy.coerce(self.timeout))
        policies_of(self.retry_policy)
        checked_cache_policy(self.cache_policy)
        object.__setattr__(self, "executor", check_executor(self.executor))
        if not isinstance(self.cache, bool):
            raise ConfigurationError(
                f"task(cache={self.cache!r}): use True; the entrypoint sets where "
                "results are stored, with its checkpointer or cache="
            )
        if self.on_code_change not in (None, "keep", "rerun", "error"):
            raise ConfigurationError(
                f"task(on_code_change={self.on_code_change!r}): use 'keep', 'rerun' or "
                "'error'"
            )
        for option in ("name", "version"):
            text: Any = getattr(self, option)
            if text is not None and (not isinstance(text, str) or not text):
                raise ConfigurationError(f"task({option}={text!r}): use str")
        check_names("task", "adopts", self.adopts)
        # The property is read for its checks alone: it raises an error for a value that
        # is not allowed.
        _ = self.resources

    @property
    def resources(self) -> Resources | None:
        """The resources that a call takes while it runs, or None if none are set."""
        amounts: dict[str, Any] = {}
        for name in NO_RESOURCES:
            amount = getattr(self, name)
            if amount is not None:
                amounts[name] = amount
        return Resources(**amounts) if amounts else None

    @property
    def shares(self) -> CachePolicy | None:
        """The policy for sharing results between runs, or None if they are not
        shared.
        """
        if self.cache_policy is None and self.cache:
            return CachePolicy()
        return self.cache_policy

    def node(self, **other_fields: Any) -> Node:
        """Return the node (the record by which a run calls a task) with these options
        and *other_fields*.

        Args:
            other_fields: The other fields of the node, such as ``name``.

        Example:
            >>> node = TaskOptions(memory="2GB").node(name="double")
            >>> node.name, node.resources.memory
            ('double', 2000000000)
        """
        return Node(
            retry=policies_of(self.retry_policy),
            cache=self.shares,
            timeout=cast("TimeoutPolicy | None", self.timeout),
            resources=self.resources,
            executor=self.executor,
            on_code_change=self.on_code_change,
            adopts=names(self.adopts),
            is_task=True,
            **other_fields,
        )


NO_RESOURCES: Final[Mapping[str, Any]] = dict.fromkeys(
    field.name for field in fields(Resources)
)
"""The resource options of a task, each with the value that means that it is not set."""
SINGLE_CALL: Final[Mapping[str, Any]] = {
    "executor": "inline",
    "retry_policy": None,
    "cache_policy": None,
    "timeout": None,
    **NO_RESOURCES,
}
"""The options of a single call outside of a run, in this process: one attempt, without
limits.
"""


def is_task(func: Any) -> bool:
    """Return whether *func* is a task, the result of `task`."""
    return isinstance(getattr(func, "options", None), TaskOptions)


def check_names(decorator: str, option: str, value: Any) -> None:
    """Check that the value of an option is a name or several names.

    Raises:
        ConfigurationError: *value* is something else, or a name is empty.
    """
    message = f"{decorator}({option}={value!r}): use the former name, or several"
    if isinstance(value, str):
        names: Iterable[Any] = [value]
    elif isinstance(value, Iterable):
        names = value
    else:
        raise ConfigurationError(message)
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(message)
        if not name:
            raise ConfigurationError(message)


def checked_options(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *changes* after a check of the option names.

    Raises:
        TypeError: A key of *changes* is not an option of a task.
    """
    known = [field.name for field in fields(TaskOptions)]
    for name in changes:
        if name not in known:
            raise TypeError(no_such_option("a task", name, known))
    return changes
