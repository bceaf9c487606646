"""The base class of caches on any engine, for authors of an engine.

A subclass implements `_open`, which returns a `flowpregel.storage.Store`, and `claim`,
for which there is `flowpregel.storage.ClaimFiles`.
"""

from flowpregel.cache.memory import RecordCache, digest_of_key

__all__ = ["RecordCache", "digest_of_key"]
