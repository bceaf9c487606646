"""The long-term store over any engine, for those who write one.

A subclass implements `_open`, which returns a `flowpregel.storage.Store`.
"""

from flowpregel.store.memory import ItemStore

__all__ = ["ItemStore"]
