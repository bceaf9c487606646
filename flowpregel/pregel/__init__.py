"""Pregel: nodes and channels, run in supersteps."""

from flowpregel.pregel.node import Channel, NodeBuilder, PregelNode
from flowpregel.pregel.pregel import Pregel
from flowpregel.pregel.write import ChannelWrite, ChannelWriteEntry

__all__ = ["Channel", "ChannelWrite", "ChannelWriteEntry", "NodeBuilder", "Pregel", "PregelNode"]
