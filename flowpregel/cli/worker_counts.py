"""The workers and the pools of a run, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def pools_text(pools: Sequence[Mapping[str, Any]]) -> str:
    """Return the sizes of pools as text.

    Args:
        pools: The pools, as the activity of a run lists them.

    Example:
        >>> pools_text([{"workers": 4, "nice": 10}])
        'up to 4 workers, nice 10'
    """
    texts: list[str] = []
    for pool in pools:
        noun = "worker" if pool["workers"] == 1 else "workers"
        text = f"up to {pool['workers']} {noun}"
        if pool["nice"] is not None:
            text += f", nice {pool['nice']}"
        texts.append(text)
    return "; ".join(texts)


def worker_count_text(
    workers: Sequence[Mapping[str, Any]], pools: Sequence[Mapping[str, Any]]
) -> str:
    """Return the number of workers and their memory as text, or an empty string.

    Args:
        workers: The workers, as the activity of a run lists them.
        pools: The pools, as the activity of a run lists them.

    Example:
        >>> workers = [{"pid": 1, "memory": 50_000_000}]
        >>> worker_count_text(workers, [{"workers": 4, "nice": None}])
        '1 of 4 workers with 50 MB'
    """
    if not workers:
        return ""
    megabytes = sum(worker.get("memory", 0) for worker in workers) / 1e6
    most = sum(pool["workers"] for pool in pools)
    count = f"{len(workers)}"
    if most > len(workers):
        count += f" of {most}"
    noun = "worker" if max(most, len(workers)) == 1 else "workers"
    return f"{count} {noun} with {megabytes:,.0f} MB"
