"""`PregelNode`, and the two ways to make one: `NodeBuilder` and `Channel` pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from flowpregel._core.callee import callee_of
from flowpregel._core.digest import space_of
from flowpregel._core.records import Node
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy, RetryPolicy, TimeoutPolicy
from flowpregel.pregel.write import ChannelWrite, ChannelWriteEntry, entries_of


class PregelNode:
    """A function, the channels that trigger it, those it reads, and its writers.

    Args:
        channels: One name: the node gets the bare value. Several: a dict.
        triggers: The channels whose change makes it run.
        mapper: Turns what was read into the node's input.
        writers: Each takes the node's output, and returns writes.
        bound: What to call: a callable, or anything with ``invoke`` or
            ``ainvoke``; None passes the input on.
        tags, metadata: Shown in streams and drawings.
        retry_policy, cache_policy, timeout: How it is tried, shared and bounded.
        executor: Where it runs; None is the graph's default.
    """

    def __init__(  # noqa: PLR0913 - LangGraph's signature
        self,
        *,
        channels: str | Sequence[str],
        triggers: Sequence[str],
        mapper: Callable[[Any], Any] | None = None,
        writers: Iterable[Callable[..., Any]] | None = None,
        bound: Any = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
        cache_policy: CachePolicy | None = None,
        timeout: float | timedelta | TimeoutPolicy | None = None,
        executor: Any = None,
        reads: Sequence[str] = (),
    ) -> None:
        self.channels: str | Sequence[str] = (
            channels if isinstance(channels, str | tuple) else list(channels)
        )
        self.triggers = list(triggers)
        self.mapper = mapper
        self.writers = list(writers or ())
        self.steps: list[Any] = [] if bound is None else [bound]
        self.tags = list(tags or ())
        self.metadata = dict(metadata or {})
        self.retry_policy = policies_of(retry_policy)
        self.cache_policy = checked_cache_policy(cache_policy)
        self.timeout = TimeoutPolicy.coerce(timeout)
        self.executor = executor
        self.reads = tuple(reads)
        self.error_handler: str | None = None
        self.role: str | None = None
        self.contexts: tuple[str, ...] = ()
        """The `Context` channels it reads; filled in when its graph is compiled."""

    @property
    def bound(self) -> Any:
        """What it calls: the first of its steps, or None."""
        return self.steps[0] if self.steps else None

    def __or__(self, other: Any) -> PregelNode:
        """Return the node with one more part: a writer, a dict of writers, or a function."""
        node = self.copy()
        if isinstance(other, ChannelWrite):
            node.writers.append(other)
        elif isinstance(other, Mapping):
            node.writers.extend(_writers_of(other))
        else:
            node.steps.append(other)
        return node

    def copy(self) -> PregelNode:
        """Return a node of its own with the same parts."""
        node = PregelNode(channels=self.channels, triggers=self.triggers)
        for name, value in vars(self).items():
            setattr(node, name, value.copy() if isinstance(value, list | dict) else value)
        return node

    def compile(self, name: str, *, shares: bool = False) -> Node:
        """Return what the core runs.

        Args:
            name: The name of the node.
            shares: Whether its results are shared even if it has no policy of its own.

        Raises:
            ConfigurationError: A step cannot be called.
        """
        graph = self.bound if len(self.steps) == 1 and is_graph(self.bound) else None
        steps = () if graph is not None else tuple(map(callee_of, self.steps))
        shares = shares or self.cache_policy is not None
        role: Any = self.role or ("leaf" if graph is None else "graph")
        return Node(
            name=name,
            steps=steps,
            graph=graph,
            role=role,
            triggers=tuple(self.triggers),
            channels=self.channels if isinstance(self.channels, str) else tuple(self.channels),
            contexts=self.contexts,
            mapper=self.mapper,
            writers=tuple(self.writers),
            reads=self.reads,
            retry=self.retry_policy,
            cache=self.cache_policy,
            space=self._space(name) if shares else (),
            timeout=self.timeout,
            handler=self.error_handler,
            executor=self.executor,
            hidden="langsmith:hidden" in self.tags,
            metadata=self.metadata,
            tags=tuple(self.tags),
        )

    def _space(self, name: str) -> tuple[str, ...]:
        """Return where its results are shared: what it calls, and where it writes."""
        written = [key for writer in self.writers for key in getattr(writer, "channels", ())]
        return (*space_of(name, self.steps), *written)

    def __repr__(self) -> str:
        return f"PregelNode(channels={self.channels!r}, triggers={self.triggers!r})"


def is_graph(target: Any) -> bool:
    """Return whether *target* is a compiled graph, which runs nested."""
    return hasattr(target, "nested_run")


def policies_of(policy: RetryPolicy | Sequence[RetryPolicy] | None) -> tuple[RetryPolicy, ...]:
    """Return one, several or no policies as a tuple.

    Raises:
        ConfigurationError: One is something else.
    """
    if policy is None:
        return ()
    policies = tuple(policy) if isinstance(policy, list | tuple) else (policy,)
    for each in policies:
        if not isinstance(each, RetryPolicy):
            raise ConfigurationError(f"retry_policy={each!r}; use RetryPolicy(max_attempts=3)")
    return policies


def checked_cache_policy(policy: CachePolicy | None) -> CachePolicy | None:
    """Return *policy*, if it is one.

    Raises:
        ConfigurationError: It is something else.
    """
    if policy is not None and not isinstance(policy, CachePolicy):
        raise ConfigurationError(f"cache_policy={policy!r}; use CachePolicy(ttl=60)")
    return policy


def _writers_of(parts: Mapping[str, Any]) -> list[ChannelWrite]:
    for key, part in parts.items():
        if not isinstance(part, ChannelWrite):
            raise ConfigurationError(
                f"{key!r} in a dict at the end of a pipe is {part!r}; use Channel.write_to(...)"
            )
    return list(parts.values())


class NodeBuilder:
    """Builds a `PregelNode` step by step.

    Example:
        >>> node = NodeBuilder().subscribe_only("a").do(str.upper).write_to("b").build()
        >>> node.triggers
        ['a']
    """

    def __init__(self) -> None:
        self._channels: str | list[str] = []
        self._triggers: list[str] = []
        self._steps: list[Any] = []
        self._writes: list[ChannelWriteEntry] = []
        self._tags: list[str] = []
        self._metadata: dict[str, Any] = {}
        self._retry: list[RetryPolicy] = []
        self._cache: CachePolicy | None = None
        self._timeout: TimeoutPolicy | None = None
        self._executor: Any = None

    def subscribe_only(self, channel: str) -> Self:
        """Be triggered by *channel* alone, and get its bare value.

        Raises:
            ConfigurationError: The node is subscribed to something already.
        """
        if self._channels or self._triggers:
            raise ConfigurationError(
                f"subscribe_only({channel!r}): the node is already subscribed to "
                f"{self._triggers or self._channels}; use subscribe_to for several channels"
            )
        self._channels = channel
        self._triggers.append(channel)
        return self

    def subscribe_to(self, *channels: str, read: bool = True) -> Self:
        """Be triggered by *channels*; *read*: get their values in a dict too."""
        if read:
            self.read_from(*channels)
        self._triggers.extend(name for name in channels if name not in self._triggers)
        return self

    def read_from(self, *channels: str) -> Self:
        """Get the values of *channels* in a dict, without being triggered by them.

        Raises:
            ConfigurationError: The node gets a bare value (`subscribe_only`).
        """
        if isinstance(self._channels, str):
            raise ConfigurationError(
                f"the node gets the bare value of {self._channels!r} (subscribe_only) and cannot "
                f"read {', '.join(channels)} as well; use subscribe_to({self._channels!r})"
            )
        self._channels.extend(name for name in channels if name not in self._channels)
        return self

    def do(self, node: Any) -> Self:
        """Call *node*; called again, with the output of the one before."""
        self._steps.append(node)
        return self

    def write_to(self, *channels: str | ChannelWriteEntry, **named: Any) -> Self:
        """Write the output to *channels*; a named callable maps it, a named value replaces it."""
        self._writes.extend(entries_of(channels, named))
        return self

    def meta(self, *tags: str, **metadata: Any) -> Self:
        """Add tags and metadata, shown in streams and drawings."""
        self._tags.extend(tags)
        self._metadata.update(metadata)
        return self

    def add_retry_policies(self, *policies: RetryPolicy) -> Self:
        """Try the node again by these; the first that matches an error decides."""
        self._retry.extend(policies)
        return self

    def add_cache_policy(self, policy: CachePolicy) -> Self:
        """Share the node's results with later tasks that have the same input."""
        self._cache = policy
        return self

    def set_timeout(self, timeout: float | timedelta | TimeoutPolicy | None) -> Self:
        """Bound how long an attempt may take (seconds, or a policy)."""
        self._timeout = TimeoutPolicy.coerce(timeout)
        return self

    def run_on(self, executor: Any) -> Self:
        """Run the node on this executor instead of the graph's default."""
        self._executor = executor
        return self

    def build(self) -> PregelNode:
        """Return the node."""
        node = PregelNode(
            channels=self._channels,
            triggers=self._triggers,
            tags=self._tags,
            metadata=self._metadata,
            writers=[ChannelWrite(self._writes)] if self._writes else [],
            retry_policy=self._retry,
            cache_policy=self._cache,
            timeout=self._timeout,
            executor=self._executor,
        )
        node.steps = list(self._steps)
        return node


class Channel:
    """Begins and ends a pipe: ``Channel.subscribe_to("a") | fn | Channel.write_to("b")``."""

    @staticmethod
    def subscribe_to(
        channels: str | Sequence[str], *, key: str | None = None, tags: Sequence[str] | None = None
    ) -> PregelNode:
        """Return a node that *channels* trigger.

        Args:
            channels: One name: the node gets its bare value. A list: a dict.
            key: With one name: get a dict with the value under this key.
            tags: Shown in streams and drawings.

        Raises:
            ConfigurationError: *key* was given with several channels.
        """
        if isinstance(channels, str):
            mapper = None if key is None else _Under(key)
            return PregelNode(channels=channels, triggers=[channels], mapper=mapper, tags=tags)
        if key is not None:
            raise ConfigurationError(
                "key= names the value of one channel; a list of channels gives a dict already"
            )
        return PregelNode(channels=list(channels), triggers=list(channels), tags=tags)

    @staticmethod
    def write_to(*channels: str | ChannelWriteEntry, **named: Any) -> ChannelWrite:
        """Return what writes a node's output to *channels*; see `NodeBuilder.write_to`."""
        return ChannelWrite(entries_of(channels, named))


class _Under:
    """Puts a value into a dict; a class, so that it can be pickled."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, value: Any) -> dict[str, Any]:
        return {self.key: value}
