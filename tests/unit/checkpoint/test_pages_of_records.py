"""Records that are read page by page: each page is a round trip to a database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowpregel import entrypoint
from flowpregel.checkpoint import tables as store_tables
from flowpregel.checkpoint.lmdb import LMDBSaver


@pytest.mark.parametrize(
    ("runs", "reads"),
    [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)],
    ids=["none", "less than a page", "a full page", "more", "two full pages"],
)
def test_a_page_that_is_not_full_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, reads: int
) -> None:
    """No read finds out that nothing follows."""
    monkeypatch.setattr(store_tables, "_AT_ONCE", 2)
    with LMDBSaver(tmp_path) as saver:

        @entrypoint(checkpointer=saver)
        def double(number: int) -> int:
            return 2 * number

        for number in range(runs):
            double.run(number, id=str(number))
        tables = saver._tables  # noqa: SLF001 - the pages have no public name
        transactions: list[object] = []
        read = tables.read

        def counted_read(work: Callable[[Any], Any]) -> Any:
            transactions.append(work)
            return read(work)

        monkeypatch.setattr(tables, "read", counted_read)

        threads = [record.thread_id for record in tables.used(None)]

    assert sorted(map(str, range(runs))) == sorted(threads)
    assert reads == len(transactions)
