"""LangGraph's import path of `PregelNode`."""

from flowpregel.pregel.node import PregelNode

__all__ = ["PregelNode"]
