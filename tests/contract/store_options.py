"""Rules of what a store may offer beside its contract: items for a time, ranked
finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.store.base import BaseStore
from flowpregel.testing.store_hooks import NS, Clock, StoreHooks, keys


class TimeRules(StoreHooks):
    """Items that are kept for a time."""

    def test_an_item_is_gone_when_its_time_is_over(
        self, store: BaseStore, clock: Clock
    ) -> None:
        store.put(NS, "k", {}, ttl=10)
        store.put(("other",), "k", {}, ttl=10)
        for name, ttl in (
            ("for ever", None),
            ("long", 10**30),
            ("endless", float("inf")),
        ):
            store.put(NS, name, {}, ttl=ttl)
        clock.move(minutes=9.9)
        assert keys(store.search(NS, refresh_ttl=False)) == [
            "k",
            "for ever",
            "long",
            "endless",
        ]
        clock.move(minutes=0.2)

        assert store.get(NS, "k") is None
        assert keys(store.search(())) == ["for ever", "long", "endless"]
        assert store.list_namespaces() == [NS]

    @pytest.mark.parametrize(
        ("refresh", "left"), [(None, ["k"]), (True, ["k"]), (False, [])]
    )
    def test_reading_starts_the_time_again_unless_it_is_not_to(
        self, store: BaseStore, clock: Clock, refresh: bool | None, left: list[str]
    ) -> None:
        for read in (
            lambda: store.get(NS, "k", refresh_ttl=refresh),
            lambda: store.search(NS, refresh_ttl=refresh),
        ):
            store.put(NS, "k", {}, ttl=10)
            clock.move(minutes=6)
            assert read()
            clock.move(minutes=6)

            assert keys(store.search(NS, refresh_ttl=False)) == left
            clock.move(minutes=6)
            assert store.search(NS) == []

    def test_a_put_starts_the_time_again_or_ends_it(
        self, store: BaseStore, clock: Clock
    ) -> None:
        store.put(NS, "again", {}, ttl=10)
        store.put(NS, "ended", {}, ttl=10)
        clock.move(minutes=6)
        store.put(NS, "again", {}, ttl=10)
        store.put(NS, "ended", {})
        clock.move(minutes=6)
        assert {*keys(store.search(NS, refresh_ttl=False))} == {"again", "ended"}
        clock.move(minutes=60)

        assert keys(store.search(NS)) == ["ended"]

    def test_a_store_may_have_a_time_for_all_items(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        ttl = {"default_ttl": 10, "refresh_on_read": False}
        store = self.make_store(tmp_path, clock=clock, ttl=ttl)
        store.put(NS, "k", {})
        store.put(NS, "longer", {}, ttl=20)
        store.put(NS, "for ever", {}, ttl=None)
        clock.move(minutes=6)
        store.search(NS)
        clock.move(minutes=6)

        assert keys(store.search(NS)) == ["longer", "for ever"]

    @pytest.mark.parametrize("ttl", [0, -1, "1h"])
    def test_a_time_that_is_no_time_is_refused(
        self, store: BaseStore, ttl: Any
    ) -> None:
        with pytest.raises(ConfigurationError, match="ttl"):
            store.put(NS, "k", {}, ttl=ttl)


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
        """Return the scores of what a query finds in namespace ``n``, the best
        first.
        """
        found = store.search(("n",), query=query)
        return {item.key: item.score and round(item.score, 3) for item in found}

    def test_a_query_ranks_by_the_words_that_are_shared(self, store: BaseStore) -> None:
        for key, value in RED.items():
            store.put(("n",), key, value)
        store.put(("n",), "not looked at", {"text": "red car"}, index=False)
        store.put(
            ("n",), "elsewhere", {"text": "red car", "title": "plain"}, index=["title"]
        )

        ranked = self.ranked(store, "red car")

        expected = {
            "two": 1.0,
            "one": 0.5,
            "none": 0.0,
            "elsewhere": 0.0,
            "not looked at": None,
        }
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

        expected = {
            "a": 1.0,
            "ab": 0.707,
            "b": 0.0,
            "nothing": None,
            "not looked at": None,
        }
        assert [*expected.items()] == [*ranked.items()]

    def test_the_best_of_several_texts_counts(self, indexed: BaseStore) -> None:
        indexed.put(("n",), "b", {"text": "b"})
        indexed.put(
            ("n",), "parts", {"text": "b", "more": [{"text": "c"}, {"text": "aa"}] * 2}
        )
        indexed.put(("n",), "own", {"title": "a", "text": "b"}, index=["title"])

        assert self.ranked(indexed) == {"parts": 1.0, "own": 1.0, "b": 0.0}

    def test_vectors_of_another_length_are_refused(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        index = {"embed": count_letters, "dims": 4}
        store = self.make_store(tmp_path, clock=clock, index=index)

        with pytest.raises(ConfigurationError, match="dims=4"):
            store.put(("n",), "k", {"text": "a"})
        assert store.list_namespaces() == []


def count_letters(texts: list[str]) -> list[list[float]]:
    """Return an embedding that can be worked out by hand: how many a, b and c."""
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]
