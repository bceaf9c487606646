"""The cache contract on `LMDBCache`, and what is shared between openings."""

import pytest

from flowpregel.cache.lmdb import LMDBCache
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.testing.cache_contract import CacheContract

pytestmark = pytest.mark.usefixtures("store_key")

A, B, C = ((("f",), "a"), (("f",), "b"), (("g",), "a"))


class TestLMDBCache(CacheContract):
    def make_cache(self, folder, **options):
        return LMDBCache(folder / "store.lmdb", **options)


def test_what_was_kept_is_there_when_the_cache_is_opened_again(tmp_path):
    with LMDBCache(tmp_path / "store") as cache:
        cache.set({A: ([("x", (1, 2))], None)})

    with LMDBCache(tmp_path / "store") as cache:
        assert cache.get([A]) == {A: [("x", (1, 2))]}


def test_a_cache_and_a_saver_live_in_one_folder(tmp_path):
    with LMDBSaver(tmp_path / "store") as saver, LMDBCache(tmp_path / "store") as cache:
        cache.set({A: (bytes(3_000_000), None), B: (2, None)})
        assert len(cache.get([A])[A]) == 3_000_000
        cache.clear([("f",)])
        assert cache.get([A, B]) == {}
        cache.set({C: (3, None)})
        assert cache.get([C]) == {C: 3}
        assert saver.verify().ok


def test_the_size_is_bounded_over_openings(tmp_path):
    for number in range(6):
        with LMDBCache(tmp_path / "store", max_entries=3) as cache:
            cache.set({(("f",), str(number)): (number, None)})

    with LMDBCache(tmp_path / "store") as cache:
        found = cache.get([(("f",), str(number)) for number in range(6)])
    assert [*found.values()] == [3, 4, 5]


def test_the_next_opening_removes_what_killed_processes_had_claimed(tmp_path):
    """And nothing that somebody is still computing."""
    claims = tmp_path / "store" / "claims"
    with LMDBCache(tmp_path / "store") as cache, cache.claim(A) as is_free:
        (held,) = claims.iterdir()
        (claims / "left").touch()

        with LMDBCache(tmp_path / "store"):
            assert is_free
            assert [held] == [*claims.iterdir()]
    assert [] == [*claims.iterdir()]
