"""The process whose disk the tests here watch: one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.disk.nursery import Nursery


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Return what runs functions under the library that watches the disk."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as started:
        yield started


@pytest.fixture(autouse=True)
def _store_key(store_key: None) -> None:
    """All tests here have the tests' own key."""
