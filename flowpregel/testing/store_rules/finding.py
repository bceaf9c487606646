"""Rules of `search` and `list_namespaces`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError, InvalidNamespaceError
from flowpregel.store.base import BaseStore
from flowpregel.testing.store_rules.hooks import Clock, Hooks, keys


class SearchRules(Hooks):
    """Which items a search finds."""

    @pytest.fixture
    def filled(self, store: BaseStore) -> BaseStore:
        """A store with books in two namespaces, and something else."""
        books = {
            "a": {"title": "Ants", "year": 1990, "by": {"name": "Bo", "born": 1950}, "tags": [1]},
            "b": {"title": "Bees", "year": 2000, "by": {"name": "Cy", "born": 1960}},
            "c": {"title": "Cats", "year": 2010, "by": {"name": "Bo", "born": 1970}},
        }
        for key, value in books.items():
            store.put(("books", "en"), key, value)
        store.put(("books", "de"), "d", {"title": "Dachse", "year": "2020"})
        store.put(("booksellers",), "e", {"title": "Eve"})
        return store

    def test_a_prefix_is_one_of_whole_labels(self, filled: BaseStore) -> None:
        assert set(keys(filled.search(("books",)))) == set("abcd")
        assert set(keys(filled.search(("books", "en")))) == set("abc")
        assert set(keys(filled.search(()))) == set("abcde")
        assert filled.search(("unknown",)) == []

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
    def test_a_filter_says_what_fields_have_to_be(
        self, filled: BaseStore, filter: dict[str, Any], expected: str
    ) -> None:
        assert set(keys(filled.search(("books",), filter=filter))) == set(expected)

    def test_an_unknown_comparison_is_refused(self, filled: BaseStore) -> None:
        with pytest.raises(ConfigurationError, match=r"\$like"):
            filled.search(("books",), filter={"title": {"$like": "A"}})

    def test_limit_and_offset_are_a_window(self, filled: BaseStore) -> None:
        every = keys(filled.search((), limit=100))

        assert len(every) == 5
        assert [keys(filled.search((), limit=2, offset=n)) for n in (0, 2, 4, 6)] == [
            every[0:2], every[2:4], every[4:6], [],
        ]  # fmt: skip
        assert filled.search((), limit=0) == []
        with pytest.raises(ConfigurationError):
            filled.search((), offset=-1)
        with pytest.raises(ConfigurationError, match="limit is None"):
            filled.search((), limit=None)  # type: ignore[arg-type]

    def test_ten_items_are_found_where_no_limit_is_given(self, store: BaseStore) -> None:
        for number in range(12):
            store.put(("n",), str(number), {})

        assert len(store.search(("n",))) == 10


class NamespaceRules(Hooks):
    """Which namespaces are listed."""

    @pytest.fixture
    def spread(self, store: BaseStore) -> BaseStore:
        """A store with items in six namespaces."""
        for path in ("a/b/c", "a/b/d", "a/x/c", "b/b/c", "b", "a"):
            store.put(tuple(path.split("/")), "k", {})
        return store

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
        self, spread: BaseStore, options: dict[str, Any], expected: list[str]
    ) -> None:
        assert ["/".join(each) for each in spread.list_namespaces(**options)] == expected

    def test_an_impossible_pattern_is_refused(self, spread: BaseStore) -> None:
        with pytest.raises(InvalidNamespaceError):
            spread.list_namespaces(prefix=("a.b",))


class QueryRules(Hooks):
    """How a query ranks what is found."""

    def test_a_query_ranks_by_the_words_that_are_shared(self, store: BaseStore) -> None:
        store.put(("n",), "none", {"text": "nothing of it"})
        store.put(("n",), "one", {"parts": [{"text": "a red boat"}]})
        store.put(("n",), "two", {"text": "The RED, red car!"})
        store.put(("n",), "not looked at", {"text": "red car"}, index=False)
        store.put(("n",), "elsewhere", {"text": "red car", "title": "plain"}, index=["title"])

        found = store.search(("n",), query="red car")

        assert keys(found)[:2] == ["two", "one"]
        assert keys(found)[-1] == "not looked at"
        assert [item.score for item in found] == [1.0, 0.5, 0.0, 0.0, None]

    def test_a_query_and_a_filter_work_together(self, store: BaseStore) -> None:
        for number in range(6):
            words = " ".join(["car"] * (number % 2) + ["red"])
            store.put(("n",), str(number), {"text": words, "half": number // 3})

        found = store.search(("n",), query="red car", filter={"half": 1}, limit=2)

        assert keys(found) == ["3", "5"]

    def test_without_a_query_nothing_has_a_score(self, store: BaseStore) -> None:
        store.put(("n",), "k", {"text": "red"})

        assert store.search(("n",))[0].score is None

    @pytest.fixture
    def indexed(self, tmp_path: Path, clock: Clock) -> BaseStore:
        """A store that finds texts by how many a, b and c they have."""
        index = {"embed": count_letters, "dims": 3, "fields": ["text", "more[*].text"]}
        return self.make_store(tmp_path, clock=clock, index=index)

    def test_an_index_ranks_by_meaning(self, indexed: BaseStore) -> None:
        indexed.put(("n",), "b", {"text": "bbb"})
        indexed.put(("n",), "a", {"text": "aaa"})
        indexed.put(("n",), "ab", {"text": "ab"})
        indexed.put(("n",), "nothing", {"other": "aaa"})
        indexed.put(("n",), "not looked at", {"text": "aaa"}, index=False)

        found = indexed.search(("n",), query="a")

        assert keys(found)[:3] == ["a", "ab", "b"]
        assert found[0].score == pytest.approx(1.0)
        assert found[2].score == pytest.approx(0.0)
        assert {item.score for item in found[3:]} == {None}

    def test_the_best_of_several_texts_counts(self, indexed: BaseStore) -> None:
        indexed.put(("n",), "b", {"text": "b"})
        indexed.put(("n",), "parts", {"text": "b", "more": [{"text": "c"}, {"text": "aa"}]})

        found = indexed.search(("n",), query="a")

        assert keys(found) == ["parts", "b"]
        assert found[0].score == pytest.approx(1.0)

    def test_a_put_may_name_its_own_paths(self, indexed: BaseStore) -> None:
        indexed.put(("n",), "own", {"title": "a", "text": "b"}, index=["title"])

        assert indexed.search(("n",), query="a")[0].score == pytest.approx(1.0)

    def test_equal_texts_are_no_trouble(self, indexed: BaseStore) -> None:
        same = {"text": "a", "more": [{"text": "a"}, {"text": "a"}]}
        indexed.put(("n",), "one", same)
        indexed.put(("n",), "two", same)

        assert keys(indexed.search(("n",), query="a")) == ["one", "two"]

    def test_a_later_put_is_found_by_its_new_text(self, indexed: BaseStore) -> None:
        indexed.put(("n",), "k", {"text": "a"})
        indexed.put(("n",), "k", {"text": "b"})

        assert indexed.search(("n",), query="a")[0].score == pytest.approx(0.0)

    def test_vectors_of_another_length_are_refused(self, tmp_path: Path, clock: Clock) -> None:
        index = {"embed": count_letters, "dims": 4}
        store = self.make_store(tmp_path, clock=clock, index=index)

        with pytest.raises(ConfigurationError, match="dims=4"):
            store.put(("n",), "k", {"text": "a"})
        assert store.list_namespaces() == []


def count_letters(texts: list[str]) -> list[list[float]]:
    """Return an embedding that can be worked out by hand: how many a, b and c."""
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]
