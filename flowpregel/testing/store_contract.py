"""What every store must do, as tests that anyone can run on theirs.

Subclass `StoreContract` in a test module of pytest, and say how a store is made::

    class TestMyStore(StoreContract):
        def make_store(self, folder, **options):
            return MyStore(folder / "store", **options)
"""

from __future__ import annotations

from flowpregel.testing.store_rules.finding import (
    NamespaceRules,
    QueryRules,
    SearchRules,
)
from flowpregel.testing.store_rules.keeping import (
    BatchRules,
    KeepingRules,
    TimeRules,
)

__all__ = ["StoreContract"]


class StoreContract(KeepingRules, BatchRules, TimeRules, SearchRules, NamespaceRules, QueryRules):
    """Every rule of the contract of a `BaseStore` with ``ttl``, ``clock`` and ``index``.

    A subclass gives `make_store`, and `reopen` if the store has something on disk.
    """
