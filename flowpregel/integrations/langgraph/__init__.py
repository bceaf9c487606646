"""LangGraph's savers in flowpregel (`foreign`), and ours in LangGraph (`saver`, `lmdb`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowpregel.integrations.langgraph.lmdb import LMDBSaver

__all__ = ["LMDBSaver"]


def __getattr__(name: str) -> Any:
    if name == "LMDBSaver":
        # LangGraph takes long to import, and `foreign` does without it.
        from flowpregel.integrations.langgraph.lmdb import LMDBSaver  # noqa: PLC0415 - see above

        return LMDBSaver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
