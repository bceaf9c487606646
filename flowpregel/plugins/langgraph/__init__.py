"""LangGraph's programs and savers on flowpregel.

`install` lets flowpregel answer ``import langgraph``, for a whole program with the
packages that it uses. `as_saver` lets flowpregel use a saver of LangGraph, and
`ForeignCache` a cache.
`SaverAdapter` and `LMDBSaver` let LangGraph use a saver of flowpregel. You can import
this package without LangGraph, but `SaverAdapter` and `LMDBSaver` need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flowpregel.plugins.langgraph.caches import ForeignCache
    from flowpregel.plugins.langgraph.foreign import ForeignSaver, as_saver
    from flowpregel.plugins.langgraph.hook import install, uninstall
    from flowpregel.plugins.langgraph.saver import LMDBSaver, SaverAdapter

__all__ = [
    "ForeignCache",
    "ForeignSaver",
    "LMDBSaver",
    "SaverAdapter",
    "as_saver",
    "install",
    "uninstall",
]

# Each name is imported on first use, because importing LangGraph takes long, and a
# worker process that installs the hook needs no savers.
_HOMES: Final = {
    "ForeignCache": "caches",
    "ForeignSaver": "foreign",
    "LMDBSaver": "saver",
    "SaverAdapter": "saver",
    "as_saver": "foreign",
    "install": "hook",
    "uninstall": "hook",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
