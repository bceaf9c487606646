"""Contract suites for your own components, and a harness that crashes workflows.

* `ChannelLaws`, `SaverContract`, `StoreContract` and `CacheContract` test a channel,
  saver, store or cache that you have written.
* `crash_everywhere` runs a workflow in separate processes, and kills it at every
  fault point that it passes.

pytest is imported only when a name that needs it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowpregel.testing.cache_contract import CacheContract
    from flowpregel.testing.channels import ChannelLaws
    from flowpregel.testing.crash import crash_everywhere
    from flowpregel.testing.saver_contract import SaverContract
    from flowpregel.testing.store_contract import StoreContract

__all__ = [
    "CacheContract",
    "ChannelLaws",
    "SaverContract",
    "StoreContract",
    "crash_everywhere",
]

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
    from importlib import import_module  # noqa: PLC0415 - only when a name is used

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
