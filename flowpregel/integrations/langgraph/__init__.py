"""LangGraph's savers in flowpregel (`as_saver`), ours in LangGraph (`SaverAdapter`,
`LMDBSaver`).

Importing this package needs no LangGraph; using `SaverAdapter` or `LMDBSaver` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowpregel.integrations.langgraph.foreign import ForeignSaver, as_saver

if TYPE_CHECKING:
    from flowpregel.integrations.langgraph.saver import LMDBSaver, SaverAdapter

__all__ = ["ForeignSaver", "LMDBSaver", "SaverAdapter", "as_saver"]


def __getattr__(name: str) -> Any:
    if name in ("LMDBSaver", "SaverAdapter"):
        from flowpregel.integrations.langgraph import saver  # noqa: PLC0415 - slow import

        return getattr(saver, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
