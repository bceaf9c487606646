"""The contract of a store, as tests that you can run on your own store.

Subclass `StoreContract` in a pytest module, and define how to create a store::

    class TestMyStore(StoreContract):
        def make_store(self, folder, **options):
            return MyStore(folder / "store", **options)
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import (
    ConfigurationError,
    InvalidNamespaceError,
    ValueEncodingError,
)
from flowpregel.store.base import (
    BaseStore,
    GetOp,
    ListNamespacesOp,
    Op,
    PutOp,
    SearchOp,
)
from flowpregel.testing.store_hooks import NS, Clock, StoreHooks, keys
from flowpregel.testing.store_search import SearchRules

__all__ = ["StoreContract"]

KEYS = (
    "",
    "\0",
    "a.b",
    "a/b",
    "\ud800",
    "x" * 10_000,
    "*",
)

LABELS = (
    "a|b",
    "a/b",
    " ",
    "ü",
    "*",
    "x" * 10_000,
    "\ud800",
)

IMPOSSIBLE_NAMESPACES: tuple[Any, ...] = (
    (),
    ("",),
    ("a", ""),
    ("a.b",),
    ("a\0",),
    (1,),
    ("langgraph", "a"),
    "a",
)


class KeepingRules(StoreHooks):
    """Rules for items: an item that was put is read back unchanged."""

    def test_an_item_is_under_its_own_namespace_and_key_alone(
        self,
        store: BaseStore,
    ) -> None:
        assert store.get(NS, "k") is None
        store.put(NS, "k", {})

        assert store.get(NS, "k") is not None
        assert store.get(NS, "other") is None
        assert store.get(("users",), "k") is None
        assert store.get((*NS, "more"), "k") is None

    def test_an_item_has_its_value_and_when_it_was_put_first_and_last(
        self,
        store: BaseStore,
        clock: Clock,
        tmp_path: Path,
    ) -> None:
        value = {"a": [1, (2, {"b": None})]}
        created_at = clock.move(minutes=0)
        store.put(NS, "k", {"a": 1})
        updated_at = clock.move(minutes=5)
        store.put(NS, "k", value)
        store = self.reopen(store, tmp_path, clock=clock)

        item: Any = store.get(NS, "k")

        assert item.value == value
        assert item.namespace == NS
        assert item.key == "k"
        assert item.created_at == created_at
        assert item.updated_at == updated_at
        assert item.dict()["created_at"] == created_at.isoformat()

    def test_a_deleted_item_is_gone_and_starts_over(
        self,
        store: BaseStore,
        clock: Clock,
    ) -> None:
        store.put(NS, "k", {"a": 1})
        store.delete(NS, "k")
        store.delete(NS, "never there")
        assert store.get(NS, "k") is None
        assert store.list_namespaces() == []
        now = clock.move(minutes=1)
        store.put(NS, "k", {"a": 2})

        item: Any = store.get(NS, "k")

        assert item.created_at == now

    def test_a_later_change_of_an_object_changes_nothing_kept(
        self,
        store: BaseStore,
    ) -> None:
        value = {"a": [1]}
        store.put(NS, "k", value)
        value["a"].append(2)
        item: Any = store.get(NS, "k")
        item.value["a"].append(3)
        first = store.search(NS)[0]
        first.value["a"].append(4)

        assert store.search(NS)[0].value == {"a": [1]}

    @pytest.mark.parametrize("key", KEYS)
    def test_a_key_may_be_any_text(self, store: BaseStore, key: str) -> None:
        other_key = f"{key} "
        store.put(NS, key, {"key": key})
        store.put(NS, other_key, {"key": "another"})

        item: Any = store.get(NS, key)

        assert item.value == {"key": key}
        assert set(keys(store.search(NS))) == {key, other_key}

    @pytest.mark.parametrize("label", LABELS)
    def test_a_label_may_be_almost_any_text(
        self,
        store: BaseStore,
        label: str,
    ) -> None:
        namespace = (label, "b")
        store.put(namespace, "k", {"label": label})
        store.put((f"{label}b",), "k", {})

        item: Any = store.get(namespace, "k")

        assert item.value == {"label": label}
        assert namespace in store.list_namespaces()

    @pytest.mark.parametrize("namespace", IMPOSSIBLE_NAMESPACES)
    def test_an_impossible_namespace_is_refused(
        self,
        store: BaseStore,
        namespace: Any,
    ) -> None:
        put = PutOp(namespace, "k", {})
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "k", {})
        with pytest.raises(InvalidNamespaceError):
            store.batch([put])
        assert store.list_namespaces() == []

    @pytest.mark.parametrize("value", [None, 1, "text", [1]])
    def test_a_value_that_is_no_dict_is_refused(
        self,
        store: BaseStore,
        value: Any,
    ) -> None:
        with pytest.raises(ConfigurationError, match="my key"):
            store.put(NS, "my key", value)

    def test_a_value_that_cannot_be_kept_is_named(self, store: BaseStore) -> None:
        value = {"lock": threading.Lock()}
        with pytest.raises(ValueEncodingError, match="my key"):
            store.put(NS, "my key", value)
        assert store.get(NS, "my key") is None

    def test_the_async_forms_do_the_same(self, store: BaseStore) -> None:
        async def use() -> None:
            await store.aput(NS, "k", {"a": 1})
            await store.aput(NS, "gone", {"a": 1})
            await store.adelete(NS, "gone")
            item = await store.aget(NS, "k")
            items = await store.abatch([GetOp(NS, "k")])
            matches = await store.asearch(("users",), filter={"a": 1})
            namespaces = await store.alist_namespaces(prefix=("users",))

            assert item is not None
            assert [item] == items
            assert keys(matches) == ["k"]
            assert namespaces == [NS]

        asyncio.run(use())


class BatchRules(StoreHooks):
    """Rules for batches: a batch performs several operations together."""

    def test_what_a_batch_reads_is_what_was_there_before(
        self,
        store: BaseStore,
    ) -> None:
        store.put(NS, "k", {"a": 1})
        before = store.get(NS, "k")
        ops: list[Op] = [
            PutOp(NS, "k", {"a": 2}),
            GetOp(NS, "k"),
            SearchOp(("users",)),
            ListNamespacesOp(),
        ]

        results: list[Any] = store.batch(ops)
        put, item, matches, namespaces = results

        assert put is None
        assert item == before
        assert namespaces == [NS]
        assert [match.value for match in matches] == [{"a": 1}]
        assert store.search(NS)[0].value == {"a": 2}

    def test_of_two_puts_of_one_key_the_last_stays(self, store: BaseStore) -> None:
        first_batch = [
            PutOp(NS, "k", {"a": 1}),
            PutOp(NS, "k", {"a": 2}),
            PutOp(NS, "l", {}),
        ]
        second_batch = [
            PutOp(NS, "l", {"a": 3}),
            PutOp(NS, "l", None),
        ]
        store.batch(first_batch)
        store.batch(second_batch)

        items = store.search(NS)

        assert [item.value for item in items] == [{"a": 2}]

    def test_no_operation_is_done_when_one_cannot_be(self, store: BaseStore) -> None:
        good = PutOp(NS, "k", {})
        bad_ops: list[Any] = [
            PutOp(NS, "l", {"lock": threading.Lock()}),
            SearchOp(NS, filter={"a": {"$like": "b"}}),
            SearchOp(NS, limit=-1),
            GetOp(("a.b",), "k"),
            "no op",
        ]
        for bad in bad_ops:
            with pytest.raises((ConfigurationError, ValueEncodingError)):
                store.batch([good, bad])

        assert store.list_namespaces() == []

    def test_many_os_threads_put_at_once(self, store: BaseStore) -> None:
        names = [f"t{number}" for number in range(6)]

        def run(name: str) -> None:
            namespace = ("n", name)
            for number in range(20):
                store.put(namespace, str(number), {"number": number})

        with ThreadPoolExecutor(6) as threads:
            results = list(threads.map(run, names))
        assert len(results) == 6

        items = store.search(("n",), limit=1_000)
        assert len(items) == 120


class StoreContract(KeepingRules, BatchRules, SearchRules):
    """All rules of the contract of a `BaseStore` that has the option ``clock``.

    A subclass defines `make_store`, and `reopen` if the store has files on disk.

    Example:
        >>> from flowpregel.store.memory import InMemoryStore
        >>> class TestMyStore(StoreContract):
        ...     def make_store(self, folder, **options):
        ...         return InMemoryStore(**options)
    """
