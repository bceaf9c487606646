"""The fixtures of the store contract, and the methods that a subclass defines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowpregel.store.base import BaseStore

NS = ("users", "ada")


class Clock:
    """A clock that returns seconds, and does not move until a test moves it."""

    def __init__(self) -> None:
        self.now: float = 1_700_000_000.0

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

        Args:
            folder: A folder for this store only.
            options: The options of the store: ``clock``, a function that returns
                seconds.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define make_store(folder)"
        )

    def reopen(self, store: BaseStore, folder: Path, **options: Any) -> BaseStore:
        """Return a store with the items of *store*, read from disk.

        The default implementation is for a store without files on disk, and returns
        *store* itself.

        Args:
            store: The open store.
            folder: The folder that `make_store` got.
            options: The options, as `make_store` takes them.
        """
        return store

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock of `store`."""
        return Clock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> Iterator[BaseStore]:
        """A new, empty store.

        Args:
            tmp_path: The folder of the test.
            clock: The clock of the test.
        """
        store = self.make_store(tmp_path, clock=clock)
        yield store
        close = getattr(store, "close", None)
        if close is not None:
            close()


def keys(items: Any) -> list[str]:
    """Return the keys of *items*."""
    return [item.key for item in items]
