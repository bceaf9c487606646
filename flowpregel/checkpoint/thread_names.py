"""The names of threads, from the ids that users pass."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flowpregel.errors import ConfigurationError


def thread_name(thread_id: Any) -> str:
    """Return *thread_id*, which may be a str, an integer or a UUID, as a str.

    Raises:
        ConfigurationError: *thread_id* is of another type.
    """
    if isinstance(thread_id, str):
        return thread_id
    if isinstance(thread_id, int | UUID) and not isinstance(thread_id, bool):
        return str(thread_id)
    raise ConfigurationError(f"thread_id must be text, not {thread_id!r}")


def new_thread_name(thread_id: Any) -> str:
    """Return the id of a thread that may not exist yet, as `thread_name` does.

    Raises:
        ConfigurationError: *thread_id* is empty or of another type.
    """
    if thread_id == "":
        raise ConfigurationError(
            "thread_id is empty: name the thread by any other text"
        )
    return thread_name(thread_id)
