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

import pytest

# Before the rules are imported: their asserts are to explain themselves.
pytest.register_assert_rewrite("flowpregel.testing.saver_rules")

from flowpregel.testing.saver_rules.classic import ClassicRules, PendingWriteRules  # noqa: E402
from flowpregel.testing.saver_rules.commits import CommitRules, ValueRules  # noqa: E402
from flowpregel.testing.saver_rules.deltas import (  # noqa: E402
    DeltaForgettingRules,
    DeltaRules,
)
from flowpregel.testing.saver_rules.forgetting import ForgettingRules  # noqa: E402
from flowpregel.testing.saver_rules.leases import LeaseRules  # noqa: E402
from flowpregel.testing.saver_rules.listing import HistoryRules, ListRules  # noqa: E402
from flowpregel.testing.saver_rules.names import NameRules  # noqa: E402

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
