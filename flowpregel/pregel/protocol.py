"""LangGraph's import path of the types of graphs and streams, for annotations."""

from __future__ import annotations

from typing import Any, Protocol

from flowpregel.pregel.pregel import Pregel as PregelProtocol

__all__ = ["PregelProtocol", "StreamProtocol"]


class StreamProtocol(Protocol):
    """A reader of a run's events: called with (namespace, mode, payload)."""

    modes: set[str]
    """The stream modes that it reads."""

    def __call__(self, chunk: tuple[tuple[str, ...], str, Any], /) -> None:
        """Take in an event."""
