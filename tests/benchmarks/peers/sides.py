"""Short ways to name the sides of a workload."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.model import Side


def ours(work: str, /, **options: Any) -> Side:
    """Return a side of ours; *work* is in ``peers.ours`` unless it says where."""
    module = work if ":" in work else f"peers.ours:{work}"
    return Side(maker=module, options=options)


def langgraph(work: str, /, **options: Any) -> Side:
    """Return LangGraph, on SQLite if *options* ask for a durability."""
    kept = options.get("kept") not in (None, "memory") or work == "appended"
    needs = ("langgraph", "langgraph.checkpoint.sqlite") if kept else ("langgraph",)
    return Side(maker=f"peers.langgraph:{work}", options=options, needs=needs)


def peer(name: str, work: str, note: str = "", /, **options: Any) -> Side:
    """Return another peer, by the name of its module here."""
    module = {"dask": "distributed", "temporal": "temporalio"}.get(name, name)
    return Side(
        maker=f"peers.{name}:{work}",
        options=options,
        needs=(module,),
        program="temporal" if name == "temporal" else "",
        note=note,
    )


def limit(work: str, /, **options: Any) -> Side:
    """Return what the machine can do at best: it needs nothing that we do not need
    ourselves.
    """
    return Side(maker=f"peers.{work}", options=options)
