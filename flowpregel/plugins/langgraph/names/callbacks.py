"""LangGraph's callback handler that is called when a run stops to ask a question, and
when it resumes.

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
    """A callback handler for ``config["callbacks"]``. Derive from it, and override its
    methods.
    """

    def on_interrupt(self, event: GraphInterruptEvent) -> Any:
        """Handle the stop of a run that asks a question.

        Args:
            event: A description of the stop.
        """

    def on_resume(self, event: GraphResumeEvent) -> Any:
        """Handle the resumption of a run.

        Args:
            event: A description of the resumption.
        """
