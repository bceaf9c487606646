"""How the calls of a task are made: its options, checked where it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal

from flowpregel._engine.tasks import check_executor
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy
from flowpregel.pregel.node import checked_cache_policy, policies_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How the calls of a task are made."""

    name: str | None = None
    """What streams and messages call it; the function's own name if None."""
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None
    """When a failed call is tried again; the first policy that matches decides."""
    cache_policy: CachePolicy | None = None
    """How long its results are shared between runs, in the entrypoint's cache or store."""
    cache: bool = False
    """Whether its results are shared between runs, for ever: short for a cache policy."""
    timeout: float | timedelta | TimeoutPolicy | None = None
    """Seconds that one attempt may take, or a policy."""
    executor: Any = None
    """Where it runs: ``"processes"``, ``"threads"``, ``"inline"``, or an executor."""
    version: str | None = None
    """Says that the code is another one; None: the code itself is looked at."""
    on_code_change: Literal["keep", "rerun", "error"] | None = None
    """What is done with a recorded result that other code made; None: as the run says."""
    adopts: str | Sequence[str] = ()
    """The name that the task had before, or several: what was recorded of it is kept."""
    redact: str | Sequence[str] = ()
    """The names of parameters whose arguments no message shows, and that are not kept if a
    call fails."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", TimeoutPolicy.coerce(self.timeout))
        policies_of(self.retry_policy)
        checked_cache_policy(self.cache_policy)
        check_executor(self.executor)
        if not isinstance(self.cache, bool):
            raise ConfigurationError(
                f"task(cache={self.cache!r}): use True; where results are kept, the entrypoint "
                "says: its checkpointer, or cache="
            )
        if self.on_code_change not in (None, "keep", "rerun", "error"):
            raise ConfigurationError(
                f"task(on_code_change={self.on_code_change!r}): use 'keep', 'rerun' or 'error'"
            )
        for option in ("name", "version"):
            text: Any = getattr(self, option)
            if text is not None and (not isinstance(text, str) or not text):
                raise ConfigurationError(f"task({option}={text!r}): use str")

    @property
    def shares(self) -> CachePolicy | None:
        """How its results are shared between runs; None: they are not."""
        return self.cache_policy or (CachePolicy() if self.cache else None)


def checked_options(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *changes*, if all of them are options of a task."""
    known = [field.name for field in fields(TaskOptions)]
    for name in changes:
        if name not in known:
            raise TypeError(f"a task has no option {name!r}; it has {', '.join(known)}")
    return changes
