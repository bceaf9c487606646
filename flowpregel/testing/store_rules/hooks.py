"""What a subclass of the store contract gives, and what its rules use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.store.base import BaseStore


class Clock:
    """A clock that stands until it is moved; it gives seconds."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def move(self, *, minutes: float = 0.0, seconds: float = 0.0) -> None:
        """Let time pass."""
        self.now += minutes * 60 + seconds


class Hooks:
    """What a subclass gives, and the fixtures that all rules use."""

    def make_store(self, folder: Path, **options: Any) -> BaseStore:
        """Return a new, empty store; *options* are ``clock``, ``ttl`` and ``index``."""
        raise NotImplementedError(f"{type(self).__name__} has to give make_store(folder)")

    def reopen(self, store: BaseStore, folder: Path, **options: Any) -> BaseStore:
        """Return a store that has what *store* has, from disk if it has one."""
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
