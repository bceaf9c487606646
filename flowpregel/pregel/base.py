"""What a compiled graph consists of: nodes, channels, and how it is run by default."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from flowpregel._core.program import Names, Program, compile_program
from flowpregel._core.records import TASKS
from flowpregel._engine.tasks import check_executor
from flowpregel.channels import Topic
from flowpregel.channels.base import BaseChannel
from flowpregel.channels.context import Context
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import ConfigurationError
from flowpregel.policies import CachePolicy, RetryPolicy
from flowpregel.pregel.config import merged, of_keywords
from flowpregel.pregel.node import NodeBuilder, PregelNode, checked_cache_policy, policies_of
from flowpregel.pregel.validate import validate_graph

Where = Literal["*"] | Sequence[str]


class PregelBase:
    """Nodes, channels and defaults; `Pregel` documents the arguments."""

    def __init__(  # noqa: PLR0913 - LangGraph's signature
        self,
        *,
        nodes: Mapping[str, PregelNode | NodeBuilder],
        channels: Mapping[str, Any] | None,
        auto_validate: bool = True,
        stream_mode: str | Sequence[str] = "values",
        output_channels: str | Sequence[str],
        stream_channels: str | Sequence[str] | None = None,
        interrupt_after_nodes: Where = (),
        interrupt_before_nodes: Where = (),
        input_channels: str | Sequence[str],
        step_timeout: float | None = None,
        debug: bool = False,
        checkpointer: BaseCheckpointSaver | str | os.PathLike[str] | bool | None = None,
        store: Any = None,
        cache: Any = None,
        retry_policy: RetryPolicy | Sequence[RetryPolicy] = (),
        cache_policy: CachePolicy | None = None,
        context_schema: type[Any] | None = None,
        config: Mapping[str, Any] | None = None,
        name: str = "LangGraph",
        executor: Any = None,
    ) -> None:
        self.nodes = _built(nodes)
        self.channels = _with_topic(channels or {})
        self.stream_mode = stream_mode
        self.output_channels = _keys(output_channels)
        self.input_channels = _keys(input_channels)
        self.stream_channels = None if stream_channels is None else _keys(stream_channels)
        self.interrupt_after_nodes = interrupt_after_nodes
        self.interrupt_before_nodes = interrupt_before_nodes
        self.step_timeout = step_timeout
        self.debug = debug
        self.checkpointer = as_checkpointer(checkpointer)
        self.store = store
        self.cache = cache
        self.retry_policy = policies_of(retry_policy)
        self.cache_policy = checked_cache_policy(cache_policy)
        self.context_schema = context_schema
        self.config = dict(config or {})
        self.name = name
        self.executor = check_executor(executor)
        self._program: Program | None = None
        if auto_validate:
            self.validate()

    def validate(self) -> Self:
        """Check that nodes and channels fit together, and return the graph.

        Raises:
            ConfigurationError: They do not; the message names which, and what is there.
        """
        validate_graph(self)
        self._program = None
        return self

    @property
    def program(self) -> Program:
        """What the core runs; compiled when first asked for."""
        if self._program is None:
            self._program = self._compiled()
        return self._program

    def _compiled(self) -> Program:
        contexts = {key for key, item in self.channels.items() if isinstance(item, Context)}
        shares = self.cache_policy is not None
        return compile_program(
            name=self.name,
            nodes={
                key: _with_contexts(node, contexts).compile(key, shares=shares)
                for key, node in self.nodes.items()
            },
            channels=self.channels,
            input_channels=self.input_channels,
            output_channels=self.output_channels,
            stream_channels=self.stream_channels_asis,
        )

    @property
    def stream_channels_list(self) -> list[str]:
        """The channels that ``tasks`` and ``checkpoints`` show."""
        keys = self.stream_channels_asis
        return [keys] if isinstance(keys, str) else list(keys)

    @property
    def stream_channels_asis(self) -> str | tuple[str, ...]:
        """The same, one name or several; by default all channels."""
        if self.stream_channels is not None:
            return self.stream_channels
        return tuple(
            key
            for key, item in self.channels.items()
            if key != TASKS and isinstance(item, BaseChannel) and not isinstance(item, Context)
        )

    def shaped(self, values: Any) -> Any:
        """Return what the output channels hold in the form of its schema, if it is a class."""
        return values

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return a graph of its own with the attributes of *update* changed."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        for name, value in (update or {}).items():
            if name not in clone.__dict__:
                raise ConfigurationError(f"a graph has no attribute {name!r} to change")
            setattr(clone, name, value)
        clone._program = None
        return clone

    def with_config(self, config: Mapping[str, Any] | None = None, **settings: Any) -> Self:
        """Return the graph with *config* and *settings* as defaults of every run."""
        return self.copy({"config": merged(self.config, config, of_keywords(settings))})


def _built(nodes: Mapping[str, PregelNode | NodeBuilder]) -> dict[str, PregelNode]:
    return {k: node.build() if isinstance(node, NodeBuilder) else node for k, node in nodes.items()}


def _with_topic(channels: Mapping[str, Any]) -> dict[str, Any]:
    """Return *channels* with the reserved one that holds each superstep's Sends."""
    topic = channels.get(TASKS, Topic(object, accumulate=False))
    if not isinstance(topic, Topic):
        raise ConfigurationError(f"channel {TASKS!r} is reserved and must be a Topic")
    return {**channels, TASKS: topic}


def _keys(keys: str | Sequence[str]) -> str | tuple[str, ...]:
    return keys if isinstance(keys, str) else tuple(keys)


def _with_contexts(node: PregelNode, contexts: set[str]) -> PregelNode:
    node.contexts = () if node.mapper else tuple(name for name in contexts if name in node.channels)
    return node


def names_where(where: Where | None) -> Names:
    """Return node names, or ``"*"`` for all, in the core's form."""
    if where is None:
        return frozenset()
    return "*" if where == "*" else frozenset(where)


def as_checkpointer(value: Any) -> BaseCheckpointSaver | bool | None:
    """Return what a user passed as ``checkpointer=`` as a saver; a path opens an `LMDBSaver`.

    Raises:
        ConfigurationError: It is none of what can be one.
    """
    if value is None or isinstance(value, bool | BaseCheckpointSaver):
        return value
    if isinstance(value, str | Path | os.PathLike):
        from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - imports lmdb

        return LMDBSaver(value)
    if all(hasattr(value, name) for name in ("get_tuple", "put", "put_writes", "list")):
        from flowpregel.integrations.langgraph import as_saver  # noqa: PLC0415 - seldom needed

        return as_saver(value)
    raise ConfigurationError(
        f"Invalid checkpointer {value!r}: give a saver, a path, True, False or None"
    )
