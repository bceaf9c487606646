"""The contract of a cache, as tests that you can run on your own cache.

Subclass `CacheContract` in a pytest module, and define how to create a cache::

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

A = (("f",), "a")
B = (("f",), "b")
C = (("g", "h"), "a")

_NAMES = (
    "",
    "\0",
    "a|b",
    "/../",
    "ü",
    "\ud800",
    "x" * 10_000,
)


class CacheContract:
    """All rules of the contract of a `BaseCache` that has the options ``max_entries``
    and ``clock``.

    A subclass defines `make_cache`.

    Example:
        >>> from flowpregel.cache.memory import InMemoryCache
        >>> class TestMyCache(CacheContract):
        ...     def make_cache(self, folder, **options):
        ...         return InMemoryCache(**options)
    """

    def make_cache(
        self,
        folder: Path,
        *,
        max_entries: int = 100,
        clock: Callable[[], float],
    ) -> BaseCache:
        """Return a new, empty cache.

        Args:
            folder: A folder for this cache only.
            max_entries: The greatest number of entries.
            clock: A function that returns the time in seconds.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define make_cache(folder)"
        )

    @pytest.fixture
    def now(self) -> list[float]:
        """A list whose only item is the time of `cache`, in seconds."""
        return [1_000.0]

    @pytest.fixture
    def cache(self, tmp_path: Path, now: list[float]) -> Iterator[BaseCache]:
        """A new, empty cache.

        Args:
            tmp_path: The folder of the test.
            now: The fixture with the time.
        """
        cache = self.make_cache(tmp_path, clock=lambda: now[0])
        yield cache
        close = getattr(cache, "close", None)
        if close is not None:
            close()

    def test_only_what_was_kept_is_found(self, cache: BaseCache) -> None:
        values = [("x", 1)]
        cache.set(
            {
                A: (values, None),
                C: (None, None),
            }
        )

        assert cache.get([A, B, C]) == {A: values, C: None}
        assert cache.get([]) == {}

    def test_a_later_value_replaces_the_earlier(
        self,
        cache: BaseCache,
    ) -> None:
        cache.set({A: (1, None)})
        cache.set({A: (2, None)})

        assert cache.get([A]) == {A: 2}

    def test_a_value_is_used_for_its_seconds_only(
        self,
        cache: BaseCache,
        now: list[float],
    ) -> None:
        cache.set(
            {
                A: (1, 10),
                B: (2, None),
                C: (3, 0.5),
            }
        )
        now[0] += 9.5
        assert cache.get([A, B, C]) == {A: 1, B: 2}
        now[0] += 1.0

        assert cache.get([A, B, C]) == {B: 2}

    def test_a_new_value_has_time_of_its_own(
        self,
        cache: BaseCache,
        now: list[float],
    ) -> None:
        cache.set({A: (1, 10)})
        cache.set({A: (2, None)})
        now[0] += 100

        assert cache.get([A]) == {A: 2}

    def test_a_later_change_of_an_object_changes_nothing_kept(
        self,
        cache: BaseCache,
    ) -> None:
        value = [1]
        cache.set({A: (value, None)})
        value.append(2)
        result = cache.get([A])
        result[A].append(3)

        assert cache.get([A]) == {A: [1]}

    def test_namespaces_are_cleared_exactly(
        self,
        cache: BaseCache,
    ) -> None:
        deeper = (("f", "g"), "a")
        keys = [A, B, C, deeper]
        cache.set(dict.fromkeys(keys, (1, None)))
        cache.clear([("f",), ("unknown",)])
        assert set(cache.get(keys)) == {C, deeper}
        cache.clear([])
        assert set(cache.get(keys)) == {C, deeper}
        cache.clear()

        assert cache.get(keys) == {}

    @pytest.mark.parametrize("name", _NAMES)
    def test_names_may_be_any_text(self, cache: BaseCache, name: str) -> None:
        keys = [
            ((name,), name),
            ((name, name), ""),
            ((), name),
            ((f"{name}|",), name),
        ]
        cache.set({key: (key, None) for key in keys})

        assert cache.get(keys) == {key: key for key in keys}

    def test_what_was_not_used_for_longest_goes_first(
        self,
        tmp_path: Path,
    ) -> None:
        cache = self.make_cache(tmp_path, max_entries=2, clock=lambda: 0.0)
        cache.set(
            {
                A: (1, None),
                B: (2, None),
            }
        )
        cache.get([A])
        cache.set({C: (3, None)})

        assert cache.get([A, B, C]) == {A: 1, C: 3}

    def test_a_size_that_keeps_nothing_is_refused(
        self,
        tmp_path: Path,
    ) -> None:
        with pytest.raises(ConfigurationError, match="max_entries"):
            self.make_cache(tmp_path, max_entries=0, clock=lambda: 0.0)

    def test_a_value_that_cannot_be_kept_is_named(
        self,
        cache: BaseCache,
    ) -> None:
        entries: dict[Any, Any] = {
            A: (1, None),
            B: (threading.Lock(), None),
        }
        with pytest.raises(ValueEncodingError, match="'b'"):
            cache.set(entries)
        assert cache.get([A, B]) == {}

    def test_the_async_forms_do_the_same(self, cache: BaseCache) -> None:
        async def use() -> list[Any]:
            entries = {
                A: (1, None),
                C: (2, None),
            }
            await cache.aset(entries)
            before = await cache.aget([A, B, C])
            await cache.aclear([("f",)])
            after = await cache.aget([A, C])
            return [before, after]

        before, after = asyncio.run(use())

        assert before == {A: 1, C: 2}
        assert after == {C: 2}

    def test_many_os_threads_use_it_at_once(
        self,
        cache: BaseCache,
    ) -> None:
        names = [f"t{number}" for number in range(6)]

        def run(name: str) -> None:
            for number in range(15):
                key = ((name,), str(number % 5))
                cache.set({key: (number, None)})
                cache.get([((name,), "0")])

        with ThreadPoolExecutor(6) as threads:
            results = list(threads.map(run, names))
        assert len(results) == 6

        for name in names:
            key = ((name,), "4")
            assert cache.get([key]) == {key: 14}
