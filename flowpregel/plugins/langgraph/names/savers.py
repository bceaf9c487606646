"""`InMemorySaver` with the options of LangGraph's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowpregel.checkpoint.memory import InMemorySaver

__all__ = ["UnserializedSaver"]


class UnserializedSaver(InMemorySaver):
    """A saver in memory that takes the options of LangGraph's saver in memory.

    Args:
        serde: Not used, because values in memory are copied, not serialized.
        factory: Not used.
    """

    def __init__(
        self, *, serde: Any = None, factory: Callable[..., Any] | None = None
    ) -> None:
        super().__init__()
        self.serde = serde
