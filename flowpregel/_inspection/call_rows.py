"""The row that describes a call, and the table of the other measurements of a call,
such as its CPU time.

The fields of a row have types that JSON supports. Queries, orders, plots, comparisons
and tables of calls show the measurements that `CALL_NUMBERS` lists. The page gets the
list when its scripts are joined (``plugins/page/scripts.py``), so a report (`flowpregel
report`, a page in one file) has it without a server.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

CallState: TypeAlias = Literal["failed", "waiting", "unfinished", "done"]
"""The state of a call according to the records.

A *waiting* call needs an answer. An *unfinished* call has records, such as a saved
state, but has not ended. A running call often has no records yet, and so no row.
"""
Unit: TypeAlias = Literal["seconds", "bytes", "count"]
"""The unit of a measurement, which determines how it is written as text."""


class CallRow(NamedTuple):
    """A task or call, described by its records in the store."""

    id: str
    """The id of the task."""
    name: str
    """The name of the node or of the called task; empty if it is not stored."""
    text: str
    """The call with short arguments, as ``parse('c.txt')``; empty if the task is no
    call.
    """
    state: CallState
    """The state of the task."""
    step: int
    """The number of the superstep."""
    checkpoint_id: str
    """The id of the checkpoint that has the task's records."""
    namespace: str
    """The namespace of the task's graph; empty for the outermost graph."""
    path: str
    """The position of the task in its superstep. If rows are sorted by path, calls come
    after their caller.
    """
    caller: str
    """The path of the task whose code made the call; empty if the task is no call."""
    error: str
    """The error with which the task failed, in one line."""
    questions: int
    """The number of answers that the task waits for."""
    planned: int
    """Wall-clock nanoseconds at which the first attempt was scheduled; 0 if unknown."""
    began: int
    """Wall-clock nanoseconds at which the last attempt began; 0 if unknown."""
    seconds: float
    """The duration of the last attempt."""
    attempts: int
    """The number of attempts. If it is 0 although *began* is known, another run shared
    its result.
    """
    executor: str
    """The name of the executor of the last attempt; empty if unknown."""
    host: str
    """The host of the last attempt; empty if unknown."""
    pid: int
    """The id of the process that ran the last attempt; 0 if unknown."""
    cpu: float = 0.0
    """The CPU time of the last attempt in seconds; 0 if unknown."""
    peak: int = 0
    """The peak memory of the last attempt's process in bytes; 0 if unknown."""
    preview: str = ""
    """The arguments, the result and the metrics in short form, by field, as JSON with
    the keys ``a``, ``r`` and ``m``; empty if they were not recorded.
    """


class CallChanges(NamedTuple):
    """The calls of a run that have changed since a mark."""

    mark: int
    """The mark (a position among all changes) to pass to the next request."""
    is_whole: bool
    """True if these are the first calls of a complete list. The list replaces the rows
    of all earlier results.
    """
    is_more: bool
    """True if there are more changes, which the next request returns."""
    rows: tuple[CallRow, ...]
    """The new and changed calls. If a call changes again, it is in a later
    result too.
    """


class CallNumber(NamedTuple):
    """A measurement that each call has, other than its duration.

    Example:
        >>> from flowpregel.watching import CALL_NUMBERS
        >>> for number in CALL_NUMBERS[:2]:
        ...     print(number.field, number.label, number.unit)
        cpu CPU seconds
        peak peak memory bytes
    """

    name: str
    """The name in queries, orders and plots."""
    field: str
    """The field of `CallRow`, in which 0 means that the number is unknown."""
    label: str
    """The name for people, such as ``"peak memory"``."""
    unit: Unit
    """The unit: ``"seconds"``, ``"bytes"``, or ``"count"`` for a number without one."""
    heading: str
    """The title of a column with these numbers, such as ``"Memory"``."""

    @property
    def type_code(self) -> str:
        """The type of an array of these numbers."""
        return "d" if self.unit == "seconds" else "q"


CALL_NUMBERS: Final = (
    CallNumber("cpu", "cpu", "CPU", "seconds", "CPU"),
    CallNumber("memory", "peak", "peak memory", "bytes", "Memory"),
)
"""The measurements of each call other than its duration, in the order in which they are
shown.
"""
NUMBER_NAMES: Final = tuple(number.name for number in CALL_NUMBERS)
NUMBER_FIELDS: Final = tuple(number.field for number in CALL_NUMBERS)
"""The fields of `CallRow`, and of `AttemptRecord`, that contain the measurements."""
