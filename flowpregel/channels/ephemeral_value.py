"""LangGraph's import path of `EphemeralValue`."""

from flowpregel.channels.last_value import EphemeralValue

__all__ = ["EphemeralValue"]
