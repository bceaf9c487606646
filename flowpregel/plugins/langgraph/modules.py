"""The modules of LangGraph that flowpregel replaces, and the origin of each name in
them.

The import hook reads these tables and guesses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_CALLBACKS: Final = "flowpregel.plugins.langgraph.names.callbacks"
_CHANNELS: Final = "flowpregel.channels"
_CONFIG: Final = "flowpregel.plugins.langgraph.names.config"
_CONSTANTS: Final = "flowpregel.plugins.langgraph.names.constants"
_ERRORS: Final = "flowpregel.plugins.langgraph.names.errors"
_GRAPH: Final = "flowpregel.graph"
_GRAPHS: Final = "flowpregel.plugins.langgraph.names.graph"
_LANGCHAIN: Final = "flowpregel.plugins.langchain"
_MESSAGES: Final = "flowpregel.plugins.langgraph.names.messages"
_PREBUILT: Final = "flowpregel.plugins.langgraph.names.prebuilt"
_PREGEL: Final = "flowpregel.pregel"
_PROTOCOL: Final = "flowpregel.plugins.langgraph.names.protocol"
_RUNNABLE: Final = "flowpregel.plugins.langgraph.names.runnable"
_RUNTIME: Final = "flowpregel.plugins.langgraph.names.runtime"
_SAVERS: Final = "flowpregel.plugins.langgraph.names.savers"
_STORES: Final = "flowpregel.plugins.langgraph.names.stores"
_TYPING: Final = "flowpregel.plugins.langgraph.names.typing"

MODULES: Final[Mapping[str, Mapping[str, str]]] = {
    # The packages that several of LangGraph's distributions share. They contain only
    # modules.
    "langgraph": {},
    "langgraph.cache": {},
    "langgraph.checkpoint": {},
    "langgraph.store": {},
    # Graphs and workflows.
    "langgraph.callbacks": {_CALLBACKS: "*"},
    "langgraph.config": {"flowpregel.config": "*"},
    "langgraph.constants": {
        "flowpregel.constants": "*",
        "flowpregel.types": "Interrupt Send",
        _CONSTANTS: "CONF CONFIG_KEY_CHECKPOINTER",
    },
    "langgraph.errors": {
        "flowpregel.errors": "*",
        _ERRORS: "ErrorCode NodeInterrupt TaskNotFound create_error_message",
    },
    "langgraph.func": {"flowpregel.func": "entrypoint task"},
    "langgraph.graph": {
        _GRAPH: "END START",
        _GRAPHS: "StateGraph=GraphWithOldNames",
        _MESSAGES: "MessagesState add_messages=add_identified_messages",
    },
    "langgraph.graph.message": {
        _GRAPH: "REMOVE_ALL_MESSAGES",
        _MESSAGES: (
            "MessagesState add_messages=add_identified_messages "
            "_messages_delta_reducer=reduce_messages"
        ),
    },
    "langgraph.graph.state": {
        _GRAPH: "CompiledStateGraph",
        _GRAPHS: "StateGraph=GraphWithOldNames",
    },
    "langgraph.runtime": {
        "flowpregel.runtime": "ExecutionInfo RunControl Runtime get_runtime",
        _RUNTIME: "DEFAULT_RUNTIME BaseUser ServerInfo",
    },
    # The import of `_MESSAGES` lets LangChain's tools return a `Command`.
    "langgraph.types": {"flowpregel.types": "*", _MESSAGES: ""},
    "langgraph.typing": {_TYPING: "*"},
    "langgraph.version": {_RUNTIME: "__version__"},
    "langgraph.warnings": {
        _ERRORS: (
            "LangGraphDeprecationWarning LangGraphDeprecatedSinceV05 "
            "LangGraphDeprecatedSinceV10 LangGraphDeprecatedSinceV11"
        )
    },
    # Channels and managed values.
    "langgraph.channels": {_CHANNELS: "*"},
    "langgraph.channels.any_value": {_CHANNELS: "AnyValue"},
    "langgraph.channels.base": {
        _CHANNELS: "BaseChannel",
        "flowpregel.errors": "EmptyChannelError InvalidUpdateError",
    },
    "langgraph.channels.binop": {_CHANNELS: "BinaryOperatorAggregate Overwrite"},
    "langgraph.channels.delta": {_CHANNELS: "DeltaChannel"},
    "langgraph.channels.ephemeral_value": {_CHANNELS: "EphemeralValue"},
    "langgraph.channels.last_value": {_CHANNELS: "LastValue LastValueAfterFinish"},
    "langgraph.channels.named_barrier_value": {
        _CHANNELS: "NamedBarrierValue NamedBarrierValueAfterFinish"
    },
    "langgraph.channels.topic": {_CHANNELS: "Topic"},
    "langgraph.channels.untracked_value": {_CHANNELS: "UntrackedValue"},
    "langgraph.managed": {"flowpregel.managed": "*"},
    "langgraph.managed.base": {"flowpregel.managed": "ManagedValue is_managed_value"},
    "langgraph.managed.is_last_step": {"flowpregel.managed": "*"},
    # Pregel.
    "langgraph.pregel": {_PREGEL: "*"},
    "langgraph.pregel._read": {_PREGEL: "PregelNode"},
    "langgraph.pregel._write": {_PREGEL: "ChannelWrite ChannelWriteEntry"},
    "langgraph.pregel.main": {_PREGEL: "NodeBuilder Pregel"},
    "langgraph.pregel.protocol": {
        "flowpregel.pregel.protocol": "StreamProtocol",
        _PROTOCOL: "PregelProtocol=GraphProtocol",
    },
    "langgraph.pregel.remote": {_RUNTIME: "RemoteException RemoteGraph"},
    "langgraph.pregel.types": {"flowpregel.types": "*"},
    # Savers, stores and caches.
    "langgraph.cache.base": {"flowpregel.cache.base": "*"},
    "langgraph.cache.memory": {"flowpregel.cache.memory": "InMemoryCache"},
    "langgraph.checkpoint.base": {
        "flowpregel.checkpoint.base": (
            "BaseCheckpointSaver Checkpoint CheckpointTuple PendingWrite"
        ),
        "flowpregel.errors": "EmptyChannelError",
    },
    "langgraph.checkpoint.memory": {
        _SAVERS: "InMemorySaver=UnserializedSaver MemorySaver=UnserializedSaver"
    },
    "langgraph.store.base": {
        "flowpregel.store.base": "*",
        "flowpregel.store.memory": "IndexConfig",
        _STORES: (
            "_ensure_refresh=refreshes _ensure_ttl=minutes_to_live "
            "_validate_namespace=require_namespace "
            "_validate_namespace_labels=require_labels "
            "validate_op_namespace=require_namespaces "
            "ensure_embeddings get_text_at_path tokenize_path"
        ),
    },
    "langgraph.store.memory": {"flowpregel.store.memory": "InMemoryStore"},
    # Agents and tools, which need langchain-core.
    "langgraph.prebuilt": {
        _LANGCHAIN: "*",
        _PREBUILT: "ToolCallTransformer ValidationNode",
    },
    "langgraph.prebuilt.chat_agent_executor": {
        _LANGCHAIN: "*",
        _PREBUILT: "* _get_model=chat_model_of _should_bind_tools=should_bind_tools",
    },
    "langgraph.prebuilt.interrupt": {_PREBUILT: "*"},
    "langgraph.prebuilt.tool_node": {_LANGCHAIN: "*"},
    "langgraph.prebuilt.tool_validator": {
        _PREBUILT: "ValidationNode get_executor_for_config"
    },
    # Modules that other packages import, although LangGraph calls them internal.
    "langgraph._internal": {},
    "langgraph._internal._config": {_CONFIG: "*"},
    "langgraph._internal._constants": {_CONSTANTS: "*"},
    "langgraph._internal._runnable": {_RUNNABLE: "*"},
    "langgraph._internal._typing": {_TYPING: "*"},
    "langgraph.utils": {},
    "langgraph.utils.config": {
        _CONFIG: "ensure_config patch_configurable",
        "flowpregel.config": "get_config get_store",
    },
    "langgraph.utils.runnable": {_RUNNABLE: "RunnableCallable RunnableLike"},
}
"""The names in each of LangGraph's modules, grouped by the module of flowpregel (or of
another package) that defines them.

``"*"`` means all names in the ``__all__`` of that module. ``"Theirs=ours"`` renames a
name.
"""

SHARED: Final = ("langgraph.checkpoint", "langgraph.store")
"""The packages to which other distributions add modules, such as
``langgraph.checkpoint.sqlite``. What `MODULES` does not have in these packages stays
LangGraph's.
"""

KEPT: Final = (
    "langgraph.cache.base",
    "langgraph.cache.redis",
    "langgraph.cache.sqlite",
    "langgraph.checkpoint.base",
    "langgraph.graph.ui",
    "langgraph.pregel._remote_run_stream",
    "langgraph.pregel.remote",
    "langgraph.prebuilt._tool_call_stream",
    "langgraph.prebuilt._tool_call_transformer",
    "langgraph.store.base.batch",
    "langgraph.store.base.embed",
    "langgraph.stream",
)
"""The modules that stay LangGraph's, with their submodules, if they are installed.
LangGraph's savers and caches are subclasses of classes in ``checkpoint.base`` and
``cache.base``. The classes that read `stream_events`, the functions for messages to
user interfaces and the client of LangGraph's server are LangGraph's too.
"""

ADVICE: Final[Mapping[str, str]] = {
    "langgraph.callbacks": "flowpregel calls the handlers in config['callbacks']",
    "langgraph.pregel": "it is internal to LangGraph's engine",
    "langgraph._internal": "it is internal to LangGraph's engine",
}
"""The advice about names that flowpregel does not have, by the module they are in."""

RECREATED: Final[Mapping[str, Sequence[str]]] = {
    "deepagents.middleware.filesystem.FilesystemMiddleware": (
        "_glob_executor",
        "_glob_slots",
    ),
}
"""The fields of middleware objects that are not sent to a worker process, which creates
them itself, by class: a pool of OS threads for searches, and a semaphore that limits
the searches of a process.
"""
