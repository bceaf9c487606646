"""What is measured: sides that do the same work, and how much of a peer's time ours may
take.

A `Workload` is some work, and the `Side`s that do it: ours, the peers', and what the
machine could do at best. A side runs in a process of its own, so that nobody's imports,
OS threads or garbage slow another. Each `Row` reads one figure of that work and holds
it to its `Goal`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

OURS = "flowpregel"

Figures = Mapping[str, float]
"""Figures of one turn, by name."""

Work = Callable[[], float | Figures]
"""Does the work once; returns the seconds of one unit, or several figures."""

Maker = Callable[..., AbstractContextManager[Work]]
"""Makes everything ready for the work, and cleans up after it."""

Working = Iterator[Work]
"""What the generator under a `Maker` yields: the work, once."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One who does the work."""

    maker: str
    """``module:function`` below ``tests.benchmarks``, a `Maker`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the maker, as plain data."""
    needs: tuple[str, ...] = ()
    """Modules without which it is left out."""
    program: str = ""
    """A program without which it is left out."""
    note: str = ""
    """What is different about it, for the reader."""
    slow_disk: bool = False
    """Whether each flush takes a millisecond more."""
    repeats: int | None = None
    """Fewer turns than the others; None for as many."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """How much of something ours may be."""

    most: float
    """At most this many times the other's figure, or this much."""
    against: str | None = None
    """The side it is compared with; None for an absolute figure."""
    side: str = OURS
    """Which of our sides it is for."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the goals: a figure of a workload."""

    name: str
    what: str
    goals: tuple[Goal, ...]
    unit: str = "a step"
    """What one of it is: the time is that of one."""
    figure: str = "seconds"
    """Which figure; ``bytes`` and ``ratio`` are no times, ``cpu`` is CPU time of all
    processes, ``coordinator`` that of the process that has the runs.
    """


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Work that sides do in turns."""

    sides: Mapping[str, Side]
    rows: tuple[Row, ...]
    repeats: int = 5
    warm: bool = True
    """Whether a first turn of each is not counted."""


def against(**most: float) -> tuple[Goal, ...]:
    """Return goals by the peer's name: ``against(langgraph=0.33)``."""
    return tuple(Goal(against=name, most=value) for name, value in most.items())
