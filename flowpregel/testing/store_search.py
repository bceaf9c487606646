"""The rules for searches and for listings of namespaces in the store contract."""

from __future__ import annotations

from typing import Any

import pytest

from flowpregel.errors import ConfigurationError, InvalidNamespaceError
from flowpregel.store.base import BaseStore
from flowpregel.testing.store_hooks import StoreHooks, keys

BOOKS: dict[str, dict[str, Any]] = {
    "a": {
        "title": "Ants",
        "year": 1990,
        "by": {"name": "Bo", "born": 1950},
        "tags": [1],
    },
    "b": {
        "title": "Bees",
        "year": 2000,
        "by": {"name": "Cy", "born": 1960},
    },
    "c": {
        "title": "Cats",
        "year": 2010,
        "by": {"name": "Bo", "born": 1970},
    },
}

PREFIXES = [
    pytest.param(
        ("books",),
        "abcd",
        id="one label",
    ),
    pytest.param(
        ("books", "en"),
        "abc",
        id="two labels",
    ),
    pytest.param(
        (),
        "abcde",
        id="no label",
    ),
    pytest.param(
        ("unknown",),
        "",
        id="unknown",
    ),
]
"""Test cases: a prefix, and the keys of the items below it in `SearchRules.filled`."""

FILTERS = [
    pytest.param(
        {"title": "Ants"},
        "a",
        id="field",
    ),
    pytest.param(
        {"title": "Ants", "year": 2000},
        "",
        id="two fields",
    ),
    pytest.param(
        {"by": {"name": "Bo"}},
        "ac",
        id="field of a field",
    ),
    pytest.param(
        {"by": {"name": "Bo", "born": {"$gt": 1950}}},
        "c",
        id="comparison in a field of a field",
    ),
    pytest.param(
        {"tags": [1]},
        "a",
        id="list",
    ),
    pytest.param(
        {"year": {"$eq": 2000}},
        "b",
        id="$eq",
    ),
    pytest.param(
        {"year": {"$ne": 2000}},
        "acd",
        id="$ne",
    ),
    pytest.param(
        {"year": {"$gt": 2000}},
        "c",
        id="$gt",
    ),
    pytest.param(
        {"year": {"$gte": 2000}},
        "bc",
        id="$gte",
    ),
    pytest.param(
        {"year": {"$lt": 2000}},
        "a",
        id="$lt",
    ),
    pytest.param(
        {"year": {"$lte": 2000}},
        "ab",
        id="$lte",
    ),
    pytest.param(
        {"year": {"$gt": 1990, "$lt": 2010}},
        "b",
        id="two comparisons",
    ),
    pytest.param(
        {"title": {"$gt": "Bees"}},
        "cd",
        id="comparison of text",
    ),
    pytest.param(
        {"no such field": 1},
        "",
        id="unknown field",
    ),
    pytest.param(
        {"no such field": None},
        "abcd",
        id="None for an unknown field",
    ),
    pytest.param(
        {"title": {"name": "Ants"}},
        "",
        id="dict for a text",
    ),
    pytest.param(
        {},
        "abcd",
        id="no field",
    ),
]
"""Test cases: a filter, and the keys of the books that match."""

PATTERNS = [
    pytest.param(
        {},
        ["a", "a/b/c", "a/b/d", "a/x/c", "b", "b/b/c"],
        id="all",
    ),
    pytest.param(
        {"prefix": ("a",)},
        ["a", "a/b/c", "a/b/d", "a/x/c"],
        id="prefix",
    ),
    pytest.param(
        {"prefix": ("a", "b")},
        ["a/b/c", "a/b/d"],
        id="prefix of two labels",
    ),
    pytest.param(
        {"prefix": ("*", "b")},
        ["a/b/c", "a/b/d", "b/b/c"],
        id="wildcard in a prefix",
    ),
    pytest.param(
        {"suffix": ("c",)},
        ["a/b/c", "a/x/c", "b/b/c"],
        id="suffix",
    ),
    pytest.param(
        {"suffix": ("b", "*")},
        ["a/b/c", "a/b/d", "b/b/c"],
        id="wildcard in a suffix",
    ),
    pytest.param(
        {"prefix": ("a",), "suffix": ("c",)},
        ["a/b/c", "a/x/c"],
        id="prefix and suffix",
    ),
    pytest.param(
        {"max_depth": 1},
        ["a", "b"],
        id="max_depth of one",
    ),
    pytest.param(
        {"max_depth": 2},
        ["a", "a/b", "a/x", "b", "b/b"],
        id="max_depth of two",
    ),
    pytest.param(
        {"prefix": ("a",), "max_depth": 2, "limit": 2},
        ["a", "a/b"],
        id="prefix, max_depth and limit",
    ),
    pytest.param(
        {"limit": 2, "offset": 4},
        ["b", "b/b/c"],
        id="limit and offset",
    ),
    pytest.param(
        {"prefix": ("a", "b", "c", "d")},
        [],
        id="prefix longer than all",
    ),
]
"""Test cases: the options of `list_namespaces`, and the namespaces that it must
return.
"""


class SearchRules(StoreHooks):
    """Rules for searches: a search finds the items that match, and no other items."""

    @pytest.fixture
    def filled(self, store: BaseStore) -> BaseStore:
        """A store with books in two namespaces, and an item in a third.

        Args:
            store: The store under test.
        """
        for key, value in BOOKS.items():
            store.put(("books", "en"), key, value)
        store.put(("books", "de"), "d", {"title": "Dachse", "year": "2020"})
        store.put(("booksellers",), "e", {"title": "Eve"})
        return store

    @pytest.mark.parametrize(("prefix", "expected"), PREFIXES)
    def test_a_prefix_is_one_of_whole_labels(
        self,
        filled: BaseStore,
        prefix: tuple[str, ...],
        expected: str,
    ) -> None:
        assert set(keys(filled.search(prefix))) == set(expected)

    @pytest.mark.parametrize(("filter", "expected"), FILTERS)
    def test_a_filter_compares_fields(
        self,
        filled: BaseStore,
        filter: dict[str, Any],
        expected: str,
    ) -> None:
        items = filled.search(("books",), filter=filter)

        assert set(keys(items)) == set(expected)

    def test_an_unknown_comparison_is_refused(self, filled: BaseStore) -> None:
        unknown = {"title": {"$like": "A"}}
        with pytest.raises(ConfigurationError, match=r"\$like"):
            filled.search(("books",), filter=unknown)

    def test_limit_and_offset_are_a_window(self, filled: BaseStore) -> None:
        every = keys(filled.search((), limit=100))

        assert len(every) == 5
        for offset in (0, 2, 4, 6):
            items = filled.search((), limit=2, offset=offset)
            assert keys(items) == every[offset : offset + 2]
        assert filled.search((), limit=0) == []
        with pytest.raises(ConfigurationError):
            filled.search((), offset=-1)
        with pytest.raises(ConfigurationError, match="limit is None"):
            filled.search((), limit=None)  # type: ignore[arg-type]

    def test_ten_items_are_found_where_no_limit_is_given(
        self,
        store: BaseStore,
    ) -> None:
        for number in range(12):
            store.put(("n",), str(number), {})

        assert len(store.search(("n",))) == 10

    @pytest.mark.parametrize(("options", "expected"), PATTERNS)
    def test_namespaces_are_listed_by_pattern_in_order(
        self,
        store: BaseStore,
        options: dict[str, Any],
        expected: list[str],
    ) -> None:
        for path in ("a/b/c", "a/b/d", "a/x/c", "b/b/c", "b", "a"):
            namespace = tuple(path.split("/"))
            store.put(namespace, "k", {})

        namespaces = store.list_namespaces(**options)

        assert ["/".join(namespace) for namespace in namespaces] == expected

    def test_an_impossible_pattern_is_refused(self, store: BaseStore) -> None:
        with pytest.raises(InvalidNamespaceError):
            store.list_namespaces(prefix=("a.b",))
