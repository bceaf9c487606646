"""LangGraph's import path of what a node writes with."""

from flowpregel.pregel.node import ChannelWrite, ChannelWriteEntry

__all__ = ["ChannelWrite", "ChannelWriteEntry"]
