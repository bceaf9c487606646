"""What two runs of a program must have in common, whatever happened to them on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowpregel._core.program import Program
from flowpregel._core.records import Address, Saved
from flowpregel._core.state import INTERRUPT_SEEN, load_state
from flowpregel.channels.base import BaseChannel
from flowpregel.checkpoint.base import TransactionalSaver


def history_of(program: Program, saver: TransactionalSaver, thread_id: str = "t") -> list[Any]:
    """Return what every checkpoint of a thread holds, newest first, without ids and times."""
    return [shape_of(program, saved) for saved in saver.history(Address(thread_id))]


def shape_of(program: Program, saved: Saved) -> dict[str, Any]:
    """Return what one checkpoint holds, without ids and times: versions by rank alone."""
    checkpoint = saved.checkpoint
    versions = checkpoint.channel_versions
    ranks = {version: rank for rank, version in enumerate(sorted(set(versions.values())))}
    return {
        "step": checkpoint.step,
        "source": checkpoint.source,
        "values": values_of(load_state(program, saved).channels),
        "changed": sorted(checkpoint.changed),
        "updated": checkpoint.updated_channels,
        "versions": {name: ranks[version] for name, version in versions.items()},
        "seen": {
            node: {
                name: (version > versions[name]) - (version < versions[name])
                for name, version in seen.items()
            }
            for node, seen in checkpoint.versions_seen.items()
            if node != INTERRUPT_SEEN
        },
    }


def values_of(channels: Mapping[str, BaseChannel[Any, Any]]) -> dict[str, Any]:
    """Return the values of those of *channels* that hold one."""
    return {name: item.get() for name, item in channels.items() if item.is_available()}
