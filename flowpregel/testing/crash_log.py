"""Reads the log that killed runs of a workflow leave, and what they kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

EFFECT = "effect"
_KEPT = ("keeper.commit.after", "writer.commit.after")
_WRITES = ("store.commit.before", "store.commit.after")
_AROUND = 40


@dataclass(frozen=True, slots=True)
class Point:
    """The *n*-th pass of a fault point in one process."""

    name: str
    n: int

    def __str__(self) -> str:
        return f"{self.name}:{self.n}"


def points(lines: Sequence[Sequence[str]]) -> Iterator[Point]:
    """Yield each point that was passed, once, in the order of the first pass."""
    seen = dict.fromkeys(Point(line[0], int(line[2])) for line in lines if line[0] != EFFECT)
    yield from seen


def is_at_write(point: Point) -> bool:
    """Return whether *point* stands before or after a durable write."""
    return point.name in _WRITES


def is_at_effect(point: Point) -> bool:
    """Return whether *point* stands before or after a side effect."""
    return point.name.removeprefix("worker.") in ("effect.before", "effect.after")


def effects(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    for line in lines:
        if line[0] == EFFECT:
            yield line[3].partition(" ")[2]


def run_again(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield what was done by a task after the engine was told that it is committed."""
    kept: set[str] = set()
    for name, _, _, about in lines:
        if name in _KEPT:
            kept.update(about.split())
        elif name.removeprefix("worker.") == "task.before" and about in kept:
            yield f"task {about} ran again after its result was committed"
        elif name == EFFECT and about.partition(" ")[0] in kept:
            yield f"the effect {about.partition(' ')[2]!r} was made again by a committed task"


def differences(
    expected: Sequence[tuple[str, ...]], found: Sequence[tuple[str, ...]]
) -> Iterator[str]:
    """Yield the first line in which two histories differ."""
    for old, new in zip(expected, found, strict=False):
        for before, after in zip(old, new, strict=True):
            if before != after:
                has, had = _around_difference(after, before)
                place = f"checkpoint {old[3]} of thread {old[1]!r}, namespace {old[2]!r}"
                yield f"{place}, has {has}, not {had}"
                return
    if len(expected) != len(found):
        yield f"the history has {len(found)} checkpoints, not {len(expected)}"


def _around_difference(one: str, other: str) -> tuple[str, str]:
    """Return what two texts have where they begin to differ."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
    start, end = max(0, at - _AROUND), at + 2 * _AROUND
    return f"...{one[start:end]}...", f"...{other[start:end]}..."
