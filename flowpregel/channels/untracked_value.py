"""LangGraph's import path of `UntrackedValue`."""

from flowpregel.channels.last_value import UntrackedValue

__all__ = ["UntrackedValue"]
