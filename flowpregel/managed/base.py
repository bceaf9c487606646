"""LangGraph's import path of `ManagedValue`."""

from flowpregel.managed import ManagedValue, is_managed_value

__all__ = ["ManagedValue", "is_managed_value"]
