"""What every cache must do, as tests that anyone can run on theirs.

Subclass `CacheContract` in a test module of pytest, and say how a cache is made::

    class TestMyCache(CacheContract):
        def make_cache(self, folder, **options):
            return MyCache(folder / "cache", **options)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flowpregel.cache.base import BaseCache
from flowpregel.errors import ConfigurationError, ValueEncodingError

A, B, C = ((("f",), "a"), (("f",), "b"), (("g", "h"), "a"))


class CacheContract:
    """Every rule of the contract of a `BaseCache` with ``max_entries`` and ``clock``.

    A subclass gives `make_cache`.
    """

    def make_cache(
        self, folder: Path, *, max_entries: int = 100, clock: Callable[[], float]
    ) -> BaseCache:
        """Return a new, empty cache."""
        raise NotImplementedError(f"{type(self).__name__} has to give make_cache(folder)")

    @pytest.fixture
    def now(self) -> list[float]:
        """The time of `cache`, in seconds: its only item."""
        return [1_000.0]

    @pytest.fixture
    def cache(self, tmp_path: Path, now: list[float]) -> Iterator[BaseCache]:
        """A new, empty cache."""
        cache = self.make_cache(tmp_path, clock=lambda: now[0])
        yield cache
        getattr(cache, "close", lambda: None)()

    def test_only_what_was_kept_is_found(self, cache: BaseCache) -> None:
        cache.set({A: ([("x", 1)], None), C: (None, None)})

        assert cache.get([A, B, C]) == {A: [("x", 1)], C: None}
        assert cache.get([]) == {}

    def test_a_later_value_replaces_the_earlier(self, cache: BaseCache) -> None:
        cache.set({A: (1, None)})
        cache.set({A: (2, None)})

        assert cache.get([A]) == {A: 2}

    def test_a_value_is_used_for_its_seconds_only(self, cache: BaseCache, now: list[float]) -> None:
        cache.set({A: (1, 10), B: (2, None), C: (3, 0.5)})
        now[0] += 9.5
        assert cache.get([A, B, C]) == {A: 1, B: 2}
        now[0] += 1.0

        assert cache.get([A, B, C]) == {B: 2}

    def test_a_new_value_has_time_of_its_own(self, cache: BaseCache, now: list[float]) -> None:
        cache.set({A: (1, 10)})
        cache.set({A: (2, None)})
        now[0] += 100

        assert cache.get([A]) == {A: 2}

    def test_a_later_change_of_an_object_changes_nothing_kept(self, cache: BaseCache) -> None:
        value = [1]
        cache.set({A: (value, None)})
        value.append(2)
        cache.get([A])[A].append(3)

        assert cache.get([A]) == {A: [1]}

    def test_namespaces_are_cleared_exactly(self, cache: BaseCache) -> None:
        deeper = (("f", "g"), "a")
        cache.set(dict.fromkeys((A, B, C, deeper), (1, None)))
        cache.clear([("f",), ("unknown",)])
        assert set(cache.get([A, B, C, deeper])) == {C, deeper}
        cache.clear([])
        assert set(cache.get([A, B, C, deeper])) == {C, deeper}
        cache.clear()

        assert cache.get([A, B, C, deeper]) == {}

    @pytest.mark.parametrize("name", ["", "\0", "a|b", "/../", "ü", "\ud800", "x" * 10_000])
    def test_names_may_be_any_text(self, cache: BaseCache, name: str) -> None:
        keys = [((name,), name), ((name, name), ""), ((), name), ((f"{name}|",), name)]
        cache.set({key: (key, None) for key in keys})

        assert cache.get(keys) == {key: key for key in keys}

    def test_what_was_not_used_for_longest_goes_first(self, tmp_path: Path) -> None:
        cache = self.make_cache(tmp_path, max_entries=2, clock=lambda: 0.0)
        cache.set({A: (1, None), B: (2, None)})
        cache.get([A])
        cache.set({C: (3, None)})

        assert cache.get([A, B, C]) == {A: 1, C: 3}

    def test_a_size_that_keeps_nothing_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="max_entries"):
            self.make_cache(tmp_path, max_entries=0, clock=lambda: 0.0)

    def test_a_value_that_cannot_be_kept_is_named(self, cache: BaseCache) -> None:
        with pytest.raises(ValueEncodingError, match="'b'"):
            cache.set({A: (1, None), B: (threading.Lock(), None)})
        assert cache.get([A, B]) == {}

    def test_the_async_forms_do_the_same(self, cache: BaseCache) -> None:
        async def use() -> list[Any]:
            await cache.aset({A: (1, None), C: (2, None)})
            found = await cache.aget([A, B, C])
            await cache.aclear([("f",)])
            return [found, await cache.aget([A, C])]

        assert asyncio.run(use()) == [{A: 1, C: 2}, {C: 2}]

    def test_many_os_threads_use_it_at_once(self, cache: BaseCache) -> None:
        def run(name: str) -> None:
            for number in range(15):
                cache.set({((name,), str(number % 5)): (number, None)})
                cache.get([((name,), "0")])

        with ThreadPoolExecutor(6) as threads:
            assert len([*threads.map(run, (f"t{n}" for n in range(6)))]) == 6

        for n in range(6):
            assert cache.get([((f"t{n}",), "4")]) == {((f"t{n}",), "4"): 14}
