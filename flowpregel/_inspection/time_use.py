"""The use of a run's time, from the recorded times of the calls.

::

    call      planned ---- began ======== ended
    sweep     waiting          running              at each moment: the number of calls
              |               |        |            that run, and that wait
    busy      :               ########:
    waiting   ################:       :             no call runs, and some wait
    body                              :######       no call runs or waits

A run that was killed and resumed has calls from before its body began for the last
time. Between the first of them and that moment, the time in which no call ran or waited
is that of *stopped*.

The number of cores of a run is the greatest number of calls that ran at the same time
in worker processes. The critical path begins with the call that ended last: before each
call comes the call that ended last before this call was planned, because the body may
have waited for that call.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from flowpregel._inspection.call_rows import CallRow
from flowpregel._inspection.worker_usage import UsageMoment, worker_usage

_SECOND: Final = 1e9
_SLOWEST: Final = 10
"""The greatest number of calls that are listed: the longest ones."""
_MOST_WORKERS: Final = 200
"""The greatest number of workers that are listed."""
_TOLERANCE: Final = 1_000_000
"""The nanoseconds by which two clocks may differ: those of a worker that ended a call,
and of the process that planned the next call."""


@dataclass(frozen=True, kw_only=True)
class TaskTime:
    """The time of the calls of one task."""

    name: str
    """The name of the task."""
    calls: int
    """The number of the calls."""
    seconds: float
    """The total duration of the calls."""
    median: float
    """The median duration of a call."""
    longest: float
    """The duration of the longest call."""
    waited: float
    """The total time that the calls waited for a worker."""
    cpu: float
    """The total CPU time of the calls."""


@dataclass(frozen=True, kw_only=True)
class WorkerTime:
    """The calls of one worker process."""

    host: str
    """The host of the process."""
    pid: int
    """The id of the process."""
    calls: int
    """The number of the calls."""
    seconds: float
    """The total duration of the calls."""
    cpu: float
    """The total CPU time of the calls."""
    peak: int
    """The peak memory in bytes."""


class TimedCall(NamedTuple):
    """A call with its times in seconds."""

    id: str
    """The id of the call."""
    text: str
    """The text of the call, or the name of the node."""
    waited: float
    """The time from the planning of the call to its beginning."""
    seconds: float
    """The duration of the call."""


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """A chain of calls that led to the end of the run: its last call ended last, and
    each call before it was the last to end before the next one was planned.
    """

    calls: int
    """The number of the calls."""
    seconds: float
    """The total duration of the calls."""
    waited: float
    """The total time that the calls waited for a worker."""
    between: float
    """The total time between the end of a call and the planning of the next call."""
    longest: tuple[TimedCall, ...]
    """The longest calls of the path, in order of time."""


@dataclass(frozen=True, kw_only=True)
class TimeUse:
    """The use of the time of a run, in seconds."""

    total: float
    """The time from the planning of the first call to the end of the last."""
    tasks: tuple[TaskTime, ...]
    """The tasks, with the greatest total duration first."""
    busy: float
    """The time in which at least one call ran."""
    waiting: float
    """The time in which no call ran, and some waited for a worker."""
    body: float
    """The time in which no call ran or waited, because the body itself ran, or between
    two supersteps.
    """
    stopped: float
    """The time in which no call ran or waited, between the first call of an earlier
    attempt of the body and the beginning of the last attempt: no process had the run,
    or an earlier attempt ran, whose times are not recorded. It is 0 if no call of an
    earlier attempt is recorded.
    """
    cores: int
    """The greatest number of calls that ran at a time in worker processes."""
    idle: float
    """The total idle time of all cores, without *stopped*."""
    idle_while_waiting: float
    """The part of *idle* in which calls waited."""
    median_wait: float
    """The median time that a call waited for a worker."""
    slowest: tuple[TimedCall, ...]
    """The longest calls, the longest first."""
    path: CriticalPath
    """The chain of calls that led to the end of the run."""
    workers: tuple[WorkerTime, ...]
    """The worker processes, those whose calls took the most time first."""
    usage: tuple[UsageMoment, ...] = ()
    """The use of the worker processes over time; empty if there are none."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for ``json.dumps``."""
        record = asdict(self)
        record["usage"] = [moment._asdict() for moment in self.usage]
        record["slowest"] = [call._asdict() for call in self.slowest]
        longest = [call._asdict() for call in self.path.longest]
        record["path"]["longest"] = longest
        return record


class _Span(NamedTuple):
    """The times of a call in nanoseconds."""

    planned: int
    began: int
    ended: int
    row: CallRow

    @property
    def waited(self) -> float:
        """The seconds from the planning of the call to its beginning."""
        return (self.began - self.planned) / _SECOND

    def timed(self) -> TimedCall:
        """Return the call with its times in seconds."""
        row = self.row
        return TimedCall(
            id=row.id,
            text=row.text or row.name,
            waited=self.waited,
            seconds=row.seconds,
        )


def time_use(rows: Iterable[CallRow]) -> TimeUse | None:
    """Return where the time of a run went, or None if no call has ended.

    Args:
        rows: All recorded calls of the run.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import entrypoint, task
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.watching import StoreReader, time_use
        >>> @task(executor="inline")
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def total(numbers: list[int]) -> int:
        ...         return sum(future.result() for future in double.map(numbers))
        ...     total.run([1, 2, 3], id="1")
        ...     reader = StoreReader(saver)
        ...     use = time_use(reader.calls("1").rows)
        ...     print([(task.name, task.calls) for task in use.tasks])
        ...     reader.close()
        12
        [('double', 3)]
    """
    all_rows = [row for row in rows if row.began and row.attempts]
    callers = {(row.namespace, row.caller) for row in all_rows if row.caller}
    spans: list[_Span] = []
    bodies: list[_Span] = []
    for row in all_rows:
        is_body = not row.text and (row.namespace, row.path) in callers
        target = bodies if is_body else spans
        target.append(_span_of(row))
    if not spans:
        return None
    spans.sort(key=lambda span: span.ended)
    phases = _phases(spans, bodies)
    slowest = sorted(
        spans,
        key=lambda span: span.row.seconds,
        reverse=True,
    )
    waits = [span.waited for span in spans]
    return TimeUse(
        total=phases.total,
        tasks=_task_times(spans),
        busy=phases.busy,
        waiting=phases.waiting,
        body=phases.body,
        stopped=phases.stopped,
        cores=phases.cores,
        idle=phases.idle,
        idle_while_waiting=phases.idle_while_waiting,
        median_wait=statistics.median(waits),
        slowest=tuple(span.timed() for span in slowest[:_SLOWEST]),
        path=_critical_path(spans),
        workers=_worker_times(spans),
        usage=worker_usage(
            (span.row for span in spans),
            begin=min(span.planned for span in spans),
            end=spans[-1].ended,
        ),
    )


def _span_of(row: CallRow) -> _Span:
    """Return the times of a call. The time at which the call was planned may be
    unknown.
    """
    planned = min(row.planned or row.began, row.began)
    ended = row.began + int(row.seconds * _SECOND)
    return _Span(
        planned,
        row.began,
        ended,
        row,
    )


# ---------------------------------------------------------------- by task and worker


def _task_times(spans: Iterable[_Span]) -> tuple[TaskTime, ...]:
    by_name: defaultdict[str, list[_Span]] = defaultdict(list)
    for span in spans:
        by_name[span.row.name].append(span)
    times: list[TaskTime] = []
    for name, calls in by_name.items():
        durations = [span.row.seconds for span in calls]
        task_time = TaskTime(
            name=name,
            calls=len(calls),
            seconds=sum(durations),
            median=statistics.median(durations),
            longest=max(durations),
            waited=sum(span.waited for span in calls),
            cpu=sum(span.row.cpu for span in calls),
        )
        times.append(task_time)
    times.sort(
        key=lambda task: task.seconds,
        reverse=True,
    )
    return tuple(times)


def _worker_times(spans: Iterable[_Span]) -> tuple[WorkerTime, ...]:
    """Return the worker processes, those whose calls took the most time first."""
    by_process: defaultdict[tuple[str, int], list[CallRow]] = defaultdict(list)
    for span in spans:
        if span.row.executor == "processes":
            by_process[span.row.host, span.row.pid].append(span.row)
    times: list[WorkerTime] = []
    for (host, pid), calls in by_process.items():
        worker_time = WorkerTime(
            host=host,
            pid=pid,
            calls=len(calls),
            seconds=sum(row.seconds for row in calls),
            cpu=sum(row.cpu for row in calls),
            peak=max(row.peak for row in calls),
        )
        times.append(worker_time)
    times.sort(
        key=lambda worker: worker.seconds,
        reverse=True,
    )
    return tuple(times[:_MOST_WORKERS])


# ---------------------------------------------------------------- by moment


class _Change(NamedTuple):
    """A change, at a moment, of the number of calls that run or wait."""

    at: int
    running: int = 0
    in_workers: int = 0
    waiting: int = 0


@dataclass
class _Phases:
    """The parts of a run's time, in seconds."""

    total: float = 0.0
    busy: float = 0.0
    waiting: float = 0.0
    body: float = 0.0
    stopped: float = 0.0
    cores: int = 0
    idle: float = 0.0
    idle_while_waiting: float = 0.0


def _phases(spans: Sequence[_Span], bodies: Sequence[_Span]) -> _Phases:
    """Return the parts of a run's time.

    Args:
        spans: The calls.
        bodies: The tasks that made calls.
    """
    changes = sorted(_changes(spans))
    phases = _Phases(cores=_most_in_workers(changes))
    first = changes[0].at
    last = changes[-1].at
    body_begin = min((body.began for body in bodies), default=first)
    body_end = max((body.ended for body in bodies), default=last)
    # A call that was planned before the body began was made by an earlier attempt of
    # the body. Tasks without a caller do not count, because a node that makes no calls
    # may begin before the body, too.
    first_call = min(
        (span.planned for span in spans if span.row.caller), default=body_begin
    )
    begin = min(first, body_begin)
    end = max(last, body_end)
    phases.total = (end - begin) / _SECOND
    changes.append(_Change(end))
    running = 0
    in_workers = 0
    waiting = 0
    moment = begin
    for change in changes:
        seconds = (change.at - moment) / _SECOND
        if running:
            phases.busy += seconds
        elif waiting:
            phases.waiting += seconds
        else:
            stopped_from = max(moment, first_call)
            stopped = max(0, min(change.at, body_begin) - stopped_from) / _SECOND
            phases.stopped += stopped
            seconds -= stopped
            phases.body += seconds
        idle = (phases.cores - in_workers) * seconds
        phases.idle += idle
        if waiting:
            phases.idle_while_waiting += idle
        running += change.running
        in_workers += change.in_workers
        waiting += change.waiting
        moment = max(moment, change.at)
    return phases


def _changes(spans: Iterable[_Span]) -> Iterable[_Change]:
    for planned, began, ended, row in spans:
        in_worker = int(row.executor == "processes")
        yield _Change(planned, waiting=1)
        yield _Change(
            began,
            running=1,
            in_workers=in_worker,
            waiting=-1,
        )
        yield _Change(
            ended,
            running=-1,
            in_workers=-in_worker,
        )


def _most_in_workers(changes: Iterable[_Change]) -> int:
    """Return the greatest number of calls that ran at a time in worker processes."""
    count = 0
    most = 0
    for change in changes:
        count += change.in_workers
        most = max(most, count)
    return most


# ---------------------------------------------------------------- one after another


def _critical_path(spans: Sequence[_Span]) -> CriticalPath:
    """Return the critical path of calls, which are sorted by their ends."""
    ends = [span.ended for span in spans]
    position = len(spans) - 1
    path = [spans[position]]
    between = 0.0
    while position > 0:
        planned = spans[position].planned
        # The loop ends, because each position is less than the one before it.
        earlier = bisect_right(ends, planned + _TOLERANCE, 0, position) - 1
        if earlier < 0:
            break
        gap = max(0, planned - ends[earlier])
        between += gap / _SECOND
        path.append(spans[earlier])
        position = earlier
    longest = sorted(path, key=lambda span: span.row.seconds + span.waited)
    selected = longest[-_SLOWEST:]
    selected.sort(key=lambda span: span.began)
    return CriticalPath(
        calls=len(path),
        seconds=sum(span.row.seconds for span in path),
        waited=sum(span.waited for span in path),
        between=between,
        longest=tuple(span.timed() for span in selected),
    )
