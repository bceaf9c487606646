"""How the calls of a task are made: its options, checked where it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    priority: int | None
    isolation: Literal["fresh"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How the calls of a task are made."""

    name: str | None = None
    """What streams and messages call it; the function's own name if None."""
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None
    """When a failed call is tried again; the first policy that matches decides."""
    cache_policy: CachePolicy | None = None
    """How long its results are shared between runs, in the entrypoint's cache or
    store.
    """
    cache: bool = False
    """Whether its results are shared between runs, for ever: short for a cache
    policy.
    """
    timeout: float | timedelta | TimeoutPolicy | None = None
    """Seconds that one attempt may take, or a policy."""
    executor: Any = None
    """Where it runs: ``"processes"``, ``"threads"``, ``"inline"``, or an executor."""
    version: str | None = None
    """Says that the code is another one; None: the code itself is looked at."""
    on_code_change: Literal["keep", "rerun", "error"] | None = None
    """What is done with a recorded result that other code made; None: as the run
    says.
    """
    adopts: str | Sequence[str] = ()
    """The name that the task had before, or several: what was recorded of it is
    kept.
    """
    redact: str | Sequence[str] = ()
    """The names of parameters whose arguments no message shows, and that are not kept
    if a call fails.
    """
    cpus: float | None = None
    """How many CPUs a call takes; None: one."""
    memory: int | str | None = None
    """How much memory: bytes, or text such as ``"2GB"``."""
    gpus: int | None = None
    """How many GPUs, which no other call uses meanwhile."""
    limit: str | Sequence[str] | None = None
    """The limit of the executor that a call counts for, by name, or several."""
    rate: str | None = None
    """How many calls may start in which time, such as ``"60/min"``."""
    priority: int | None = None
    """Calls with a higher one go first among those that wait."""
    isolation: Literal["fresh"] | None = None
    """``"fresh"``: each call has a worker process of its own, which ends with it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", TimeoutPolicy.coerce(self.timeout))
        policies_of(self.retry_policy)
        checked_cache_policy(self.cache_policy)
        check_executor(self.executor)
        if not isinstance(self.cache, bool):
            raise ConfigurationError(
                f"task(cache={self.cache!r}): use True; where results are kept, the "
                "entrypoint says: its checkpointer, or cache="
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
        _ = self.resources  # refuses what cannot be

    @property
    def resources(self) -> Resources | None:
        """What a call takes while it runs; None: nothing is said."""
        said = {
            name: each
            for name in NO_RESOURCES
            if (each := getattr(self, name)) is not None
        }
        return Resources(**said) if said else None

    @property
    def shares(self) -> CachePolicy | None:
        """How its results are shared between runs; None: they are not."""
        return self.cache_policy or (CachePolicy() if self.cache else None)

    def node(self, **what: Any) -> Node:
        """Return the node of a task that has these options; *what*: the fields that
        they lack.
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
            **what,
        )


NO_RESOURCES: Final[Mapping[str, Any]] = {each.name: None for each in fields(Resources)}
"""The options of a task that takes nothing in particular."""


def is_task(func: Any) -> bool:
    """Return whether *func* is what `task` makes of a function."""
    return isinstance(getattr(func, "options", None), TaskOptions)


def check_names(decorator: str, option: str, value: Any) -> None:
    """Refuse an option that is neither a name nor several.

    Raises:
        ConfigurationError: It is something else.
    """
    message = f"{decorator}({option}={value!r}): use the name of before, or several"
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
    """Return *changes*, if all of them are options of a task."""
    known = [field.name for field in fields(TaskOptions)]
    for name in changes:
        if name not in known:
            raise TypeError(no_such_option("a task", name, known))
    return changes
