"""The protocol types of graphs and streams, at LangGraph's import path."""

from __future__ import annotations

from typing import Any, Protocol

from flowpregel.pregel.pregel import Pregel as PregelProtocol

__all__ = ["PregelProtocol", "StreamProtocol"]


class StreamProtocol(Protocol):
    """A reader of a run's events, which is called with (namespace, mode, payload)."""

    modes: set[str]
    """The stream modes that the reader receives."""

    def __call__(self, chunk: tuple[tuple[str, ...], str, Any], /) -> None:
        """Process an event."""
