"""The fixtures of the store contract: a store, its clock, and how a store is made."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowpregel.store.base import BaseStore

NS = ("users", "ada")


class Clock:
    """A clock that stands still until it is moved; it returns seconds."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def move(self, *, minutes: float) -> datetime:
        """Move the clock forward, and return the new time."""
        self.now += minutes * 60
        return datetime.fromtimestamp(self.now, UTC)


class StoreHooks:
    """The methods that a subclass defines, and the fixtures that all rules use."""

    def make_store(self, folder: Path, **options: Any) -> BaseStore:
        """Return a new, empty store.

        *options* have ``clock``, a function that returns seconds.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has to give make_store(folder)"
        )

    def reopen(self, store: BaseStore, folder: Path, **options: Any) -> BaseStore:
        """Return a store with the items of *store*, read from disk if it has one."""
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
        close = getattr(store, "close", None)
        if close is not None:
            close()


def keys(items: Any) -> list[str]:
    """Return the keys of *items*."""
    return [item.key for item in items]
