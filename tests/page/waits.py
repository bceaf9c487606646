"""Runs that end where they would wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flowpregel.errors import UnansweredError
from flowpregel.runtime import pauses


@contextmanager
def stopped_where_it_waits() -> Iterator[None]:
    """Let runs end where they would sleep or wait for a signal."""
    token = pauses.set(True)
    try:
        with pytest.raises(UnansweredError):
            yield
    finally:
        pauses.reset(token)
