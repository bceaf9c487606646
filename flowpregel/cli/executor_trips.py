"""The flow with which `doctor` sends a value to an executor and back.

The machines of a cluster import this module, and need no extra for it.
"""

from __future__ import annotations

from flowpregel.channels import LastValue
from flowpregel.pregel import NodeBuilder, Pregel


def echo(value: bytes) -> bytes:
    """Return *value*."""
    return value


round_trip = Pregel(
    nodes={"echo": NodeBuilder().subscribe_only("sent").do(echo).write_to("returned")},
    channels={"sent": LastValue(bytes), "returned": LastValue(bytes)},
    input_channels="sent",
    output_channels="returned",
)
