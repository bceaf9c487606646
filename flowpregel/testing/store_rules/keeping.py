"""Rules of `get`, `put`, `delete`, `batch`, and of time."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import (
    ConfigurationError,
    InvalidNamespaceError,
    ValueEncodingError,
)
from flowpregel.store.base import BaseStore, GetOp, ListNamespacesOp, PutOp, SearchOp
from flowpregel.testing.store_rules.hooks import Clock, Hooks, keys

NS = ("users", "ada")


class KeepingRules(Hooks):
    """What is put can be read, as it was."""

    def value(self, store: BaseStore, key: str = "k") -> Any:
        """Return the value under a key of `NS`, or None."""
        item = store.get(NS, key)
        return None if item is None else item.value

    def test_nothing_is_under_an_unknown_key(self, store: BaseStore) -> None:
        assert store.get(NS, "k") is None
        store.put(NS, "k", {})
        assert store.get(NS, "other") is None
        assert store.get(("users",), "k") is None
        assert store.get((*NS, "more"), "k") is None

    def test_an_item_knows_where_it_is_and_since_when(
        self, store: BaseStore, clock: Clock, tmp_path: Path
    ) -> None:
        now = datetime.fromtimestamp(clock.now, UTC)
        store.put(NS, "k", {"a": [1, (2, {"b": None})]})
        store = self.reopen(store, tmp_path, clock=clock)

        item = store.get(NS, "k")

        assert item is not None
        assert item.value == {"a": [1, (2, {"b": None})]}
        assert (item.namespace, item.key) == (NS, "k")
        assert (item.created_at, item.updated_at) == (now, now)
        assert item.dict()["created_at"] == now.isoformat()

    def test_a_later_put_replaces_the_value_and_keeps_when_it_began(
        self, store: BaseStore, clock: Clock
    ) -> None:
        began = datetime.fromtimestamp(clock.now, UTC)
        store.put(NS, "k", {"a": 1})
        clock.move(minutes=5)
        store.put(NS, "k", {"b": 2})

        item = store.get(NS, "k")

        assert item is not None
        assert item.value == {"b": 2}
        assert item.created_at == began
        assert item.updated_at == datetime.fromtimestamp(clock.now, UTC)

    def test_a_deleted_item_is_gone_and_begins_anew(self, store: BaseStore, clock: Clock) -> None:
        store.put(NS, "k", {"a": 1})
        store.delete(NS, "k")
        store.delete(NS, "never there")
        assert store.get(NS, "k") is None
        assert store.list_namespaces() == []
        clock.move(minutes=1)
        store.put(NS, "k", {"a": 2})

        item = store.get(NS, "k")

        assert item is not None
        assert item.created_at == datetime.fromtimestamp(clock.now, UTC)

    def test_a_later_change_of_an_object_changes_nothing_kept(self, store: BaseStore) -> None:
        value = {"a": [1]}
        store.put(NS, "k", value)
        value["a"].append(2)
        self.value(store)["a"].append(3)
        store.search(NS)[0].value["a"].append(4)

        assert self.value(store) == {"a": [1]}

    @pytest.mark.parametrize("key", ["", "\0", "a.b", "a/b", "\ud800", "x" * 10_000, "*"])
    def test_a_key_may_be_any_text(self, store: BaseStore, key: str) -> None:
        store.put(NS, key, {"key": key})
        store.put(NS, f"{key} ", {"key": "another"})

        assert self.value(store, key) == {"key": key}
        assert set(keys(store.search(NS))) == {key, f"{key} "}

    @pytest.mark.parametrize("label", ["a|b", "a/b", " ", "ü", "*", "x" * 10_000, "\ud800"])
    def test_a_label_may_be_almost_any_text(self, store: BaseStore, label: str) -> None:
        store.put((label, "b"), "k", {"label": label})
        store.put((f"{label}b",), "k", {})

        item = store.get((label, "b"), "k")

        assert item is not None
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
            batch = await store.abatch([GetOp(NS, "k")])
            return [
                [found] == batch,
                keys(await store.asearch(("users",), filter={"a": 1})),
                await store.alist_namespaces(prefix=("users",)),
            ]

        assert asyncio.run(use()) == [True, ["k"], [NS]]


class BatchRules(Hooks):
    """Several operations at once."""

    def test_answers_come_in_the_order_of_the_operations(self, store: BaseStore) -> None:
        store.put(NS, "k", {"a": 1})

        item, put, found, namespaces = store.batch(
            [GetOp(NS, "k"), PutOp(NS, "l", {}), SearchOp(("users",)), ListNamespacesOp()]
        )

        assert item == store.get(NS, "k")
        assert put is None
        assert keys(found) == ["k"]
        assert namespaces == [NS]

    def test_what_a_batch_reads_is_what_was_there_before(self, store: BaseStore) -> None:
        store.put(NS, "k", {"a": 1})

        answers = store.batch([PutOp(NS, "k", {"a": 2}), GetOp(NS, "k"), SearchOp(NS)])
        item: Any = answers[1]
        found: Any = answers[2]

        assert item.value == {"a": 1}
        assert found[0].value == {"a": 1}
        assert store.search(NS)[0].value == {"a": 2}

    def test_of_two_puts_of_one_key_the_last_stays(self, store: BaseStore) -> None:
        store.batch([PutOp(NS, "k", {"a": 1}), PutOp(NS, "k", {"a": 2}), PutOp(NS, "l", {})])
        store.batch([PutOp(NS, "l", {"a": 3}), PutOp(NS, "l", None)])

        assert [item.value for item in store.search(NS)] == [{"a": 2}]

    def test_no_operation_is_done_when_one_cannot_be(self, store: BaseStore) -> None:
        lock = PutOp(NS, "l", {"lock": threading.Lock()})
        wrong: list[Any] = [lock, SearchOp(NS, limit=-1), GetOp(("a.b",), "k"), "no operation"]
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


class TimeRules(Hooks):
    """Items that are kept for a time."""

    def test_an_item_is_gone_when_its_time_is_over(self, store: BaseStore, clock: Clock) -> None:
        store.put(NS, "k", {}, ttl=10)
        store.put(NS, "for ever", {}, ttl=None)
        clock.move(minutes=9.9)
        assert keys(store.search(NS, refresh_ttl=False)) == ["k", "for ever"]
        clock.move(minutes=0.2)

        assert store.get(NS, "k") is None
        assert keys(store.search(NS)) == ["for ever"]

    def test_a_namespace_whose_items_are_gone_is_gone(self, store: BaseStore, clock: Clock) -> None:
        store.put(NS, "k", {}, ttl=10)
        clock.move(minutes=11)

        assert store.list_namespaces() == []

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
        assert set(keys(store.search(NS, refresh_ttl=False))) == {"again", "ended"}
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

    @pytest.mark.parametrize("ttl", [10**30, float("inf")])
    def test_a_time_may_be_longer_than_any_clock_goes(self, store: BaseStore, ttl: float) -> None:
        store.put(NS, "k", {}, ttl=ttl)

        assert keys(store.search(NS)) == ["k"]
