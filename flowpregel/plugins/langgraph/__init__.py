"""Adapters between savers of LangGraph and flowpregel, in both directions.

`as_saver` lets flowpregel use a saver of LangGraph. `SaverAdapter` and `LMDBSaver` let
LangGraph use a saver of flowpregel. You can import this package without LangGraph, but
`SaverAdapter` and `LMDBSaver` need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowpregel.plugins.langgraph.foreign import ForeignSaver, as_saver

if TYPE_CHECKING:
    from flowpregel.plugins.langgraph.saver import LMDBSaver, SaverAdapter

__all__ = ["ForeignSaver", "LMDBSaver", "SaverAdapter", "as_saver"]


def __getattr__(name: str) -> Any:
    if name in ("LMDBSaver", "SaverAdapter"):
        # The module is imported on first use, because the import of LangGraph takes
        # long.
        from flowpregel.plugins.langgraph import saver  # noqa: PLC0415

        return getattr(saver, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
