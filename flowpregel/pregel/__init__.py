"""Pregel: nodes and channels, run in supersteps."""

from flowpregel.pregel._write import ChannelWrite, ChannelWriteEntry
from flowpregel.pregel.node import Channel, NodeBuilder, PregelNode
from flowpregel.pregel.pregel import Pregel

__all__ = [
    "Channel",
    "ChannelWrite",
    "ChannelWriteEntry",
    "NodeBuilder",
    "Pregel",
    "PregelNode",
]
