"""A thread's history without folding the same deltas for each of its states."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from flowpregel._core.copies import IMMUTABLE, Replayed
from flowpregel._core.program import Program
from flowpregel._core.records import DeltaHistory, Saved
from flowpregel.channels import DeltaChannel

_STEP: Final = 64
"""Supersteps between two values that states start from."""
_FEWEST: Final = 4 * _STEP
"""Folding fewer deltas costs less than to make a value and copy it."""


def with_near_seeds(program: Program, history: Iterable[Saved]) -> Iterator[Saved]:
    """Yield *history*, newest first, as if there were snapshots of its DeltaChannels.

    The deltas that a state has in common with older ones are folded once, and
    each state gets a copy of the result to go on from: what is done to it, no
    other state sees.
    """
    seeds: dict[str, _Seed | None] = {}
    for saved in history:
        deltas = {
            name: _nearer(program, name, found, seeds) for name, found in saved.deltas.items()
        }
        yield replace(saved, deltas=deltas) if deltas else saved


@dataclass(frozen=True, slots=True)
class _Seed:
    """The value that a channel had after some of its supersteps, to be copied."""

    writes: Replayed
    """Those that are in it."""
    copy: Callable[[], Any]
    """Returns the value, in objects that no other copy has but those that cannot change."""


class _Unsafe(Exception):
    """A copy of the value would not be exact."""


class _Pickler(pickle.Pickler):
    """Refuses what a plain pickle is not exact for."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            raise _Unsafe
        return NotImplemented


def _nearer(
    program: Program, name: str, found: DeltaHistory, seeds: dict[str, _Seed | None]
) -> DeltaHistory:
    """Return *found*, or what leads to the same value from a nearer seed.

    Args:
        program: Declares the channel.
        name: The channel's.
        found: What is kept of it.
        seeds: By channel: what is at hand; None: its values cannot be copied.
    """
    writes, declared = found.writes, program.channels.get(name)
    if not isinstance(writes, Replayed) or not isinstance(declared, DeltaChannel):
        return found
    seed = seeds.get(name)
    if name in seeds and seed is None:
        return found
    if seed is None or not writes.shares(seed.writes) or len(writes) < len(seed.writes):
        if len(writes) < _FEWEST:
            return found
        start = writes.until(len(writes) - _STEP)
        seed = seeds[name] = _seed(declared, name, found.seed, start)
        if seed is None:
            return found
    return DeltaHistory(seed.copy(), writes.since(len(seed.writes)))


def _seed(
    declared: DeltaChannel[Any, Any], name: str, start: Any, writes: Replayed
) -> _Seed | None:
    """Return what *start* and *writes* come to, or None if that cannot be copied exactly."""
    try:
        channel = declared.from_checkpoint(start)
        channel.key = name
        channel.replay(writes)
        return _Seed(writes, _copier(channel.value))
    except Exception:  # noqa: BLE001 - a user's reducer or class; each state says so for itself
        return None


def _copier(value: Any) -> Callable[[], Any]:
    """Return what makes exact copies of *value*."""
    if type(value) is list and IMMUTABLE.issuperset(map(type, value)):
        return value.copy
    data = io.BytesIO()
    _Pickler(data, 5).dump(value)
    return partial(pickle.loads, data.getvalue())
