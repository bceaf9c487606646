"""The order in which the tasks of a body were called, as far as times show it.

::

    load  ████ ██          `train` was called first when all calls of `load` had
    split ███              ended, and before `score` was: so `train` follows on `load`
    train        ███ ██    and `split`, and `score` follows on `train`
    score                 █
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class CallInterval(NamedTuple):
    """A call, and its times in wall-clock nanoseconds."""

    box: str
    """The id of the node that made the call."""
    node: str
    """The id of the node of the task."""
    began: int
    """The time at which the call was made."""
    ended: float
    """The time at which the call ended, or infinity if it has not ended."""


@dataclass(slots=True)
class _TaskTimes:
    """The times of the calls of one task."""

    first_began: int
    last_ended: float = 0.0


def former_tasks(
    calls: Collection[CallInterval],
    targets: Collection[str],
) -> list[tuple[str, str]]:
    """Return edges that lead to each target from the tasks that ended before the target
    was called.

    Args:
        calls: The calls of all tasks, with their times.
        targets: The ids of the tasks.

    Returns:
        The ids of the two tasks of each edge.
    """
    boxes: defaultdict[str, list[CallInterval]] = defaultdict(list)
    for call in calls:
        boxes[call.box].append(call)
    edges: list[tuple[str, str]] = []
    for box_calls in boxes.values():
        times = _times_of(box_calls)
        for target in times:
            if target in targets:
                sources = _sources_by_time(box_calls, times, target)
                edges += [(source, target) for source in sources]
    return edges


def _sources_by_time(
    calls: Iterable[CallInterval],
    times: Mapping[str, _TaskTimes],
    target: str,
) -> list[str]:
    """Return the tasks after which a task was called.

    Args:
        calls: The calls of the body that called the task.
        times: The times of each task that the body called.
        target: The task.
    """
    sources = _ended_before(times, target)
    if sources:
        return sources
    begin = times[target].first_began
    return _last_ended(calls, target, begin)


def _times_of(calls: Iterable[CallInterval]) -> dict[str, _TaskTimes]:
    """Return the times of the calls of each task."""
    times: dict[str, _TaskTimes] = {}
    for call in calls:
        task = times.setdefault(call.node, _TaskTimes(call.began))
        task.first_began = min(task.first_began, call.began)
        task.last_ended = max(task.last_ended, call.ended)
    return times


def _ended_before(
    times: Mapping[str, _TaskTimes],
    target: str,
) -> list[str]:
    """Return the tasks whose calls had all ended before a task was called first. Of
    these tasks, only the last are returned: a task is left out if it had ended before
    another of them was called first.
    """
    begin = times[target].first_began
    former: dict[str, _TaskTimes] = {}
    latest = 0
    for node, task in times.items():
        if task.last_ended <= begin:
            former[node] = task
            latest = max(latest, task.first_began)
    sources: list[str] = []
    for node, task in former.items():
        if task.last_ended > latest:
            sources.append(node)
    return sources


def _last_ended(
    calls: Iterable[CallInterval],
    target: str,
    begin: int,
) -> list[str]:
    """Return a list with the task, other than *target*, whose call was the last to end
    before the time *begin*. The list is empty if no call had ended.
    """
    source = ""
    latest = -math.inf
    for call in calls:
        is_former = latest < call.ended <= begin
        if is_former and call.node != target:
            source = call.node
            latest = call.ended
    if not source:
        return []
    return [source]
