"""A comparison of two runs or two calls: the differences between inputs, and between
results.

::

    calls of run A          calls of run B
         \\                     /
          matched by task and digest of arguments; equal calls are matched in order
         /            |        \\
    only in A    in both:       only in B
                 the same result, or a different one

Results are the same if their stored bytes are equal. Otherwise they are the same if all
values in them are equal, as far as these can be read without the user's code.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from flowpregel._inspection.call_contents import CallContent, CallContents
from flowpregel._inspection.call_previews import read_preview
from flowpregel._inspection.call_query import FieldValue, recorded_fields
from flowpregel._inspection.call_rows import NUMBER_FIELDS, CallRow
from flowpregel._inspection.preview import FULL, PreviewLimits, one_line, to_json
from flowpregel._inspection.reader import StoreReader
from flowpregel._inspection.sweep_table import calls_of_run, ordered_calls
from flowpregel._shell import command_line, command_words
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

Change: TypeAlias = Literal["different", "only a", "only b", "same"]
"""The difference between two runs at a call: the outcomes differ, only one of the runs
has the call, or there is no difference.
"""
_CallKey: TypeAlias = tuple[str, str]
"""A task, and the digest of the arguments or the text of the call."""
CHANGES: Final[Sequence[Change]] = ("different", "only a", "only b", "same")
_ROW_FIELDS: Final = (
    "id",
    "name",
    "state",
    "error",
    "seconds",
    *NUMBER_FIELDS,
    "attempts",
)
"""The fields of a call that a comparison shows."""
_INPUT_LIMITS: Final = PreviewLimits(
    depth=3,
    count=8,
    size=60,
    total=30,
)
_UNKNOWN: Final = CallContent()
_INPUT: Final = "input"
"""The public name of the channel with the input of a workflow."""
_MOST_STEPS: Final = 200
"""The greatest number of supersteps that are read to find the input of a run."""


class FieldDifference(NamedTuple):
    """A field with different values in two runs or calls."""

    name: str
    """The name of the field."""
    a: FieldValue
    """The value in the first run or call, or None if it lacks the field."""
    b: FieldValue
    """The value in the second run or call, or None if it lacks the field."""


class ComparedCall(NamedTuple):
    """A call of one of two runs, or a pair of calls of both runs that have the same
    task and the same arguments.
    """

    change: Change
    """The difference between the two runs at this call."""
    a: CallRow | None
    """The call of the first run."""
    b: CallRow | None
    """The call of the second run."""
    results: tuple[FieldDifference, ...] = ()
    """The fields of the results and the metrics that differ, if both have ended."""

    @property
    def text(self) -> str:
        """The call with the fields of the arguments, or the name of the node."""
        row = self.a or self.b
        return "" if row is None else text_of_call(row)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for ``json.dumps``."""
        return {
            "change": self.change,
            "text": self.text,
            "a": _row_to_json(self.a),
            "b": _row_to_json(self.b),
            "results": _differences_to_json(self.results),
        }


@dataclass(frozen=True, kw_only=True)
class RunTotals:
    """The total times, the states and the errors of a run's calls."""

    run: str
    """The id of the run."""
    status: str
    """The status of the run."""
    flow: str
    """``MODULE:FLOW``, or an empty string if the run did not record it."""
    states: dict[str, int]
    """The number of calls in each state."""
    seconds: float
    """The total duration of the calls."""
    elapsed: float
    """The time from the beginning of the first call to the end of the last."""
    cpu: float
    """The total CPU time of the calls."""
    peak: int
    """The greatest peak memory of a call in bytes."""
    errors: dict[str, int]
    """The number of failed calls by error."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for ``json.dumps``. A CPU time or a peak memory
        that is unknown is None.
        """
        record = asdict(self)
        _mark_unknown(record)
        return record


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Two runs, and the differences between them."""

    a: RunTotals
    """The first run."""
    b: RunTotals
    """The second run."""
    parameters: tuple[FieldDifference, ...]
    """The fields of the input that differ."""
    calls: tuple[ComparedCall, ...]
    """The calls in the order of `CHANGES`, then of the runs."""
    counts: dict[str, int]
    """The number of compared calls with each `Change`."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for ``json.dumps``, without the calls."""
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "parameters": _differences_to_json(self.parameters),
            "counts": self.counts,
        }


@dataclass(frozen=True, kw_only=True)
class CallComparison:
    """Two calls, and the differences between them."""

    a: CallRow
    """The first call."""
    b: CallRow
    """The second call."""
    arguments: tuple[FieldDifference, ...]
    """The fields of the arguments that differ."""
    results: tuple[FieldDifference, ...]
    """The fields of the results and the metrics that differ."""
    is_same_input: bool
    """True if the arguments are the same."""
    is_same_result: bool
    """True if both have the same result, or the same error."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for ``json.dumps``."""
        return {
            "a": _row_to_json(self.a),
            "b": _row_to_json(self.b),
            "arguments": _differences_to_json(self.arguments),
            "results": _differences_to_json(self.results),
            "is_same_input": self.is_same_input,
            "is_same_result": self.is_same_result,
        }


class _StoredRuns:
    """The runs of a store, with the digests of their calls."""

    def __init__(
        self,
        saver: DurableSaver,
        calls: Mapping[str, Iterable[CallRow]] | None = None,
    ) -> None:
        self.reader = StoreReader(saver)
        self._contents = CallContents(saver)
        self._known_calls = calls or {}

    def __enter__(self) -> _StoredRuns:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store that the readers have opened."""
        self._contents.close()
        self.reader.close()

    def run(self, run_id: str) -> _StoredRun:
        """Return the calls of a run."""
        rows = self._known_calls.get(run_id, ())
        calls = ordered_calls(rows)
        if not calls:
            calls = calls_of_run(self.reader, run_id)
        contents = self._contents.read(run_id, calls)
        return _StoredRun(self.reader, run_id, calls, contents)


@dataclass(frozen=True)
class _StoredRun:
    """A run with its calls."""

    reader: StoreReader
    run_id: str
    calls: list[CallRow]
    contents: Mapping[str, CallContent]
    """The digests of the calls by the calls' ids."""

    def content(self, call: CallRow) -> CallContent:
        """Return the digests of a call."""
        return self.contents.get(call.id, _UNKNOWN)

    def key(self, call: CallRow) -> _CallKey:
        """Return the task and the digest of the arguments, or the text of a call whose
        digest is not stored.
        """
        digest = self.content(call).arguments
        return call.name, digest or call.text

    def result(self, call: CallRow) -> Any:
        """Return the whole result of a call as values of JSON."""
        value = self.reader.value(
            self.run_id,
            call.id,
            "result",
            call.checkpoint_id,
        )
        return to_json(value, FULL)

    def find(self, call_id: str) -> CallRow:
        """Return the call with an id.

        Raises:
            ConfigurationError: The run has no such call.
        """
        for call in self.calls:
            if call.id == call_id:
                return call
        words = command_words("show", self.run_id, options=("--json",))
        raise ConfigurationError(
            f"run {self.run_id!r} has no call {call_id!r}; "
            f"`{command_line(words)}` lists the ids"
        )


def compare_runs(
    saver: DurableSaver,
    a: str,
    b: str,
    *,
    calls: Mapping[str, Iterable[CallRow]] | None = None,
) -> RunComparison:
    """Return the differences between the last runs of two threads.

    Args:
        saver: The open store. None of the user's code is imported or run.
        a: The id of the first run.
        b: The id of the second run.
        calls: The calls of the runs by id, as `CallIndex.recorded_rows` returns them,
            if they are known. Otherwise they are read.

    Raises:
        ConfigurationError: The store has no run of one of the ids.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import LMDBSaver, entrypoint, task
        >>> @task(executor="inline")
        ... def train(depth: int, rate: float) -> float:
        ...     return depth * rate
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def sweep(depths: list[int]) -> int:
        ...         return len([train(depth, 0.5).result() for depth in depths])
        ...     sweep.run([4, 8], id="one")
        ...     sweep.run([8, 16], id="two")
        ...     comparison = compare_runs(saver, "one", "two")
        2
        2
        >>> [(call.change, call.text) for call in comparison.calls]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('only a', 'train(depth=4, rate=0.5)'),
         ('only b', 'train(depth=16, rate=0.5)'),
         ('same', 'train(depth=8, rate=0.5)')]
    """
    with _StoredRuns(saver, calls) as runs:
        first = runs.run(a)
        second = runs.run(b)
        compared = _compared_calls(first, second)
        counts: Counter[str] = Counter(call.change for call in compared)
        return RunComparison(
            a=_totals(first),
            b=_totals(second),
            parameters=_parameters(first, second),
            calls=tuple(compared),
            counts=dict(counts),
        )


def compare_calls(
    saver: DurableSaver,
    a: tuple[str, str],
    b: tuple[str, str],
) -> CallComparison:
    """Return the differences between two calls.

    Args:
        saver: The open store. None of the user's code is imported or run.
        a: The id of the run and the id of the first call.
        b: The id of the run and the id of the second call.

    Raises:
        ConfigurationError: The store has no such run, or the run has no such call.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import LMDBSaver, entrypoint, task
        >>> from flowpregel.watching import StoreReader
        >>> @task(executor="inline")
        ... def train(depth: int, rate: float) -> float:
        ...     return depth * rate
        >>> with TemporaryDirectory() as folder, LMDBSaver(folder) as saver:
        ...     @entrypoint(checkpointer=saver)
        ...     def sweep(depths: list[int]) -> int:
        ...         return len([train(depth, 0.5).result() for depth in depths])
        ...     sweep.run([4, 8], id="one")
        ...     reader = StoreReader(saver)
        ...     calls = [row for row in reader.calls("one").rows if row.text]
        ...     a, b = sorted(calls, key=lambda row: row.path)
        ...     compared = compare_calls(saver, ("one", a.id), ("one", b.id))
        ...     reader.close()
        2
        >>> compared.arguments
        (FieldDifference(name='depth', a=4, b=8),)
        >>> compared.results
        (FieldDifference(name='result', a=2.0, b=4.0),)
    """
    with _StoredRuns(saver) as runs:
        first_run = runs.run(a[0])
        second_run = runs.run(b[0])
        first = first_run.find(a[1])
        second = second_run.find(b[1])
        pair = _compare_pair(
            first_run,
            first,
            second_run,
            second,
        )
        first_preview = read_preview(first.preview)
        second_preview = read_preview(second.preview)
        return CallComparison(
            a=first,
            b=second,
            arguments=_field_differences(
                first_preview.arguments,
                second_preview.arguments,
            ),
            results=_result_differences(first, second),
            is_same_input=first_run.key(first) == second_run.key(second),
            is_same_result=pair.change == "same",
        )


def text_of_call(row: CallRow) -> str:
    """Return a call with the fields of the arguments, or the name of a node.

    Args:
        row: The call.
    """
    text = read_preview(row.preview).call_text(row.text)
    return text or row.name


def _row_to_json(row: CallRow | None) -> dict[str, Any]:
    """Return the fields of a call that a comparison shows, or an empty dict."""
    if row is None:
        return {}
    record = {name: getattr(row, name) for name in _ROW_FIELDS}
    _mark_unknown(record)
    record["text"] = text_of_call(row)
    return record


def _mark_unknown(record: dict[str, Any]) -> None:
    """Replace the measurements in *record* that are 0, which means unknown, by None."""
    for name in NUMBER_FIELDS:
        if record.get(name) == 0:
            record[name] = None


def _differences_to_json(
    differences: Iterable[FieldDifference],
) -> list[dict[str, Any]]:
    return [difference._asdict() for difference in differences]


def _compared_calls(first: _StoredRun, second: _StoredRun) -> list[ComparedCall]:
    """Return the calls of two runs, matched by the task and the arguments."""
    unmatched: defaultdict[_CallKey, deque[CallRow]] = defaultdict(deque)
    for call in second.calls:
        key = second.key(call)
        unmatched[key].append(call)
    compared: list[ComparedCall] = []
    for call in first.calls:
        key = first.key(call)
        pair = ComparedCall("only a", call, None)
        if unmatched[key]:
            pair = _compare_pair(
                first,
                call,
                second,
                unmatched[key].popleft(),
            )
        compared.append(pair)
    unmatched_ids: set[str] = set()
    for calls in unmatched.values():
        unmatched_ids.update(call.id for call in calls)
    for call in second.calls:
        if call.id in unmatched_ids:
            pair = ComparedCall("only b", None, call)
            compared.append(pair)
    return sorted(
        compared,
        key=lambda pair: CHANGES.index(pair.change),
    )


def _compare_pair(
    first: _StoredRun,
    a: CallRow,
    second: _StoredRun,
    b: CallRow,
) -> ComparedCall:
    """Return two calls and the differences between their outcomes."""
    if _has_same_outcome(first, a, second, b):
        return ComparedCall("same", a, b)
    differences = _result_differences(a, b)
    return ComparedCall("different", a, b, differences)


def _has_same_outcome(
    first: _StoredRun,
    a: CallRow,
    second: _StoredRun,
    b: CallRow,
) -> bool:
    """Return whether two calls have the same result, or the same error."""
    if a.state != b.state or a.error != b.error:
        return False
    if a.state != "done":
        return True
    digest = first.content(a).result
    if digest == second.content(b).result:
        return True
    # The previews are compared first, because the whole values may be large. They are
    # compared as strings, because NaN is not equal to itself.
    preview = read_preview(a.preview)
    other_preview = read_preview(b.preview)
    if repr(preview.result) != repr(other_preview.result):
        return False
    return bool(first.result(a) == second.result(b))


def _result_differences(a: CallRow, b: CallRow) -> tuple[FieldDifference, ...]:
    """Return the fields of the results and of the metrics that differ."""
    first_fields = _outcome_fields(a)
    second_fields = _outcome_fields(b)
    return _field_differences(first_fields, second_fields)


def _outcome_fields(row: CallRow) -> dict[str, FieldValue]:
    """Return the fields of a call's result, and its metrics, by their names in
    queries.
    """
    preview = read_preview(row.preview)
    fields = recorded_fields(row)
    # The fields of the arguments come first, and are left out.
    outcome = islice(fields.items(), len(preview.arguments), None)
    return dict(outcome)


def _field_differences(
    a: Mapping[str, FieldValue],
    b: Mapping[str, FieldValue],
) -> tuple[FieldDifference, ...]:
    """Return the fields whose values differ, or that only one of two dicts has."""
    differences: list[FieldDifference] = []
    for name in {**a, **b}:
        first = a.get(name)
        second = b.get(name)
        # The values are compared as strings: "1" differs from "1.0", and "nan" equals
        # "nan".
        if repr(first) != repr(second):
            difference = FieldDifference(name, first, second)
            differences.append(difference)
    return tuple(differences)


def _parameters(
    first: _StoredRun,
    second: _StoredRun,
) -> tuple[FieldDifference, ...]:
    """Return the fields of the inputs of two runs that differ, each value in one
    line.
    """
    differences = _field_differences(
        _input_fields(first),
        _input_fields(second),
    )
    shortened: list[FieldDifference] = []
    for name, a, b in differences:
        difference = FieldDifference(
            name,
            _in_a_line(a),
            _in_a_line(b),
        )
        shortened.append(difference)
    return tuple(shortened)


def _input_fields(run: _StoredRun) -> dict[str, Any]:
    """Return the input of a run by field, as values of JSON."""
    steps = run.reader.steps(run.run_id, _MOST_STEPS)
    for step in steps:
        if step.source != "input":
            continue
        values = run.reader.values(run.run_id, step.checkpoint_id)
        if values is None:
            continue
        channels = dict(values.after)
        run_input = channels.get(_INPUT, channels)
        preview = to_json(run_input, FULL)
        return _flat_fields(preview)
    return {}


def _flat_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a value, and their fields by names such as
    ``params.depth``.
    """
    if not isinstance(value, dict):
        return {_INPUT: value}
    fields: dict[str, Any] = {}
    for name, part in value.items():
        is_nested = isinstance(part, dict)
        if not is_nested or not part:
            fields[name] = part
            continue
        for inner_name, inner in part.items():
            fields[f"{name}.{inner_name}"] = inner
    return fields


def _in_a_line(value: Any) -> FieldValue:
    """Return a number or None unchanged, any other value as a string in one line."""
    if value is None or isinstance(value, (int, float)):
        return value
    return one_line(value, _INPUT_LIMITS)


def _totals(run: _StoredRun) -> RunTotals:
    """Return the total times, the states and the errors of a run's calls."""
    row = run.reader.run(run.run_id)
    errors: Counter[str] = Counter()
    states: Counter[str] = Counter()
    begins: list[float] = []
    ends: list[float] = []
    seconds = 0.0
    cpu = 0.0
    peak = 0
    for call in run.calls:
        states[call.state] += 1
        seconds += call.seconds
        cpu += call.cpu
        peak = max(peak, call.peak)
        if call.state == "failed":
            errors[call.error] += 1
        if call.began:
            begin = call.began / 1e9
            begins.append(begin)
            ends.append(begin + call.seconds)
    elapsed = max(ends, default=0.0) - min(begins, default=0.0)
    return RunTotals(
        run=run.run_id,
        status="" if row is None else row.status,
        flow="" if row is None else row.flow or "",
        states=dict(states),
        seconds=seconds,
        elapsed=elapsed,
        cpu=cpu,
        peak=peak,
        errors=dict(errors.most_common()),
    )
