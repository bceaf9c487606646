"""The records of earlier runs that provide results for the calls of this run, and the
report about their use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowpregel._core.files import FileContent
from flowpregel._core.ids import CallRecord, LazyResults
from flowpregel._core.records import CALLED, Write
from flowpregel.errors import UnmatchedCallsError


@dataclass(slots=True)
class ReplayReport:
    """The counts of calls in a run that resumes, for the notices when it ends."""

    is_changed: bool = False
    """True if a body (the code of a workflow or task) that has made a call has other
    code or input than in the recorded run.
    """
    answered: int = 0
    """The number of calls whose results came from their records."""
    executed: int = 0
    """The number of calls that ran because no recorded result was found for them."""
    unreplayed: int = 0
    """The number of recorded calls that no body made again."""
    of_other_code: Counter[str] = field(default_factory=Counter)
    """The number of used results that different code had made, by the name of the
    task.
    """
    recomputed: Counter[str] = field(default_factory=Counter)
    """The number of calls that run again because different code had made the recorded
    result, by the name of the task.
    """
    codes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The digests of the recorded code and of the present code, by the name of a task
    in ``of_other_code`` or ``recomputed``, or of a body that has changed.
    """
    body_codes: tuple[str, str] = ("", "")
    """The digests of the recorded code and of the present code of the first body that
    has changed.
    """
    used: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of used results, by the task's name and the digest of the code that
    made them.
    """
    unseen: dict[str, str] = field(default_factory=dict)
    """The values whose content the digest of the code does not include, by the name of
    the task or node.
    """


@dataclass(slots=True, eq=False)
class Replay:
    """The writes that were stored on the checkpoint before this run, and the state of
    the search for recorded calls in them.
    """

    pending: dict[str, list[Write]] = field(default_factory=dict)
    """The writes that are stored on the checkpoint, by task id."""
    lazy_results: LazyResults | None = None
    """The reader of the call results that are not in *pending*, each read when
    needed.
    """
    _calls_by_position: dict[tuple[str, int], CallRecord] | None = None
    """The calls in *pending* by caller and position, or None until they are first
    needed.
    """
    reuses_writes: bool = True  # no mutant: The start of a run sets the field.
    """True if a task with stored writes need not run: the stored writes are its result.
    """
    is_resuming: bool = False  # no mutant: The start of a run sets the field.
    """True if the run continues the thread's present superstep."""
    report: ReplayReport = field(default_factory=ReplayReport)
    _files: set[tuple[Any, ...]] | None = None
    """The files in the arguments of recorded calls, or None until they are first
    needed.
    """
    matched: set[str] = field(default_factory=set)
    """The names of the tasks of which a recorded call was made again."""
    unmatched: dict[str, UnmatchedCallsError | None] = field(default_factory=dict)
    """The error for each task's first call without a record, by the task's name. The
    value is None if no error applies: the user has already had the notice, or recorded
    calls of the task may still follow.
    """
    vain_lookups: Counter[str] = field(default_factory=Counter)
    """The number of lookups in a row that found no call, by the name of the task. Only
    the lookups of arguments without the fields that their classes have gained are
    counted.
    """

    def clear(self) -> None:
        """Drop the stored writes, because a new checkpoint includes their effect."""
        self.pending = {}
        self.lazy_results = None
        self._calls_by_position = None

    def is_empty(self) -> bool:
        """Return whether no writes of an earlier run are stored."""
        return not self.pending and self.lazy_results is None

    def recorded_calls(self) -> Iterator[CallRecord]:
        """Yield the calls that are recorded, without their results."""
        for writes in self.pending.values():
            record = record_in(writes)
            if record is not None:
                yield record
        yield from self.lazy_calls()

    def has_files(self, files: Iterable[FileContent]) -> bool:
        """Return whether each of *files* is, with the same content, in the arguments of
        a recorded call.
        """
        if self._files is None:
            self._files = set()
            for record in self.recorded_calls():
                for file in record.files:
                    self._files.add(tuple(file))
        return self._files.issuperset(files)

    def pending_call_at(self, caller: str, position: int) -> CallRecord | None:
        """Return the call in *pending* that a body made at a position, or None.

        Args:
            caller: The digest of the body (see `CallRecord.caller`).
            position: The position of the call in the body.
        """
        if self._calls_by_position is None:
            self._calls_by_position = {}
            for writes in self.pending.values():
                record = record_in(writes)
                if record is not None:
                    self._calls_by_position[record.caller, record.position] = record
        return self._calls_by_position.get((caller, position))

    def lazy_calls(self) -> Iterator[CallRecord]:
        """Yield the recorded calls that are not in *pending*."""
        if self.lazy_results is None:
            return
        for writes in self.lazy_results.records():
            record = record_in(writes)
            if record is not None:
                yield record

    def lazy_call_at(self, path: str) -> CallRecord | None:
        """Return the recorded call at *path* if it exists and is not in *pending*."""
        if self.lazy_results is None:
            return None
        return record_in(self.lazy_results.record_at(path))


def record_in(writes: Sequence[Write]) -> CallRecord | None:
    """Return the call for which *writes* were stored, or None if they belong to no
    call.
    """
    value: Any = dict(writes).get(CALLED)
    return None if value is None else CallRecord(*value)
