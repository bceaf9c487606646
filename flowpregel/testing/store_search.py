"""What a subclass of the store contract gives, and the contract's rules of finding items."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError, InvalidNamespaceError
from flowpregel.store.base import BaseStore

BOOKS: dict[str, dict[str, Any]] = {
    "a": {"title": "Ants", "year": 1990, "by": {"name": "Bo", "born": 1950}, "tags": [1]},
    "b": {"title": "Bees", "year": 2000, "by": {"name": "Cy", "born": 1960}},
    "c": {"title": "Cats", "year": 2010, "by": {"name": "Bo", "born": 1970}},
}


class Clock:
    """A clock that stands until it is moved; it gives seconds."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def move(self, *, minutes: float) -> datetime:
        """Let time pass, and return the new time."""
        self.now += minutes * 60
        return datetime.fromtimestamp(self.now, UTC)


class StoreHooks:
    """What a subclass gives, and the fixtures that all rules use."""

    def make_store(self, folder: Path, **options: Any) -> BaseStore:
        """Return a new, empty store; *options* are ``clock``, ``ttl`` and ``index``."""
        raise NotImplementedError(f"{type(self).__name__} has to give make_store(folder)")

    def reopen(self, store: BaseStore, folder: Path, **options: Any) -> BaseStore:
        """Return a store that has what *store* has, from disk if it has one."""
        return store

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock of `store`."""
        return Clock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> Iterator[BaseStore]:
        """A new, empty store."""
        store = self.make_store(tmp_path, clock=clock)
        yield store
        close = getattr(store, "close", None)
        if close is not None:
            close()


class SearchRules(StoreHooks):
    """Which items a search finds."""

    @pytest.fixture
    def filled(self, store: BaseStore) -> BaseStore:
        """A store with books in two namespaces, and something else."""
        for key, value in BOOKS.items():
            store.put(("books", "en"), key, value)
        store.put(("books", "de"), "d", {"title": "Dachse", "year": "2020"})
        store.put(("booksellers",), "e", {"title": "Eve"})
        return store

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [(("books",), "abcd"), (("books", "en"), "abc"), ((), "abcde"), (("unknown",), "")],
    )
    def test_a_prefix_is_one_of_whole_labels(
        self, filled: BaseStore, prefix: tuple[str, ...], expected: str
    ) -> None:
        assert {*keys(filled.search(prefix))} == {*expected}

    @pytest.mark.parametrize(
        ("filter", "expected"),
        [
            ({"title": "Ants"}, "a"),
            ({"title": "Ants", "year": 2000}, ""),
            ({"by": {"name": "Bo"}}, "ac"),
            ({"by": {"name": "Bo", "born": {"$gt": 1950}}}, "c"),
            ({"tags": [1]}, "a"),
            ({"year": {"$eq": 2000}}, "b"),
            ({"year": {"$ne": 2000}}, "acd"),
            ({"year": {"$gt": 2000}}, "c"),
            ({"year": {"$gte": 2000}}, "bc"),
            ({"year": {"$lt": 2000}}, "a"),
            ({"year": {"$lte": 2000}}, "ab"),
            ({"year": {"$gt": 1990, "$lt": 2010}}, "b"),
            ({"title": {"$gt": "Bees"}}, "cd"),
            ({"no such field": 1}, ""),
            ({"no such field": None}, "abcd"),
            ({"title": {"name": "Ants"}}, ""),
            ({}, "abcd"),
        ],
    )
    def test_a_filter_compares_fields(
        self, filled: BaseStore, filter: dict[str, Any], expected: str
    ) -> None:
        assert {*keys(filled.search(("books",), filter=filter))} == {*expected}

    def test_an_unknown_comparison_is_refused(self, filled: BaseStore) -> None:
        with pytest.raises(ConfigurationError, match=r"\$like"):
            filled.search(("books",), filter={"title": {"$like": "A"}})

    def test_limit_and_offset_are_a_window(self, filled: BaseStore) -> None:
        every = keys(filled.search((), limit=100))

        assert len(every) == 5
        for offset in (0, 2, 4, 6):
            found = keys(filled.search((), limit=2, offset=offset))
            assert found == every[offset : offset + 2]
        assert filled.search((), limit=0) == []
        with pytest.raises(ConfigurationError):
            filled.search((), offset=-1)
        with pytest.raises(ConfigurationError, match="limit is None"):
            filled.search((), limit=None)  # type: ignore[arg-type]

    def test_ten_items_are_found_where_no_limit_is_given(self, store: BaseStore) -> None:
        for number in range(12):
            store.put(("n",), str(number), {})

        assert len(store.search(("n",))) == 10

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, ["a", "a/b/c", "a/b/d", "a/x/c", "b", "b/b/c"]),
            ({"prefix": ("a",)}, ["a", "a/b/c", "a/b/d", "a/x/c"]),
            ({"prefix": ("a", "b")}, ["a/b/c", "a/b/d"]),
            ({"prefix": ("*", "b")}, ["a/b/c", "a/b/d", "b/b/c"]),
            ({"suffix": ("c",)}, ["a/b/c", "a/x/c", "b/b/c"]),
            ({"suffix": ("b", "*")}, ["a/b/c", "a/b/d", "b/b/c"]),
            ({"prefix": ("a",), "suffix": ("c",)}, ["a/b/c", "a/x/c"]),
            ({"max_depth": 1}, ["a", "b"]),
            ({"max_depth": 2}, ["a", "a/b", "a/x", "b", "b/b"]),
            ({"prefix": ("a",), "max_depth": 2, "limit": 2}, ["a", "a/b"]),
            ({"limit": 2, "offset": 4}, ["b", "b/b/c"]),
            ({"prefix": ("a", "b", "c", "d")}, []),
        ],
    )
    def test_namespaces_are_listed_by_pattern_in_order(
        self, store: BaseStore, options: dict[str, Any], expected: list[str]
    ) -> None:
        for path in ("a/b/c", "a/b/d", "a/x/c", "b/b/c", "b", "a"):
            store.put(tuple(path.split("/")), "k", {})

        assert ["/".join(each) for each in store.list_namespaces(**options)] == expected

    def test_an_impossible_pattern_is_refused(self, store: BaseStore) -> None:
        with pytest.raises(InvalidNamespaceError):
            store.list_namespaces(prefix=("a.b",))


RED: dict[str, dict[str, Any]] = {
    "none": {"text": "nothing of it"},
    "one": {"parts": [{"text": "a red boat"}]},
    "two": {"text": "The RED, red car!"},
}


class QueryRules(StoreHooks):
    """How a query ranks what is found."""

    @pytest.fixture
    def indexed(self, tmp_path: Path, clock: Clock) -> BaseStore:
        """A store that finds texts by how many a, b and c they have."""
        index = {"embed": count_letters, "dims": 3, "fields": ["text", "more[*].text"]}
        return self.make_store(tmp_path, clock=clock, index=index)

    def ranked(self, store: BaseStore, query: str = "a") -> dict[str, Any]:
        """Return the scores of what a query finds in namespace ``n``, the best first."""
        found = store.search(("n",), query=query)
        return {item.key: item.score and round(item.score, 3) for item in found}

    def test_a_query_ranks_by_the_words_that_are_shared(self, store: BaseStore) -> None:
        for key, value in RED.items():
            store.put(("n",), key, value)
        store.put(("n",), "not looked at", {"text": "red car"}, index=False)
        store.put(("n",), "elsewhere", {"text": "red car", "title": "plain"}, index=["title"])

        ranked = self.ranked(store, "red car")

        expected = {"two": 1.0, "one": 0.5, "none": 0.0, "elsewhere": 0.0, "not looked at": None}
        assert [*expected.items()] == [*ranked.items()]
        assert {item.score for item in store.search(("n",))} == {None}

    def test_a_query_and_a_filter_work_together(self, store: BaseStore) -> None:
        for number in range(6):
            words = " ".join(["car"] * (number % 2) + ["red"])
            store.put(("n",), str(number), {"text": words, "half": number // 3})

        found = store.search(("n",), query="red car", filter={"half": 1}, limit=2)

        assert keys(found) == ["3", "5"]

    def test_an_index_ranks_by_meaning(self, indexed: BaseStore) -> None:
        indexed.put(("n",), "b", {"text": "bbb"})
        indexed.put(("n",), "a", {"text": "b"})
        indexed.put(("n",), "a", {"text": "aaa"})
        indexed.put(("n",), "ab", {"text": "ab"})
        indexed.put(("n",), "nothing", {"other": "aaa"})
        indexed.put(("n",), "not looked at", {"text": "aaa"}, index=False)

        ranked = self.ranked(indexed)

        expected = {"a": 1.0, "ab": 0.707, "b": 0.0, "nothing": None, "not looked at": None}
        assert [*expected.items()] == [*ranked.items()]

    def test_the_best_of_several_texts_counts(self, indexed: BaseStore) -> None:
        indexed.put(("n",), "b", {"text": "b"})
        indexed.put(("n",), "parts", {"text": "b", "more": [{"text": "c"}, {"text": "aa"}] * 2})
        indexed.put(("n",), "own", {"title": "a", "text": "b"}, index=["title"])

        assert self.ranked(indexed) == {"parts": 1.0, "own": 1.0, "b": 0.0}

    def test_vectors_of_another_length_are_refused(self, tmp_path: Path, clock: Clock) -> None:
        index = {"embed": count_letters, "dims": 4}
        store = self.make_store(tmp_path, clock=clock, index=index)

        with pytest.raises(ConfigurationError, match="dims=4"):
            store.put(("n",), "k", {"text": "a"})
        assert store.list_namespaces() == []


def count_letters(texts: list[str]) -> list[list[float]]:
    """Return an embedding that can be worked out by hand: how many a, b and c."""
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


def keys(items: Any) -> list[str]:
    """Return the keys of *items*."""
    return [item.key for item in items]
