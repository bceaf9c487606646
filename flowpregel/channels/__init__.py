"""Channels: named places that fold the writes of one superstep into one value."""

from flowpregel.channels.any_value import AnyValue
from flowpregel.channels.base import BaseChannel
from flowpregel.channels.binop import BinaryOperatorAggregate
from flowpregel.channels.context import Context
from flowpregel.channels.delta import DeltaChannel
from flowpregel.channels.ephemeral_value import EphemeralValue
from flowpregel.channels.folding import Overwrite
from flowpregel.channels.last_value import LastValue, LastValueAfterFinish
from flowpregel.channels.named_barrier_value import NamedBarrierValue, NamedBarrierValueAfterFinish
from flowpregel.channels.topic import Topic
from flowpregel.channels.untracked_value import UntrackedValue

__all__ = [
    "AnyValue",
    "BaseChannel",
    "BinaryOperatorAggregate",
    "Context",
    "DeltaChannel",
    "EphemeralValue",
    "LastValue",
    "LastValueAfterFinish",
    "NamedBarrierValue",
    "NamedBarrierValueAfterFinish",
    "Overwrite",
    "Topic",
    "UntrackedValue",
]
