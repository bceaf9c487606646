"""The functions in a node's config with which packages read and write the state.

LangGraph's engine puts them into ``configurable`` under ``__pregel_read`` and
``__pregel_send``. The import hook does the same with the functions of this module. They
find the running node by a context variable, so they can be pickled for other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowpregel.runtime import read_channels, write_channels

__all__ = ["read_in_node", "send_from_node"]


def read_in_node(select: str | Sequence[str], fresh: bool = False) -> Any:
    """Return the values of channels, as `flowpregel.runtime.read_channels` does.

    Args:
        select: The name of a channel, or a list of names.
        fresh: Whether the node's own writes are applied.

    Raises:
        KeyError: There is no such channel.
        RuntimeError: Called outside of a node.
    """
    return read_channels(select, with_own_writes=fresh)


def send_from_node(writes: Sequence[tuple[str, Any]]) -> None:
    """Write to channels in the name of the running node.

    Args:
        writes: The channel and the value of each write.

    Raises:
        RuntimeError: Called outside of a node.
    """
    write_channels(writes)
