"""LangGraph's import path of `AnyValue`."""

from flowpregel.channels.last_value import AnyValue

__all__ = ["AnyValue"]
