"""The requests of a process to commit to one store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowpregel.storage.group_commit import CommitQueue


class Unshown:
    """Work that nobody may make a text of: its values may be large."""

    def __call__(self, transaction: list[int]) -> int:
        """Add a number."""
        transaction.append(1)
        return len(transaction)

    def __repr__(self) -> str:
        raise AssertionError("nobody reads this text")


def test_a_commit_makes_no_text_of_its_values() -> None:
    committed: list[int] = []

    def attempt(works: Sequence[Any]) -> list[int]:
        return [work(committed) for work in works]

    @contextmanager
    def locked(_timeout: float) -> Iterator[None]:
        yield

    queue = CommitQueue("store", attempt, locked)

    assert [1, 2] == [queue.write(Unshown(), 1.0) for _ in range(2)]
