"""Counts what a run's events tell: pure, so that any view can show it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_WINDOW = 200


@dataclass(slots=True)
class Counts:
    """The tasks of one name."""

    running: int = 0
    """Or waiting for a worker: a run does not know which."""
    done: int = 0
    failed: int = 0
    waiting: int = 0

    def text(self) -> str:
        """Return them in words, leaving out what is none."""
        rest = [(self.running, "in flight"), (self.failed, "failed"), (self.waiting, "waiting")]
        return ", ".join([f"{self.done} done", *(f"{n} {word}" for n, word in rest if n)])


@dataclass(slots=True)
class Tally:
    """What a run has done so far, and how fast.

    Args:
        started: When it started, in seconds of any clock.
    """

    started: float
    by_name: dict[str, Counts] = field(default_factory=dict)
    step: int = 0
    steps: int = 0
    """Supersteps that ended."""
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What tasks that run have said last of how far they are, by their ids."""
    _running: dict[str, str] = field(default_factory=dict)
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def note(self, event: Mapping[str, Any], now: float) -> None:
        """Count an event of stream mode ``debug`` that came at *now*."""
        payload = event["payload"]
        match event["type"]:
            case "task":
                self.step = event["step"]
                self._start(payload)
            case "task_result":
                self._end(payload, now)
            case "checkpoint" if payload["metadata"].get("source") == "loop":
                self.steps += 1

    def note_report(self, report: Mapping[str, Any]) -> None:
        """Keep what a task says of how far it is: an item of stream mode ``progress``."""
        self.reports[report["id"]] = report

    def reports_of(self, name: str) -> list[Mapping[str, Any]]:
        """Return what running tasks of that name have said last."""
        return [report for report in [*self.reports.values()] if report["name"] == name]

    def _start(self, payload: Mapping[str, Any]) -> None:
        if payload["id"] not in self._running:
            self._running[payload["id"]] = payload["name"]
            self._counts(payload["name"]).running += 1

    def _end(self, payload: Mapping[str, Any], now: float) -> None:
        counts = self._counts(payload["name"])
        self.reports.pop(payload["id"], None)
        if self._running.pop(payload["id"], None) is not None:
            counts.running -= 1
        if payload["error"] is not None:
            counts.failed += 1
        elif payload["interrupts"]:
            counts.waiting += 1
        else:
            counts.done += 1
            self._ends.append(now)

    def _counts(self, name: str) -> Counts:
        return self.by_name.setdefault(name, Counts())

    @property
    def done(self) -> int:
        """How many tasks have finished."""
        return sum(counts.done for counts in self.by_name.values())

    def rate(self, now: float) -> float:
        """Return how many tasks finish in a second, by the last ones."""
        if len(self._ends) < 2:
            return 0.0
        since = self.started if len(self._ends) < _WINDOW else self._ends[0]
        return len(self._ends) / max(now - since, 1e-6)

    def left(self, now: float) -> float | None:
        """Return the seconds that what is in flight will take at this rate, if one can tell.

        Names of which nothing has ended are left out: a body waits for the others.
        """
        rate = self.rate(now)
        counts = [*self.by_name.values()]
        open_now = sum(each.running for each in counts if each.done)
        return open_now / rate if rate and open_now else None

    def summary(self, now: float) -> str:
        """Return a line that says how far the run is."""
        rate, left = self.rate(now), self.left(now)
        speed = f", {rate:.1f}/s" if rate else ""
        if left is not None:
            speed += f", about {left:,.0f} s left"
        ended = "" if self.steps == 0 else f", {self.steps} supersteps ended"
        return f"superstep {self.step}{ended}, {self.done} tasks done{speed}"
