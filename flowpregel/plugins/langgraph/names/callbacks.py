"""The handler of LangGraph that is called when a run stops to ask, and when it resumes.

This module needs langchain-core.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from langchain_core.callbacks import BaseCallbackHandler

from flowpregel.types import (
    GraphInterruptEvent,
    GraphLifecycleStatus,
    GraphResumeEvent,
)

__all__ = [
    "GraphCallbackHandler",
    "GraphInterruptEvent",
    "GraphLifecycleEvent",
    "GraphLifecycleStatus",
    "GraphResumeEvent",
]

GraphLifecycleEvent: TypeAlias = GraphInterruptEvent | GraphResumeEvent


class GraphCallbackHandler(BaseCallbackHandler):
    """A handler for ``config["callbacks"]``; derive from it, and override methods."""

    def on_interrupt(self, event: GraphInterruptEvent) -> Any:
        """Act on the stop of a run.

        Args:
            event: The stop.
        """

    def on_resume(self, event: GraphResumeEvent) -> Any:
        """Act on the resumption of a run.

        Args:
            event: The resumption.
        """
