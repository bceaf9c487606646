"""`GraphProtocol`: the class of everything that can be called like a graph."""

from __future__ import annotations

from typing import Any

from flowpregel.pregel import Pregel

__all__ = ["GraphProtocol"]


def _graph_protocol() -> Any:
    try:
        from langchain_core.runnables import Runnable  # noqa: PLC0415
    except ImportError:
        # Without langchain-core there are no graphs on servers, so `GraphProtocol` is
        # `Pregel`.
        return Pregel

    class PregelProtocol(Runnable):  # type: ignore[type-arg]
        """The base class of graphs on servers. `isinstance` is also true for
        flowpregel's graphs.
        """

    PregelProtocol.register(Pregel)
    return PregelProtocol


GraphProtocol: Any = _graph_protocol()
