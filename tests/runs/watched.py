"""What the tests of watching have in common: looking until something is seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.watching.reader import StoreReader

Found = TypeVar("Found")
_LONG = 60.0
"""Seconds after which a test gives up: no test is about how long anything takes."""


def until(look: Callable[[], Found | None]) -> Found:
    """Return what *look* finds, as soon as it finds something."""
    end = time.monotonic() + _LONG
    while not (found := look()):
        assert time.monotonic() < end, "it was never seen"
        time.sleep(0.01)
    return found


@contextmanager
def reading(saver: LMDBSaver) -> Iterator[StoreReader]:
    reader = StoreReader(saver)
    try:
        yield reader
    finally:
        reader.close()
