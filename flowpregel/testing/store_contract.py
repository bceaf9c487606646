"""What every store must do, as tests that anyone can run on theirs.

Subclass `StoreContract` in a test module of pytest, and define how a store is made::

    class TestMyStore(StoreContract):
        def make_store(self, folder, **options):
            return MyStore(folder / "store", **options)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError, InvalidNamespaceError, ValueEncodingError
from flowpregel.store.base import BaseStore, GetOp, ListNamespacesOp, Op, PutOp, SearchOp

__all__ = ["StoreContract"]

NS = ("users", "ada")


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
        """Return a new, empty store; *options* have ``clock``, which gives seconds."""
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
        getattr(store, "close", lambda: None)()


class KeepingRules(StoreHooks):
    """What is put can be read, as it was."""

    def test_an_item_is_under_its_own_namespace_and_key_alone(self, store: BaseStore) -> None:
        assert store.get(NS, "k") is None
        store.put(NS, "k", {})

        assert store.get(NS, "k") is not None
        assert store.get(NS, "other") is store.get(("users",), "k") is None
        assert store.get((*NS, "more"), "k") is None

    def test_an_item_has_its_value_and_when_it_was_put_first_and_last(
        self, store: BaseStore, clock: Clock, tmp_path: Path
    ) -> None:
        began = clock.move(minutes=0)
        store.put(NS, "k", {"a": 1})
        now = clock.move(minutes=5)
        store.put(NS, "k", {"a": [1, (2, {"b": None})]})
        store = self.reopen(store, tmp_path, clock=clock)

        item: Any = store.get(NS, "k")

        assert item.value == {"a": [1, (2, {"b": None})]}
        assert (item.namespace, item.key) == (NS, "k")
        assert (item.created_at, item.updated_at) == (began, now)
        assert item.dict()["created_at"] == began.isoformat()

    def test_a_deleted_item_is_gone_and_begins_anew(self, store: BaseStore, clock: Clock) -> None:
        store.put(NS, "k", {"a": 1})
        store.delete(NS, "k")
        store.delete(NS, "never there")
        assert store.get(NS, "k") is None
        assert store.list_namespaces() == []
        now = clock.move(minutes=1)
        store.put(NS, "k", {"a": 2})

        item: Any = store.get(NS, "k")

        assert item.created_at == now

    def test_a_later_change_of_an_object_changes_nothing_kept(self, store: BaseStore) -> None:
        value = {"a": [1]}
        store.put(NS, "k", value)
        value["a"].append(2)
        item: Any = store.get(NS, "k")
        item.value["a"].append(3)
        store.search(NS)[0].value["a"].append(4)

        assert store.search(NS)[0].value == {"a": [1]}

    @pytest.mark.parametrize("key", ["", "\0", "a.b", "a/b", "\ud800", "x" * 10_000, "*"])
    def test_a_key_may_be_any_text(self, store: BaseStore, key: str) -> None:
        store.put(NS, key, {"key": key})
        store.put(NS, f"{key} ", {"key": "another"})

        item: Any = store.get(NS, key)

        assert item.value == {"key": key}
        assert {*keys(store.search(NS))} == {key, f"{key} "}

    @pytest.mark.parametrize("label", ["a|b", "a/b", " ", "ü", "*", "x" * 10_000, "\ud800"])
    def test_a_label_may_be_almost_any_text(self, store: BaseStore, label: str) -> None:
        store.put((label, "b"), "k", {"label": label})
        store.put((f"{label}b",), "k", {})

        item: Any = store.get((label, "b"), "k")

        assert item.value == {"label": label}
        assert (label, "b") in store.list_namespaces()

    @pytest.mark.parametrize(
        "namespace", [(), ("",), ("a", ""), ("a.b",), ("a\0",), (1,), ("langgraph", "a"), "a"]
    )
    def test_an_impossible_namespace_is_refused(self, store: BaseStore, namespace: Any) -> None:
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "k", {})
        with pytest.raises(InvalidNamespaceError):
            store.batch([PutOp(namespace, "k", {})])
        assert store.list_namespaces() == []

    @pytest.mark.parametrize("value", [None, 1, "text", [1]])
    def test_a_value_that_is_no_dict_is_refused(self, store: BaseStore, value: Any) -> None:
        with pytest.raises(ConfigurationError, match="my key"):
            store.put(NS, "my key", value)

    def test_a_value_that_cannot_be_kept_is_named(self, store: BaseStore) -> None:
        with pytest.raises(ValueEncodingError, match="my key"):
            store.put(NS, "my key", {"lock": threading.Lock()})
        assert store.get(NS, "my key") is None

    def test_the_async_forms_do_the_same(self, store: BaseStore) -> None:
        async def use() -> list[Any]:
            await store.aput(NS, "k", {"a": 1})
            await store.aput(NS, "gone", {"a": 1})
            await store.adelete(NS, "gone")
            found = await store.aget(NS, "k")
            return [
                [found] == await store.abatch([GetOp(NS, "k")]),
                keys(await store.asearch(("users",), filter={"a": 1})),
                await store.alist_namespaces(prefix=("users",)),
            ]

        assert asyncio.run(use()) == [True, ["k"], [NS]]


class BatchRules(StoreHooks):
    """Several operations at once."""

    def test_what_a_batch_reads_is_what_was_there_before(self, store: BaseStore) -> None:
        store.put(NS, "k", {"a": 1})
        before = store.get(NS, "k")
        ops: list[Op] = [
            PutOp(NS, "k", {"a": 2}),
            GetOp(NS, "k"),
            SearchOp(("users",)),
            ListNamespacesOp(),
        ]

        put, item, found, namespaces = store.batch(ops)

        assert (put, item, namespaces) == (None, before, [NS])
        assert [each.value for each in found] == [{"a": 1}]  # type: ignore[union-attr]
        assert store.search(NS)[0].value == {"a": 2}

    def test_of_two_puts_of_one_key_the_last_stays(self, store: BaseStore) -> None:
        store.batch([PutOp(NS, "k", {"a": 1}), PutOp(NS, "k", {"a": 2}), PutOp(NS, "l", {})])
        store.batch([PutOp(NS, "l", {"a": 3}), PutOp(NS, "l", None)])

        assert [item.value for item in store.search(NS)] == [{"a": 2}]

    def test_no_operation_is_done_when_one_cannot_be(self, store: BaseStore) -> None:
        lock = PutOp(NS, "l", {"lock": threading.Lock()})
        like = SearchOp(NS, filter={"a": {"$like": "b"}})
        wrong: list[Any] = [lock, like, SearchOp(NS, limit=-1), GetOp(("a.b",), "k"), "no op"]
        for bad in wrong:
            with pytest.raises((ConfigurationError, ValueEncodingError)):
                store.batch([PutOp(NS, "k", {}), bad])

        assert store.list_namespaces() == []

    def test_many_os_threads_put_at_once(self, store: BaseStore) -> None:
        def run(name: str) -> None:
            for number in range(20):
                store.put(("n", name), str(number), {"number": number})

        with ThreadPoolExecutor(6) as threads:
            assert len([*threads.map(run, (f"t{n}" for n in range(6)))]) == 6

        assert len(store.search(("n",), limit=1_000)) == 120


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


class StoreContract(KeepingRules, BatchRules, SearchRules):
    """Every rule of the contract of a `BaseStore` with ``clock``.

    A subclass gives `make_store`, and `reopen` if the store has something on disk.
    """


def keys(items: Any) -> list[str]:
    """Return the keys of *items*."""
    return [item.key for item in items]
