"""The cache contract on `InMemoryCache`."""

from flowpregel.cache.memory import InMemoryCache
from flowpregel.testing.cache_contract import CacheContract


class TestInMemoryCache(CacheContract):
    def make_cache(self, folder, **options):
        return InMemoryCache(**options)
