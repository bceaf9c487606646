"""The cache of results over any engine, for those who write one.

A subclass implements `_open`, which returns a `flowpregel.storage.Store`, and `claim`,
for which there is `flowpregel.storage.ClaimFiles`.
"""

from flowpregel.cache.memory import RecordCache, digest_of_key

__all__ = ["RecordCache", "digest_of_key"]
