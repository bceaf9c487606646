"""Channels: named places that fold the writes of one superstep into one value."""

from flowpregel.channels.base import BaseChannel
from flowpregel.channels.binop import BinaryOperatorAggregate
from flowpregel.channels.context import Context
from flowpregel.channels.delta import DeltaChannel
from flowpregel.channels.folding import Overwrite
from flowpregel.channels.last_value import (
    AnyValue,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    UntrackedValue,
)
from flowpregel.channels.named_barrier_value import (
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
)
from flowpregel.channels.topic import Topic

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
