"""What channels hold, by the names that people give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowpregel._core.records import TASKS, Saved

_ENGINES = ("branch:to:", "join:", TASKS)
"""What the names of the engine's own channels begin with."""
_NAMES = {
    "__start__": "input",
    "__end__": "result",
    "__previous__": "previous",
    "__root__": "state",
}
"""What people call the channels of an entrypoint, and of a graph without named ones."""


def values_of(saved: Saved, *, internals: bool = False) -> dict[str, Any]:
    """Return what the channels hold, by the names that `named` gives."""
    # Only the flow knows how to fold deltas.
    deltas = {
        name: {"seed": history.seed, "deltas": (*history.writes,)}
        for name, history in saved.deltas.items()
    }
    return named({**saved.checkpoint.values, **deltas}, internals=internals)


def named(channels: Mapping[str, Any], *, internals: bool = False) -> dict[str, Any]:
    """Return channels in order, by the names that people give them.

    Args:
        channels: What is known of each, by its name.
        internals: With the engine's own, and under the names that it uses.
    """
    found = dict(sorted(channels.items()))
    if internals:
        return found
    kept = {k: v for k, v in found.items() if not k.startswith(_ENGINES)}
    return {k if _NAMES.get(k) in kept else _NAMES.get(k, k): v for k, v in kept.items()}
