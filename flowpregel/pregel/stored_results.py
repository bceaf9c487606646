"""The comparison of the code that computed stored results with the present code. A run
uses stored results without running their tasks.

==================  ======================================  ============================
``on_code_change``  a finished run is requested again       an unfinished run resumes
==================  ======================================  ============================
``"keep"``          its result is returned, and a notice    results are used; a notice
``"rerun"``         the run restarts from its input: its    the run resumes at the
                    body runs, and so do calls whose code   checkpoint where the first
                    has changed                             changed node started
``"error"``         `CodeChangedError`                      `CodeChangedError`
==================  ======================================  ============================

If a call used a file whose content has changed since, the change is treated like
changed code, but the error is `InputMismatchError`. A run with ``adopt=True`` accepts
the new content too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flowpregel._core.effects import Emit, Load, LoadAttempts, Steps
from flowpregel._core.files import USED_FILE, FileContent
from flowpregel._core.ids import AttemptRecord
from flowpregel._core.program import Options, Program
from flowpregel._core.provenance import (
    CodeChange,
    CodeComparison,
    OtherCodeNotice,
)
from flowpregel._core.records import Saved
from flowpregel._inspection.code_changes import difference_in
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import CodeChangedError, InputMismatchError
from flowpregel.pregel.changed_files import changes_since

_MOST_DIFFERENCES = 3
"""The number of changed tasks and nodes whose changes a notice shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResults:
    """The results of nodes that led to a checkpoint, with the differences between the
    code that computed them and the present code.
    """

    saved: Saved
    """The checkpoint to which the results led."""
    changes: Sequence[CodeChange]
    """The changes in the code of the nodes and of the tasks that the nodes called."""
    unknown: frozenset[str]
    """The names of called tasks that cannot be compared, because no node's code names
    them.
    """
    first_checkpoint: str | None
    """The id of the checkpoint from which the first node started whose code or files
    have changed. None if nothing has changed, or if that checkpoint is not stored.
    """
    changed_files: Sequence[str] = ()
    """A line of text for each changed file among the files that the nodes' calls have
    used.
    """

    def is_rerun(
        self,
        options: Options,
        result_name: str,
    ) -> bool:
        """Return whether results are recomputed because code or files have changed.

        Args:
            options: The options of the run. The ``on_code_change`` of a task overrides
                the run's.
            result_name: The name of the result, for the error.

        Raises:
            CodeChangedError: The code of a result has changed, and the policy is
                ``"error"``.
            InputMismatchError: A file has changed, and the policy is ``"error"``.
        """
        policy = options.on_code_change
        for change in self.changes:
            if (change.policy or policy) == "error":
                raise CodeChangedError(
                    change.name,
                    result_name,
                    change.recorded,
                    change.now,
                )
        if self.changed_files:
            if options.adopts_input or policy == "rerun":
                return True
            if policy == "error":
                thread_id = self.saved.address.thread_id
                reason = "; ".join(self.changed_files)
                reason += " (on_code_change='keep' uses the recorded result)"
                raise InputMismatchError(thread_id, reason, adopts=True)
        return any((change.policy or policy) == "rerun" for change in self.changes)

    def notice(self, saver: BaseCheckpointSaver) -> str:
        """Return a notice that code or files have changed since the result was stored.

        The notice is empty if neither has changed.
        """
        if not (self.changes or self.changed_files):
            return ""
        at = datetime.fromtimestamp(self.saved.checkpoint.at / 1e9).astimezone()
        parts = [f"stored result of {at:%Y-%m-%d %H:%M}"]
        if self.changes:
            names = ", ".join(f"`{change.name}`" for change in self.changes)
            parts.append(f"the code of {names} has changed since")
        parts.extend(self.changed_files)
        parts.append("on_code_change='rerun' or again=True computes it again")
        text = "; ".join(parts)
        if not self.changes:
            return text
        differences: dict[str, None] = {}
        for change in self.changes:
            difference = difference_in(saver, change.recorded, change.now)
            differences[difference] = None
        differences.pop("", None)
        if not differences:
            return text
        changes = "; ".join([*differences][:_MOST_DIFFERENCES])
        return f"{text}: {changes}"

    def node_notices(self) -> list[OtherCodeNotice | str]:
        """Return a notice for each node or file that has changed since its result was
        stored.
        """
        notices: list[OtherCodeNotice | str] = []
        for change in self.changes:
            notice = OtherCodeNotice(
                change.name,
                change.recorded,
                change.now,
                change.results,
                0,
            )
            notices.append(notice)
        advice = (
            "the results of calls with it are used as recorded "
            "(on_code_change='rerun' computes them again)"
        )
        notices.extend(f"{text}; {advice}" for text in self.changed_files)
        return notices


def compare_stored_results(
    program: Program,
    saved: Saved,
    results: Iterable[tuple[str | None, AttemptRecord]],
) -> StoredResults:
    """Compare the code that computed the results of nodes up to a checkpoint with the
    present code.

    Args:
        program: The program with the present code.
        saved: The checkpoint to which the results led.
        results: The records that `BaseCheckpointSaver.node_results` yields for it.
    """
    comparison = CodeComparison(program)
    first_checkpoint: str | None = None
    changed_files: dict[str, None] = {}
    for checkpoint_id, ran in results:
        has_changed = comparison.add(ran)
        texts = _changes_of_files(ran)
        changed_files.update(dict.fromkeys(texts))
        if has_changed or texts:
            first_checkpoint = checkpoint_id
    return StoredResults(
        saved=saved,
        changes=comparison.changes,
        unknown=frozenset(comparison.unknown),
        first_checkpoint=first_checkpoint,
        changed_files=tuple(changed_files),
    )


def after_notices_of_nodes(
    program: Program,
    options: Options,
    steps: Steps,
) -> Steps:
    """Emit the notices on the finished nodes of a nested run that resumes, and then
    yield the effects (requests to the engine) in *steps*.

    Args:
        program: The program of the nested graph.
        options: The options of the nested run.
        steps: The effects of the nested run, as a generator.
    """
    # A workflow's body gets no notice: its calls are compared with the recorded calls
    # when it makes them.
    has_body = any(node.role == "body" for node in program.nodes.values())
    saved: Saved | None = None
    if options.address is not None and not has_body:
        saved = yield Load(options.address)
    if saved is not None:
        results = yield LoadAttempts(saved.address)
        stored = compare_stored_results(program, saved, results)
        for notice in stored.node_notices():
            yield Emit("notices", notice)
    return (yield from steps)


def _changes_of_files(ran: AttemptRecord) -> list[str]:
    """Return a line of text for each changed file that an attempt used."""
    files: list[FileContent] = []
    for name, digest, size in ran.used:
        if name.startswith(USED_FILE):
            files.append((name.removeprefix(USED_FILE), digest, size))
    return changes_since(files) if files else []
