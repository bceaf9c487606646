"""The base class of caches, for authors of a storage engine.

A subclass implements `_open`, which returns a `flowpregel.storage.Store`, and `claim`,
for which `flowpregel.storage.ClaimFiles` may be used.
"""

from flowpregel.cache.memory import RecordCache, digest_of_key

__all__ = ["RecordCache", "digest_of_key"]
