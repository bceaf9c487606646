"""The base class of long-term stores, for authors of a storage engine.

A subclass implements `_open`, which returns a `flowpregel.storage.Store`.
"""

from flowpregel.store.memory import ItemStore

__all__ = ["ItemStore"]
