"""What every saver must do, as tests that anyone can run on theirs.

Subclass `SaverContract` in a test module of pytest, and say how a saver is made::

    class TestMySaver(SaverContract):
        def make_saver(self, folder):
            return MySaver(folder / "store")

        def reopen(self, saver, folder):   # only for a saver that keeps a file
            saver.close()
            return MySaver(folder / "store")
"""

from __future__ import annotations

from flowpregel.testing.saver_rules.classic import ClassicRules, PendingWriteRules
from flowpregel.testing.saver_rules.commits import CommitRules, ValueRules
from flowpregel.testing.saver_rules.deltas import (
    DeltaForgettingRules,
    DeltaRules,
)
from flowpregel.testing.saver_rules.forgetting import ForgettingRules
from flowpregel.testing.saver_rules.leases import LeaseRules
from flowpregel.testing.saver_rules.listing import HistoryRules, ListRules
from flowpregel.testing.saver_rules.names import NameRules

__all__ = ["SaverContract"]


class SaverContract(
    ClassicRules,
    PendingWriteRules,
    ListRules,
    HistoryRules,
    CommitRules,
    ValueRules,
    DeltaRules,
    DeltaForgettingRules,
    ForgettingRules,
    LeaseRules,
    NameRules,
):
    """Every rule of the contract of a `TransactionalSaver`.

    A subclass gives `make_saver`, and `reopen` if the saver has something on disk.
    """
