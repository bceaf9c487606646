"""The store and the cache contract on SQLite, and all three in one database."""

import pytest

from flowpregel.plugins.sqlite import SQLiteCache, SQLiteSaver, SQLiteStore
from flowpregel.testing.cache_contract import CacheContract
from flowpregel.testing.store_contract import StoreContract
from tests.contract.store_options import QueryRules, TimeRules

pytestmark = pytest.mark.usefixtures("store_key")

A = (("f",), "a")


class TestSQLiteStore(StoreContract, TimeRules, QueryRules):
    def make_store(self, folder, **options):
        return SQLiteStore(folder / "store.db", **options)

    def reopen(self, store, folder, **options):
        store.close()
        return SQLiteStore(folder / "store.db", **options)


class TestSQLiteCache(CacheContract):
    def make_cache(self, folder, **options):
        return SQLiteCache(folder / "store.db", **options)


def test_saver_store_and_cache_live_in_one_database(tmp_path):
    url = f"sqlite:///{tmp_path}/all.db"
    with (
        SQLiteSaver(url) as saver,
        SQLiteStore(url) as store,
        SQLiteCache(url) as cache,
    ):
        store.put(("n",), "large", {"data": bytes(3_000_000)})
        cache.set({A: (bytes(3_000_000), None)})

        assert 3_000_000 == len(store.get(("n",), "large").value["data"])
        assert 3_000_000 == len(cache.get([A])[A])
        assert saver.verify().ok


def test_the_next_opening_removes_what_killed_processes_had_claimed(tmp_path):
    """And no claim on a result that is still being computed."""
    claims = tmp_path / "store.db-locks" / "claims"
    with SQLiteCache(tmp_path / "store.db") as cache, cache.claim(A) as is_free:
        (held,) = claims.iterdir()
        (claims / "left").touch()

        with SQLiteCache(tmp_path / "store.db"):
            assert is_free
            assert [held] == [*claims.iterdir()]
    assert [] == [*claims.iterdir()]
