"""LangGraph's import path of `Pregel` and `NodeBuilder`."""

from flowpregel.pregel.node import NodeBuilder
from flowpregel.pregel.pregel import Pregel

__all__ = ["NodeBuilder", "Pregel"]
