"""The LangChain callback manager of a node's code, for runs without callback handlers.

LangChain's `dispatch_custom_event` raises an error without the id of a parent (traced)
run, even if no handler receives the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from uuid import NAMESPACE_OID, UUID, uuid5

from flowpregel._entry_points import STREAMS, load_plugin
from flowpregel.context import Scope, callback_manager, config_of
from flowpregel.errors import ConfigurationError

MANAGER_MODULE: Final = "langchain_core.callbacks.manager"
"""The module of LangChain's callback managers, and of the functions that dispatch
events. If this process has not imported the module, no code in it dispatches an event,
so no manager is made.
"""
_TAG: Final = "seq:step:1"
"""The tag that LangChain gives to the traced (callback) run of a sequence's first step.
A node is such a step, so the models, tools and chains that it starts get this tag.
"""


@dataclass(frozen=True, slots=True)
class ParentRun:
    """The traced run that LangChain records as the parent of the models, tools and
    events in a node's code.
    """

    run_id: UUID
    tags: Sequence[str]
    metadata: Mapping[str, Any]


def set_parent_run(scope: Scope, *, on_loop: bool) -> None:
    """Give the code of an attempt a callback manager without handlers, in its context
    variables and in its config.

    Args:
        scope: The scope of the attempt.
        on_loop: Whether the attempt runs on an event loop.
    """
    task = scope.job.task
    make_manager = _manager_maker()
    # A task without an id belongs to a node that is called outside of a run. It runs in
    # the caller's own context, whose variables must not change.
    if make_manager is None or not task.id:
        return
    config = config_of(scope)
    tags = (*config.get("tags", ()), *task.node.tags)
    run_id = uuid5(NAMESPACE_OID, task.id)
    parent = ParentRun(run_id, tags, config["metadata"])
    manager = make_manager((), parent, _TAG, config, on_loop=on_loop)
    callback_manager.set(manager)


@cache
def _manager_maker() -> Callable[..., Any] | None:
    """Return the function that makes callback managers, or None if this process has a
    version of LangChain that flowpregel does not support.
    """
    try:
        plugin = load_plugin(STREAMS, "messages")
    except ConfigurationError:
        return None
    make_manager: Callable[..., Any] = plugin.make_manager
    return make_manager
