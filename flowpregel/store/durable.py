"""The base class of long-term stores on any storage engine, for authors of an engine.

A subclass implements `_open`, which returns a `flowpregel.storage.Store`.
"""

from flowpregel.store.memory import ItemStore

__all__ = ["ItemStore"]
