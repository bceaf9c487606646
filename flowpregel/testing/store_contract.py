"""What every store must do, as tests that anyone can run on theirs.

Subclass `StoreContract` in a test module of pytest, and define how a store is made::

    class TestMyStore(StoreContract):
        def make_store(self, folder, **options):
            return MyStore(folder / "store", **options)
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError, InvalidNamespaceError, ValueEncodingError
from flowpregel.store.base import BaseStore, GetOp, ListNamespacesOp, Op, PutOp, SearchOp
from flowpregel.testing.store_search import Clock, QueryRules, SearchRules, StoreHooks, keys

__all__ = ["StoreContract"]

NS = ("users", "ada")


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

        threads = [threading.Thread(target=run, args=(f"t{n}",)) for n in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)

        assert len(store.search(("n",), limit=1_000)) == 120


class TimeRules(StoreHooks):
    """Items that are kept for a time."""

    def test_an_item_is_gone_when_its_time_is_over(self, store: BaseStore, clock: Clock) -> None:
        store.put(NS, "k", {}, ttl=10)
        store.put(("other",), "k", {}, ttl=10)
        for name, ttl in (("for ever", None), ("long", 10**30), ("endless", float("inf"))):
            store.put(NS, name, {}, ttl=ttl)
        clock.move(minutes=9.9)
        assert keys(store.search(NS, refresh_ttl=False)) == ["k", "for ever", "long", "endless"]
        clock.move(minutes=0.2)

        assert store.get(NS, "k") is None
        assert keys(store.search(())) == ["for ever", "long", "endless"]
        assert store.list_namespaces() == [NS]

    @pytest.mark.parametrize(("refresh", "left"), [(None, ["k"]), (True, ["k"]), (False, [])])
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

    def test_a_put_starts_the_time_again_or_ends_it(self, store: BaseStore, clock: Clock) -> None:
        store.put(NS, "again", {}, ttl=10)
        store.put(NS, "ended", {}, ttl=10)
        clock.move(minutes=6)
        store.put(NS, "again", {}, ttl=10)
        store.put(NS, "ended", {})
        clock.move(minutes=6)
        assert {*keys(store.search(NS, refresh_ttl=False))} == {"again", "ended"}
        clock.move(minutes=60)

        assert keys(store.search(NS)) == ["ended"]

    def test_a_store_may_have_a_time_for_all_items(self, tmp_path: Path, clock: Clock) -> None:
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
    def test_a_time_that_is_no_time_is_refused(self, store: BaseStore, ttl: Any) -> None:
        with pytest.raises(ConfigurationError, match="ttl"):
            store.put(NS, "k", {}, ttl=ttl)


class StoreContract(KeepingRules, BatchRules, TimeRules, SearchRules, QueryRules):
    """Every rule of the contract of a `BaseStore` with ``ttl``, ``index`` and ``clock``.

    A subclass gives `make_store`, and `reopen` if the store has something on disk.
    """
