"""The attempts of tasks, the code that made their results, and changes in that code.

::

    a node ends ──► its code, and that behind the results it used ──► `AttemptRecord`
    the run resumes, or is called again ──► `CodeComparison`

The record of a call contains a digest of the code that ran. The digest of the code that
made the writes of a node, such as the result of a body, is in the node's
`AttemptRecord`. It is compared with the present code without running anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from flowpregel._code.digest import (
    CodeDigest,
    code_digest,
    code_of,
    codes_hold,
    tasks_named_by,
)
from flowpregel._code.sources import note_code
from flowpregel._core import ids, records
from flowpregel._core.code_around import CodeAround, marked_name
from flowpregel._core.effects import Emit
from flowpregel._core.files import MOST_FILES, NOT_A_TASK, USED_FILE
from flowpregel._core.ids import CODE_DIGITS, AttemptRecord, Span, UsedResults
from flowpregel._core.previews import arguments_preview, with_sources
from flowpregel._core.program import Program
from flowpregel._core.records import Kind, Node, Task, Write
from flowpregel._core.replay import ReplayReport
from flowpregel._tracebacks import whole_text

_BY_NODE: WeakKeyDictionary[Node, tuple[list[CodeDigest], str]] = WeakKeyDictionary()
"""The digests of the functions that each node runs, and the digest of the node's code,
which combines them. An entry is removed when the node is garbage-collected.
"""
CodePolicy: TypeAlias = Literal["keep", "rerun", "error"]
_LONGEST_LINE = 200
_MOST_ATTEMPTS = 10
"""The greatest number of failed attempts that are stored for a task. The latest
attempts are stored.
"""
VERSION = "version "
"""The beginning of the string that is stored in place of a code digest for a task with
a version.
"""


def code_of_node(node: Node) -> str:
    """Return a digest of a node's code with `CODE_DIGITS` digits, or an empty string if
    the node has no code of its own.

    The digest includes only the names of the tasks that the code calls, because the
    results of these tasks are recorded with digests of their own.
    """
    known = _BY_NODE.get(node)
    if known is not None:
        codes, code = known
        if codes_hold(codes):
            return code
    codes, code = _read_code(node)
    _BY_NODE[node] = codes, code
    return code


def _read_code(node: Node) -> tuple[list[CodeDigest], str]:
    if node.role == "graph":
        codes = [code_digest(node.graph)]
    else:
        codes = [code_of(step.func or step.coroutine) for step in node.steps]
    if not codes:
        return codes, ""
    code = ids.text_digest(*(code.digest for code in codes))[:CODE_DIGITS]
    # A task that runs a graph gives no notices about changed code: the graph's own run
    # gives them, for its nodes.
    has_notices = node.role != "graph"
    note_code(
        code,
        codes,
        has_notices=has_notices,
    )
    return codes, code


def attempt_record_of(
    task: Task,
    writes: Sequence[Write],
    code_around: CodeAround,
) -> AttemptRecord | None:
    """Return the record of the attempt that ended *task*, or None if the time span of
    the attempt is not known.

    Args:
        task: The task, whose last attempt has ended.
        writes: The last writes of the task, which are stored with the record.
        code_around: The digests of the code that runs beside the nodes, such as
            reducers.
    """
    attempt = task.attempt
    span = attempt.span
    if span is None:
        return None
    error = ""
    call = ""
    code = ""
    used: tuple[UsedResults, ...] = ()
    preview = span.preview.fields
    if writes[0][0] == records.ERROR:
        _, _, _, error, _ = attempt.failed[-1]
        call = task.call
        # If the worker of the last attempt died before it sent a preview, the preview
        # is made here.
        preview = preview or arguments_preview(task)
    elif task.kind is not Kind.CALL and attempt.writes:
        code = code_of_node(task.node)
        used = _used_by(task, writes, code_around)
    if task.origin is not None and task.origin.sources:
        preview = with_sources(preview, task.origin.sources)
    return AttemptRecord(
        name=task.node.name,
        began=span.began,
        seconds=span.seconds,
        attempts=0 if span.executor == "cache" else attempt.number,
        executor=span.executor,
        pid=span.pid,
        error=error,
        call=call,
        planned=attempt.first_started or 0,
        host=span.host,
        failed=attempt.failed,
        code=code,
        used=used,
        preview=preview,
        **span.cost._asdict(),
    )


def _used_by(
    task: Task,
    writes: Sequence[Write],
    code_around: CodeAround,
) -> tuple[UsedResults, ...]:
    """Return the results that a task used, and the code that ran along with the task,
    such as reducers.
    """
    channels = frozenset(dict(writes))
    beside = code_around.used_by(task.node, channels)
    body = task.attempt.body
    if body is None:
        return beside
    results: list[UsedResults] = []
    files: list[UsedResults] = []
    for (name, digest), count in body.sequence.used.items():
        group = files if name.startswith(USED_FILE) else results
        group.append((name, digest, count))
    return (*results, *files[:MOST_FILES], *beside)


def add_failed_attempt(task: Task, error: BaseException) -> None:
    """Note the failure of the attempt of *task* that has ended."""
    attempt = task.attempt
    span = attempt.span or Span(attempt.first_started or 0, 0.0, "")
    # If the task failed because of a call, the traceback is left empty, because it is
    # recorded with that call.
    text = "" if records.failed_calls(error) else whole_text(error)
    failed = span.began, span.seconds, span.pid, line_of(error), text
    attempt.failed = (*attempt.failed[1 - _MOST_ATTEMPTS :], failed)


def line_of(error: Any) -> str:
    """Return *error* in one line of bounded length."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - a user's __str__ may raise anything
        text = f"(its text is not available: {type(problem).__name__})"
    first = text.strip().partition("\n")[0]
    return (f"{name}: {first}" if first else name)[:_LONGEST_LINE]


# ---------------------------------------------------------------- changes of code


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A task or node whose code has changed, although results of the earlier code were
    used.
    """

    name: str
    recorded: str
    """The digest of the code that made the results."""
    now: str
    """The digest of the present code of the task or node."""
    results: int = 1
    """The number of results that the recorded code has made."""
    policy: CodePolicy | None = None
    """The task's own policy for results that different code has made, or None."""


class CodeComparison:
    """A comparison of the code that made recorded results with the present code of the
    same nodes, and of the tasks that their code refers to.

    Args:
        program: The program with the present code of the nodes.
    """

    def __init__(self, program: Program) -> None:
        self._nodes = program.nodes
        self._around = CodeAround(program)
        self._counts: Counter[tuple[str, str, str]] = Counter()
        """The numbers of results that different code made, by the name of the task or
        node, the digest of that code, and the digest of the present code.
        """
        self._policies: dict[str, CodePolicy | None] = {}
        self._tasks: dict[str, list[Any]] = {}
        """The tasks that the code of each node refers to, by the node's name."""
        self._beside: dict[str, dict[str, str]] = {}
        """The digests of the present code that runs beside each node, by the recorded
        name of the code.
        """
        self.unknown: set[str] = set()
        """The names of tasks whose results were used, but to which no node refers, so
        that their code cannot be compared.
        """

    def add(self, ran: AttemptRecord) -> bool:
        """Compare the code that made one recorded result with the present code, and
        return whether any of this code has changed.

        Args:
            ran: The record of the attempt that wrote the result.
        """
        node = self._nodes.get(ran.name)
        if node is None:
            return False
        before = self._counts.total()
        if ran.code:
            now = code_of_node(node)
            if now not in ("", ran.code):
                self._counts[ran.name, ran.code, now] += 1
        if ran.used and ran.name not in self._tasks:
            self._tasks[ran.name] = list(tasks_of(node))
        for used in ran.used:
            self._add_used(node, used)
        return self._counts.total() > before

    def _add_used(self, node: Node, used: UsedResults) -> None:
        """Compare the recorded code of the results that *node* used with the present
        code.
        """
        name, code, count = used
        tasks = [task for task in self._tasks[node.name] if is_named(task, name)]
        if tasks:
            self._add_task(tasks, used)
            return
        name = marked_name(name)
        if name.startswith(NOT_A_TASK):
            now = self._codes_beside(node).get(name, code)
            if now != code:
                self._counts[name.removeprefix(NOT_A_TASK), code, now] += count
        elif not code.startswith(VERSION):
            self.unknown.add(name)

    def _add_task(self, tasks: list[Any], used: UsedResults) -> None:
        """Compare the recorded code of a task with the present code of *tasks*: the
        tasks that have, or had, the recorded name.
        """
        name, code, count = used
        if not any(task.has_code(code) for task in tasks):
            self._counts[name, code, tasks[0].code] += count
            self._policies[name] = tasks[0].options.on_code_change

    def _codes_beside(self, node: Node) -> dict[str, str]:
        """Return the digests of the present code that runs along with *node* (the
        conditions of the node's edges, and all reducers), by name.
        """
        if node.name not in self._beside:
            reducers = frozenset(self._around.program.reducers)
            used = self._around.used_by(node, reducers)
            self._beside[node.name] = {name: code for name, code, _ in used}
        return self._beside[node.name]

    @property
    def changes(self) -> list[CodeChange]:
        """The changes that were found: the tasks and nodes whose present code differs
        from the code that made their recorded results.
        """
        return [
            CodeChange(name, recorded, now, count, self._policies.get(name))
            for (name, recorded, now), count in self._counts.items()
        ]


def tasks_of(node: Node) -> Iterator[Any]:
    """Yield the tasks to which the code of a node refers."""
    for step in node.steps:
        for value in tasks_named_by(step.func or step.coroutine):
            if hasattr(type(value), "call_here"):
                yield value


def is_named(task: Any, name: str) -> bool:
    """Return whether calls of *task* are recorded under this name, now or before the
    task was renamed.
    """
    name = name.removesuffix(".map")
    return name == task.name or name in task.node.adopts


def unseen_notice(name: str, values: str) -> str:
    """Return the notice for code that refers to *values* whose content the digest of
    the code does not include.
    """
    return (
        f"the code of {name!r} refers to {values}, but the code digest does not cover "
        "that content: a change in it goes unnoticed; for a task, pass version= and "
        "change it by hand"
    )


def first_difference(recorded: str, now: str) -> str:
    """Return the first line that differs between two sources, in its old and its new
    form, or an empty string if the sources are equal.

    Example:
        >>> old = "def f(n):\\n    return 2 * n\\n"
        >>> new = "def f(n):\\n    return 3 * n\\n"
        >>> first_difference(old, new)
        '-    return 2 * n | +    return 3 * n'
    """
    if not recorded or not now:
        return ""
    old = recorded.splitlines()
    new = now.splitlines()
    matcher = SequenceMatcher(None, old, new)
    for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        removed = [f"-{line}" for line in old[old_start:old_end]]
        added = [f"+{line}" for line in new[new_start:new_end]]
        return " | ".join(line.rstrip(";") for line in (*removed[:1], *added[:1]))
    return ""


@dataclass(frozen=True, slots=True)
class OtherCodeNotice:
    """The facts for the notice that a run used recorded results that different code had
    made.
    """

    name: str
    """The name of the task."""
    recorded: str
    """The digest of the different code, which made one of the results."""
    now: str
    """The digest of the present code."""
    old_results: int
    new_results: int
    """The number of the task's results that the present code has made."""

    def text(self, difference: str) -> str:
        """Return the text of the notice. *difference* is the first line in which the
        recorded and the present source code differ.
        """
        results = "results were" if self.old_results > 1 else "result was"
        text = (
            f"{self.name}: {self.old_results:,} {results} computed by other code and "
            "used as recorded (on_code_change='rerun' computes them again)"
        )
        if self.new_results:
            old = f"{self.old_results:,} result{'s' * (self.old_results > 1)}"
            text += f"; {old} by the old code, {self.new_results:,} by the new"
        return f"{text}: {difference}" if difference else text


@dataclass(frozen=True, slots=True)
class CodeNotice:
    """A notice into which the changes between two versions of code are inserted."""

    beginning: str
    """The part of the notice before the changes."""
    end: str
    """The part after the changes."""
    recorded: str
    """The digest of the recorded code."""
    now: str
    """The digest of the present code."""

    @classmethod
    def of_body(
        cls,
        counts: tuple[int, int, int],
        codes: tuple[str, str],
    ) -> CodeNotice:
        """Return the notice that the code or the input of a body has changed.

        Args:
            counts: The numbers of calls that got recorded results, of executed calls,
                and of recorded calls that were not made again.
            codes: The digests of the recorded code and of the present code.
        """
        answered, executed, unreplayed = counts
        end = (
            f"; calls: {answered:,} answered from the record, {executed:,} executed, "
            f"{unreplayed:,} not made again"
        )
        return cls("the code or the input has changed", end, *codes)

    def text(self, difference: str) -> str:
        """Return the text of the notice, with the changes in *difference*."""
        changes = f" ({difference})" if difference else ""
        return f"{self.beginning}{changes}{self.end}"


def replay_notices(report: ReplayReport) -> list[Emit]:
    """Return the notices for the user, each an item of the stream of notices.

    Args:
        report: The report of the run, at its end.
    """
    lines: list[str | OtherCodeNotice | CodeNotice] = []
    for name, count in report.of_other_code.items():
        recorded, now = report.codes[name]
        new_count = report.used[name, now]
        lines.append(OtherCodeNotice(name, recorded, now, count, new_count))
    for name, count in report.recomputed.items():
        plural = "s" if count > 1 else ""
        beginning = f"`{name}`: {count:,} recorded result{plural} of other code"
        end = ", computed again (on_code_change='rerun')"
        lines.append(CodeNotice(beginning, end, *report.codes[name]))
    counts = report.answered, report.executed, report.unreplayed
    if report.is_changed and any(counts):
        lines.append(CodeNotice.of_body(counts, report.body_codes))
    for name, values in report.unseen.items():
        lines.append(unseen_notice(name, values))
    return [Emit("notices", line) for line in lines]
