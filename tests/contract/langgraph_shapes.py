"""Short ways to write configs and checkpoints in LangGraph's shapes."""

from __future__ import annotations

from typing import Any

from flowpregel.testing.saver_hooks import nth_id


def config(
    thread_id: str, number: int | None = None, namespace: str | None = ""
) -> dict[str, Any]:
    """Return a config in LangGraph's shape; no namespace for None."""
    configurable: dict[str, Any] = {"thread_id": thread_id}
    if namespace is not None:
        configurable["checkpoint_ns"] = namespace
    if number is not None:
        configurable["checkpoint_id"] = nth_id(number)
    return {"configurable": configurable}


def classic(
    number: int, values: dict[str, Any], versions: dict[str, Any]
) -> dict[str, Any]:
    """Return a checkpoint in LangGraph's shape."""
    return {
        "v": 4,
        "id": nth_id(number),
        "ts": "2026-01-02T03:04:05.678901+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions),
        "versions_seen": {"node": dict(versions)},
        "updated_channels": None,
    }
