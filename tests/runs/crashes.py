"""What makes workflows crash, once."""

from __future__ import annotations

from typing import Any

from flowpregel.policies import RetryPolicy
from tests.runs.notes import Notes

AT_ONCE = RetryPolicy(initial_interval=0, jitter=False, retry_on=Exception)
"""Tries anything again without waiting."""


class Once:
    """Raises the first time it is called with a value, in whichever process that is."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.seen = Notes()

    def __call__(self, value: Any = None) -> Any:
        if value not in self.seen:
            self.seen.append(value)
            raise self.error
        return value
