"""The store and the cache contract on PostgreSQL."""

import pytest

from flowpregel.testing.cache_contract import CacheContract
from flowpregel.testing.store_contract import StoreContract
from tests.contract.store_options import QueryRules, TimeRules

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]


class TestPostgresStore(StoreContract, TimeRules, QueryRules):
    @pytest.fixture(autouse=True)
    def _url(self, postgres_url):
        self.url = postgres_url

    def make_store(self, folder, **options):
        from flowpregel.plugins.postgres import PostgresStore

        return PostgresStore(self.url, **options)

    def reopen(self, store, folder, **options):
        store.close()
        return self.make_store(folder, **options)


class TestPostgresCache(CacheContract):
    @pytest.fixture(autouse=True)
    def _url(self, postgres_url):
        self.url = postgres_url

    def make_cache(self, folder, **options):
        from flowpregel.plugins.postgres import PostgresCache

        return PostgresCache(self.url, **options)


def test_only_one_process_computes_what_it_has_claimed(postgres_url):
    from flowpregel.plugins.postgres import PostgresCache

    key = ("f",), "a"
    with PostgresCache(postgres_url) as here, PostgresCache(postgres_url) as there:
        with here.claim(key) as ours, there.claim(key) as theirs:
            assert (ours, theirs) == (True, False)
        with there.claim(key) as theirs:
            assert theirs
