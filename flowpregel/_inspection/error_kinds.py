"""Failed calls by kind of error, with the arguments that the calls of a kind share.

::

    the failed calls of a run
         | error_pattern: "loss is nan at epoch 12" -> "loss is nan at epoch #"
         v
    one group for each task and pattern
         | compared with the other calls of the task
         v
    the fewest fields that have one value in the group, and that few other calls have:
    "only where depth = 12 and lr = 0.1"

A group is compared with a sample of the other calls, and a large group by a sample of
its own calls. The samples are the calls with the smallest ids, which are random.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowpregel._inspection.call_previews import read_preview
from flowpregel._inspection.call_query import STATES, FieldValue
from flowpregel._inspection.call_rows import CallChanges, CallRow
from flowpregel._inspection.preview import ReprText
from flowpregel._shell import command_words
from flowpregel._text import in_one_line

if TYPE_CHECKING:
    from flowpregel._inspection.call_index import CallIndex

Fields = Mapping[str, FieldValue]
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_DONE: Final = STATES.index("done")
_SAMPLE: Final = 500
"""The greatest number of calls of a task, or of a kind of error, that are compared."""
_FEW: Final = 0.1
"""The greatest share of a task's other calls that may have the field values which
describe a kind of error.
"""
_MOST_SHARED: Final = 4
"""The greatest number of fields in the condition that describes the failed calls, such
as ``depth = 12 and lr = 0.1``.
"""


def error_pattern(error: str) -> str:
    """Return an error with ``#`` in place of each number.

    Args:
        error: The error in one line.

    Example:
        >>> error_pattern("FloatingPointError: loss is nan at epoch 12")
        'FloatingPointError: loss is nan at epoch #'
    """
    return _NUMBER.sub("#", error)


def fields_of_call(row: CallRow) -> Fields:
    """Return the recorded arguments of a call by field, or else those in the text of
    the call.

    Args:
        row: The call.
    """
    return read_preview(row.preview).arguments or fields_in_text(row.text)


def fields_in_text(text: str) -> Fields:
    """Return the arguments in the text of a call that are numbers, strings or None.

    Example:
        >>> fields_in_text("train(0.1, <Model>, depth=12)")
        {}
        >>> fields_in_text("train(0.1, [1, 2], depth=12)")
        {'argument 1': 0.1, 'depth': 12}
    """
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    if not isinstance(call, ast.Call):
        return {}
    arguments: dict[str, ast.expr] = {}
    for position, argument in enumerate(call.args, 1):
        name = f"argument {position}"
        arguments[name] = argument
    for keyword in call.keywords:
        if keyword.arg is not None:
            arguments[keyword.arg] = keyword.value
    return _constants(arguments)


def _constants(arguments: Mapping[str, ast.expr]) -> Fields:
    """Return the values of the arguments that are numbers, strings or None."""
    fields: dict[str, FieldValue] = {}
    for name, argument in arguments.items():
        if not isinstance(argument, ast.Constant):
            continue
        value = argument.value
        if value is None or isinstance(value, (str, int, float)):
            fields[name] = value
    return fields


@dataclass(frozen=True, kw_only=True)
class SharedFields:
    """The argument values that all calls with a kind of error have, and few others."""

    fields: Fields
    """The value that all these calls have for an argument, by the name of the argument.
    """
    matching: int
    """The number of other calls that have these values too."""
    others: int
    """The number of other calls that were compared."""

    def __str__(self) -> str:
        """Return the condition in words."""
        names = _short_names(self.fields)
        parts: list[str] = []
        for name, value in self.fields.items():
            text = repr(value)
            if isinstance(value, ReprText):
                text = str(value)
            short_name = names[name]
            parts.append(f"{short_name} = {text}")
        text = " and ".join(parts)
        condition = in_one_line(text)
        if not self.matching:
            return f"only where {condition}"
        return f"where {condition}, as in {self.matching:,} of {self.others:,} others"


@dataclass(frozen=True, kw_only=True)
class ErrorKind:
    """The failed calls of a task whose errors differ only in numbers.

    Example:
        >>> kind = ErrorKind(name="f", error="E: no 7", calls=("f(7)",), ids=("a",))
        >>> kind.retry_command("study")
        ('retry', 'study', '--task', 'f', '--error', 'E: no #')
        >>> kind.to_json()["condition"]
        ''
    """

    name: str
    """The name of the task."""
    error: str
    """The error in one line. If the errors differ, ``#`` replaces their numbers."""
    calls: tuple[str, ...]
    """The texts of the calls."""
    ids: tuple[str, ...]
    """The ids of the calls."""
    shared: SharedFields | None = None
    """The argument values that all these calls and few other calls have, or None if
    there are no such values.
    """

    @property
    def condition(self) -> str:
        """The argument values that these calls share, in words, or an empty string."""
        return "" if self.shared is None else str(self.shared)

    def retry_command(self, thread_id: str) -> tuple[str, ...]:
        """Return the words of the command that tries these calls again.

        Args:
            thread_id: The id of the run.
        """
        pattern = error_pattern(self.error)
        options = ("--task", self.name, "--error", pattern)
        return command_words("retry", thread_id, options=options)

    def to_json(self, most: int = 20) -> dict[str, Any]:
        """Return the fields as values for ``json.dumps``.

        Args:
            most: The greatest number of calls that are listed.
        """
        shared: dict[str, FieldValue] = {}
        if self.shared is not None:
            shared.update(self.shared.fields)
        return {
            "task": self.name,
            "error": self.error,
            "pattern": error_pattern(self.error),
            "count": len(self.ids),
            "calls": list(self.calls[:most]),
            "ids": list(self.ids[:most]),
            "condition": self.condition,
            "shared": shared,
        }


class _TaskAndError(NamedTuple):
    """A task, and the pattern of an error that its calls raised."""

    task: str
    pattern: str


class _Sample:
    """The calls with the smallest ids among all calls that were added."""

    def __init__(self) -> None:
        self._rows: dict[str, CallRow] = {}
        self._greatest = ""
        """The greatest id that still belongs to the sample, or an empty string as long
        as any id does.
        """

    def add(self, row: CallRow) -> None:
        """Add a call if it belongs to the sample."""
        if self._greatest and row.id > self._greatest:
            return
        self._rows[row.id] = row
        if len(self._rows) < 2 * _SAMPLE:
            return
        ids = sorted(self._rows)
        for id in ids[_SAMPLE:]:
            del self._rows[id]
        self._greatest = ids[_SAMPLE - 1]

    def rows(self) -> list[CallRow]:
        """Return the calls of the sample."""
        return list(self._rows.values())


class FailedCalls:
    """The failed calls of a run by kind of error, updated by the calls that changed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import entrypoint, task
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> from flowpregel.watching import FailedCalls, StoreReader
        >>> @task(executor="inline")
        ... def invert(n: int, *, scale: int) -> float:
        ...     return scale / (n - n % 2)
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def study(count: int) -> int:
        ...         futures = [invert(n // 2, scale=n % 2) for n in range(count)]
        ...         return sum(future.exception() is None for future in futures)
        ...     study.run(6, id="1")
        ...     reader = StoreReader(saver)
        ...     failed = FailedCalls()
        ...     for changes in reader.changes("1", failed.mark):
        ...         failed.update(changes)
        ...     print([str(kind.error) for kind in failed.kinds()])
        ...     reader.close()
        2
        ['ZeroDivisionError: division by zero']
    """

    def __init__(self) -> None:
        self.mark: int = 0
        """The mark (a position among all changes of calls) after the last change that
        was added.
        """
        self._clear()
        self._kinds: list[ErrorKind] = []
        self._kinds_mark = -1

    def _clear(self) -> None:
        """Remove all calls."""
        self._unread: CallIndex | None = None
        """A restored index of calls that have not been added yet."""
        self._failed: dict[str, CallRow] = {}
        self._others: defaultdict[str, _Sample] = defaultdict(_Sample)
        self._callers: set[tuple[str, str]] = set()
        """The namespaces and paths of the tasks that made calls."""

    def update(self, changes: CallChanges) -> None:
        """Add the calls that changed.

        Args:
            changes: The changes that `StoreReader.calls` returned for `mark`.
        """
        if changes.is_whole:
            self._clear()
        if changes.rows:
            self._read_index()
        for row in changes.rows:
            self._failed.pop(row.id, None)
            if row.caller:
                caller = (row.namespace, row.caller)
                self._callers.add(caller)
            if row.state == "failed":
                self._failed[row.id] = row
            elif row.state == "done":
                self._others[row.name].add(row)
        self.mark = changes.mark

    def restore(self, index: CallIndex) -> None:
        """Add the calls of an index that was restored from a cache, so that its first
        calls did not arrive as changes.

        The calls are read when they are needed. So later changes must be added to this
        object before they are added to the index.

        Args:
            index: The calls. Its `mark` is that of the last changes.

        Example:
            >>> from flowpregel.watching import CallIndex, FailedCalls
            >>> failed = FailedCalls()
            >>> failed.restore(CallIndex())
            >>> failed.kinds()
            []
        """
        self._clear()
        self.mark = index.mark
        self._unread = index

    def _read_index(self) -> None:
        """Read the calls of a restored index, which takes long if there are many."""
        if self._unread is None:
            return
        index = self._unread
        self._unread = None
        table = index.table
        for number in index.failed_numbers():
            row = table.row(number)
            self._failed[row.id] = row._replace(state="failed")
        columns = table.columns
        callers = zip(
            columns["namespace"],
            columns["caller"],
            strict=True,
        )
        self._callers.update(callers)
        done: defaultdict[str, list[int]] = defaultdict(list)
        for number, name in enumerate(columns["name"]):
            if table.urgency[number] == _DONE:
                done[name].append(number)
        id_of = columns["id"].__getitem__
        for name, numbers in done.items():
            sample = self._others[name]
            for number in nsmallest(_SAMPLE, numbers, key=id_of):
                row = table.row(number)
                sample.add(row)

    def kinds(self) -> list[ErrorKind]:
        """Return the kinds of errors, the most frequent first."""
        if self._unread is not None and not self._unread.failed_numbers():
            return []
        self._read_index()
        if self._kinds_mark != self.mark:
            # The failed calls are grouped again only if some call has changed since the
            # last grouping.
            self._kinds = self._grouped()
            self._kinds_mark = self.mark
        return self._kinds

    def _grouped(self) -> list[ErrorKind]:
        """Return the kinds of errors, the most frequent first."""
        groups: defaultdict[_TaskAndError, list[CallRow]] = defaultdict(list)
        for row in self._failed.values():
            location = (row.namespace, row.path)
            is_caller = row.path != "" and location in self._callers
            if not row.text and is_caller:
                # A task that failed because a call that it made failed is not counted,
                # because the call is counted already.
                continue
            pattern = error_pattern(row.error)
            group = _TaskAndError(row.name, pattern)
            groups[group].append(row)
        kinds: list[ErrorKind] = []
        for group, rows in groups.items():
            others = self._others[group.task].rows()
            for other, other_rows in groups.items():
                if other.task == group.task and other != group:
                    others += other_rows[:_SAMPLE]
            kind = _kind_of(rows, group.pattern, others)
            kinds.append(kind)
        return sorted(
            kinds,
            key=lambda kind: len(kind.ids),
            reverse=True,
        )


def _kind_of(
    rows: Sequence[CallRow],
    pattern: str,
    others: Sequence[CallRow],
) -> ErrorKind:
    """Return an `ErrorKind` for failed calls of one task whose errors have the same
    pattern.

    Args:
        rows: The calls.
        pattern: The error without its numbers.
        others: The other calls of the task.
    """
    errors = {row.error for row in rows}
    error = pattern
    if len(errors) == 1:
        error = errors.pop()
    by_id = sorted(
        rows,
        key=lambda row: row.id,
    )
    failed_fields = list(map(fields_of_call, by_id[:_SAMPLE]))
    other_fields = list(map(fields_of_call, others))
    shared = shared_fields(
        failed_fields,
        other_fields,
    )
    calls: list[str] = []
    ids: list[str] = []
    for row in rows:
        text = row.text or row.name
        calls.append(text)
        ids.append(row.id)
    return ErrorKind(
        name=rows[0].name,
        error=error,
        calls=tuple(calls),
        ids=tuple(ids),
        shared=shared,
    )


def shared_fields(
    failed: Sequence[Fields],
    others: Sequence[Fields],
) -> SharedFields | None:
    """Return the fewest fields that have one value in all failed calls, and that few
    other calls have.

    None is returned if there are no such fields, or fewer than two failed calls.

    Args:
        failed: The fields of the failed calls.
        others: The fields of the other calls of the task.

    Example:
        >>> failed = [{"lr": 0.1, "seed": 1}, {"lr": 0.1, "seed": 2}]
        >>> str(shared_fields(failed, [{"lr": 0.2, "seed": 1}]))
        'only where lr = 0.1'
    """
    compared = [fields for fields in others if fields]
    if len(failed) < 2 or not compared:
        return None
    candidates = _common(failed)
    chosen: dict[str, FieldValue] = {}
    matching = compared
    while matching and len(chosen) < _MOST_SHARED:
        best, remaining = _best_field(candidates, matching)
        if best is None:
            break
        chosen[best] = candidates[best]
        matching = remaining
    if not chosen or len(matching) > _FEW * len(compared):
        return None
    _drop_needless(chosen, compared, len(matching))
    # The fields are returned in the order of the parameters.
    names = [name for name in candidates if name in chosen]
    fields = {name: chosen[name] for name in names}
    return SharedFields(
        fields=fields,
        matching=len(matching),
        others=len(compared),
    )


def _common(failed: Sequence[Fields]) -> dict[str, FieldValue]:
    """Return the fields that have the same value in all failed calls."""
    common = dict(failed[0])
    for fields in failed[1:]:
        for name, value in list(common.items()):
            if not _has(fields, name, value):
                del common[name]
    return common


class _Choice(NamedTuple):
    """A field that is added to a condition, or None, and those other calls that still
    match the condition.
    """

    name: str | None
    remaining: list[Fields]


def _best_field(candidates: Fields, others: list[Fields]) -> _Choice:
    """Return the field whose value the fewest of the other calls have too.

    The field is None if all of the other calls have the value of each field.
    """
    best = _Choice(None, others)
    for name, value in candidates.items():
        remaining = _matching(others, name, value)
        if len(remaining) < len(best.remaining):
            best = _Choice(name, remaining)
    return best


def _drop_needless(
    chosen: dict[str, FieldValue],
    others: Sequence[Fields],
    matching: int,
) -> None:
    """Remove the fields that a condition does not need. Without them, it still matches
    the same number of *others*, the calls outside of the group.
    """
    for name in list(chosen):
        rest = dict(chosen)
        del rest[name]
        if rest and _count_matching(rest, others) == matching:
            del chosen[name]


def _count_matching(condition: Fields, others: Sequence[Fields]) -> int:
    """Return the number of calls that have all values of a condition."""
    remaining = list(others)
    for name, value in condition.items():
        remaining = _matching(remaining, name, value)
    return len(remaining)


def _matching(
    others: Iterable[Fields],
    name: str,
    value: FieldValue,
) -> list[Fields]:
    """Return the calls that have this value in a field."""
    return [fields for fields in others if _has(fields, name, value)]


def _has(fields: Fields, name: str, value: FieldValue) -> bool:
    """Return whether a call has this value in a field. True is not regarded as equal to
    1.
    """
    if name not in fields:
        return False
    other = fields[name]
    if isinstance(other, bool) != isinstance(value, bool):
        return False
    return other == value


def _short_names(fields: Fields) -> dict[str, str]:
    """Return the last part of each field's name, or the whole name if two parts are
    equal.
    """
    last_parts: list[str] = []
    for name in fields:
        _, _, last_part = name.rpartition(".")
        last_parts.append(last_part)
    names: dict[str, str] = {}
    for name, last_part in zip(fields, last_parts, strict=True):
        is_unique = last_parts.count(last_part) == 1
        names[name] = last_part if is_unique else name
    return names
