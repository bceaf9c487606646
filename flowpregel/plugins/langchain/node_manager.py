"""LangChain's callback managers, which pass a run's callback handlers to the code of a
node.

Models, tools and chains that the code calls get the manager from LangChain's context
variable, or from the config if the code passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    BaseCallbackHandler,
    BaseCallbackManager,
    CallbackManager,
)
from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config


class _StableDigest:
    """A base class that gives all callback managers the same digest. So a manager among
    the arguments of a call does not change the key by which the recorded call is found.
    """

    @staticmethod
    def __flowpregel_digest__(_: object = None) -> str:
        return "callbacks"


class NodeManager(_StableDigest, CallbackManager):
    """The callback manager of a node."""


class AsyncNodeManager(_StableDigest, AsyncCallbackManager):
    """The callback manager of a node on an event loop."""


def make_manager(
    handlers: Sequence[Any],
    parent: Any,
    tag: str | None,
    config: Mapping[str, Any],
    *,
    on_loop: bool,
) -> BaseCallbackManager:
    """Return the callback manager for the code of a node, and set LangChain's context
    variable to *config* with it.

    Args:
        handlers: The callback handlers of the run, or objects that forward calls to
            them. Those that are not LangChain's are left out.
        parent: An object with the ``run_id`` that models and tools get as the parent's
            id, and the ``tags`` and ``metadata`` that are passed on.
        tag: A further tag, which chains do not pass on, or None.
        config: The config of the node.
        on_loop: Whether the node runs on an event loop.
    """
    passed: list[BaseCallbackHandler] = []
    for handler in handlers:
        if hasattr(handler, "methods"):
            passed.append(LangChainForwarder(handler))
        elif isinstance(handler, BaseCallbackHandler):
            passed.append(handler)
    manager_class = AsyncNodeManager if on_loop else NodeManager
    passed_tags = [*dict.fromkeys(parent.tags)]
    own_tags = passed_tags if tag is None else [*passed_tags, tag]
    manager = manager_class(
        passed,
        inheritable_handlers=[*passed],
        parent_run_id=parent.run_id,
        tags=own_tags,
        inheritable_tags=[*passed_tags],
        metadata=dict(parent.metadata),
        inheritable_metadata=dict(parent.metadata),
    )
    # A run id in the config would be used for several calls, but LangChain accepts it
    # for one call only.
    child_config = {key: value for key, value in config.items() if key != "run_id"}
    child_config["callbacks"] = manager
    var_child_runnable_config.set(cast(RunnableConfig, child_config))
    return manager


class LangChainForwarder(BaseCallbackHandler):
    """A LangChain callback handler in a worker process, which forwards its calls to the
    handler in the coordinator.

    Args:
        forwarder: The object that forwards the calls. It has the methods of the handler
            in the coordinator.
    """

    run_inline = True
    is_forwarder = True
    """True, by which the coordinator recognizes that the run already has the handler
    itself.
    """

    def __init__(self, forwarder: Any) -> None:
        self.forwarder = forwarder

    def __reduce__(self) -> Any:
        return LangChainForwarder, (self.forwarder,)

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> Any:
        """Forward the start of a chat model.

        Raises:
            NotImplementedError: The handler does not have the method. LangChain then
                calls `on_llm_start`.
        """
        if "on_chat_model_start" not in self.forwarder.methods:
            raise NotImplementedError
        self.forwarder.on_chat_model_start(*args, **kwargs)


def _forwarding_method(name: str) -> Any:
    """Return the method *name* of `LangChainForwarder`."""

    def forward(self: LangChainForwarder, *args: Any, **kwargs: Any) -> None:
        if name in self.forwarder.methods:
            getattr(self.forwarder, name)(*args, **kwargs)

    return forward


def _ignoring_property(flag: str) -> property:
    """Return the property of `LangChainForwarder` that makes LangChain ignore some
    methods of the handler.
    """
    return property(lambda self: flag in self.forwarder.ignored)


for _name in dir(BaseCallbackHandler):
    if _name.startswith("on_") and _name != "on_chat_model_start":
        setattr(LangChainForwarder, _name, _forwarding_method(_name))
    elif _name.startswith("ignore_"):
        setattr(LangChainForwarder, _name, _ignoring_property(_name))
