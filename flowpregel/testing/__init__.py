"""Tests that anyone can hold their own parts to, and crashes on purpose.

* `ChannelLaws`, `SaverContract`, `StoreContract`, `CacheContract`: what a
  channel, a saver, a store or a cache of your own must do.
* `crash_everywhere`: kills a workflow in a process of its own at each of its fault points.

Each name imports what it needs (pytest, hypothesis) when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowpregel.testing.cache_contract import CacheContract
    from flowpregel.testing.channels import ChannelLaws
    from flowpregel.testing.crash import crash_everywhere
    from flowpregel.testing.saver_contract import SaverContract
    from flowpregel.testing.store_contract import StoreContract

__all__ = ["CacheContract", "ChannelLaws", "SaverContract", "StoreContract", "crash_everywhere"]

_HOMES = {
    "CacheContract": "cache_contract",
    "ChannelLaws": "channels",
    "SaverContract": "saver_contract",
    "StoreContract": "store_contract",
    "crash_everywhere": "crash",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only when a name is asked for

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
