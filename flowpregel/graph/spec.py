"""What a `StateGraph` notes of its nodes and branches until it is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowpregel._core.callee import name_of
from flowpregel.graph.schema import Schema
from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeSpec:
    """A node, as it was added."""

    action: Any
    """A callable, a compiled graph, or an object with ``invoke`` or ``ainvoke``."""
    schema: Schema
    """What of the state it is given."""
    defer: bool = False
    """Whether it waits until nothing else is left to run."""
    metadata: Mapping[str, Any] | None = None
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None
    cache_policy: CachePolicy | None = None
    timeout: TimeoutPolicy | None = None
    ends: Mapping[str, str | None] | None = None
    """The nodes that its `Command` may lead to, with labels: for drawing and checking."""
    error_handler: str | None = None
    """The hidden node that is given its failure."""
    handles: str | None = None
    """Whose failure it is given, if it is a handler; empty: anybody's."""
    executor: Any = None

    @property
    def is_handler(self) -> bool:
        """Whether it handles failures of other nodes."""
        return self.handles is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDefaults:
    """What nodes get that do not say it themselves."""

    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None
    cache_policy: CachePolicy | None = None
    error_handler: Any = None
    timeout: TimeoutPolicy | None = None

    def applied_to(self, spec: NodeSpec, handler: str | None) -> NodeSpec:
        """Return *spec* with what it leaves open filled in.

        A handler of failures is neither cached nor handled itself.
        """
        retry, timeout = spec.retry_policy, spec.timeout
        cache, handled_by = spec.cache_policy, spec.error_handler
        if not spec.is_handler:
            cache = self.cache_policy if cache is None else cache
            handled_by = handler if handled_by is None else handled_by
        return replace(
            spec,
            retry_policy=self.retry_policy if retry is None else retry,
            timeout=self.timeout if timeout is None else timeout,
            cache_policy=cache,
            error_handler=handled_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BranchSpec:
    """A conditional edge, as it was added."""

    path: Any
    ends: Mapping[Any, str] | None
    """Where each answer of *path* leads; None: an answer is a node's name."""
    schema: Schema | None = None
    """What of the state it is given; None: what its node is given."""


def node_name(action: Any) -> str:
    """Return the name of a node that is given without one."""
    name = getattr(action, "name", None)
    return name if isinstance(name, str) and not hasattr(action, "__name__") else name_of(action)
