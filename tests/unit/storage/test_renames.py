"""The new names of classes, which a store keeps in a record."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from flowpregel.checkpoint.durable import Tables
from flowpregel.storage import Store, ValueCodec
from flowpregel.storage.in_memory import MemoryStore
from flowpregel.storage.renames import RENAMED, with_rename
from flowpregel.store.durable import ItemStore


class Engine(MemoryStore):
    """An engine of another package, which knows nothing of renames."""

    def __init__(self) -> None:
        super().__init__(ValueCodec(None))


class Page:
    """A class that had another name when it was recorded."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The bytes of a `Page` that was recorded under the name ``earlier.C``."""
    earlier = ModuleType("earlier")
    earlier.C = type("C", (), {"__module__": "earlier"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "earlier", earlier)
    data = ValueCodec(None).encode(earlier.C(), "a value")
    monkeypatch.delitem(sys.modules, "earlier")
    return data


def rename_in(store: Store) -> None:
    """Record in *store* that ``earlier.C`` is now `Page`."""
    record = with_rename({}, "earlier.C", f"{Page.__module__}.Page")
    meta = store.table(b"meta")
    store.write(lambda transaction: meta.put(transaction, RENAMED, record))


def test_the_tables_of_a_saver_find_the_renames_in_any_store(recorded: bytes) -> None:
    """The author of an engine need not know that classes can be renamed."""
    engine = Engine()
    rename_in(engine)

    tables = Tables(engine)

    assert isinstance(tables.codec.decode(recorded, "a value"), Page)


def test_a_long_term_store_finds_the_renames_in_any_store(recorded: bytes) -> None:
    """A store of items is opened on its own, without a saver."""
    engine = Engine()
    rename_in(engine)

    class Items(ItemStore):
        """A long-term store on the engine."""

        def _open(self, path: Any, options: Any) -> Any:
            return engine

    Items("anywhere")

    assert isinstance(engine.codec.decode(recorded, "a value"), Page)
    assert b"earlier" in recorded
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(recorded[1:])
