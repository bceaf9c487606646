"""LangGraph's savers in flowpregel (`as_saver`), and ours in LangGraph (`LMDBSaver`, `.saver`).

Importing this package needs no LangGraph; using `LMDBSaver` or the module `saver` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowpregel.checkpoint.foreign import ForeignSaver, as_saver

if TYPE_CHECKING:
    from flowpregel.integrations.langgraph.lmdb import LMDBSaver

__all__ = ["ForeignSaver", "LMDBSaver", "as_saver"]


def __getattr__(name: str) -> Any:
    if name == "LMDBSaver":
        from flowpregel.integrations.langgraph.lmdb import LMDBSaver  # noqa: PLC0415 - slow import

        return LMDBSaver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
