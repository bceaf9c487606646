"""Recorded results that a run uses without running anything, compared with the code of
now.

==================  ======================================  ============================
``on_code_change``  a finished run is asked for again       an unfinished run resumes
==================  ======================================  ============================
``"keep"``          its result is returned, and a notice    results are used; a notice
``"rerun"``         it restarts from its input: calls of    it resumes at the checkpoint
                    other code run, and so does its body    where the first one started
``"error"``         `CodeChangedError`                      `CodeChangedError`
==================  ======================================  ============================

A file with other content than when a call took it counts as other code does, but for
its error, which is `InputMismatchError`. A run that adopts its input adopts it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from flowpregel._code.sources import SOURCES
from flowpregel._core.files import USED_FILE, FileContent
from flowpregel._core.program import Options, Program
from flowpregel._core.provenance import (
    CodeChange,
    CodeComparison,
    OtherCodeNotice,
    first_difference,
)
from flowpregel._core.records import Saved
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import CodeChangedError, InputMismatchError
from flowpregel.pregel.file_digests import changes_since


@dataclass(frozen=True, slots=True)
class KeptResults:
    """The results of nodes that are behind a checkpoint."""

    saved: Saved
    changes: Sequence[CodeChange]
    """The nodes, and the tasks that they called, whose code has changed since."""
    unknown: frozenset[str]
    """The names of tasks that the nodes called and do not name, so that they are not
    compared.
    """
    first_checkpoint: str | None
    """The id of the checkpoint from which the first node of these started."""
    changed_files: Sequence[str] = ()
    """A text for each file that the calls of the nodes took and that has changed."""

    def is_rerun(self, options: Options, what: str) -> bool:
        """Return whether what is of other code, or of other files, is made anew.

        Args:
            options: Those of the run; the ``on_code_change`` of a task counts more.
            what: The name of the result, for the error.

        Raises:
            CodeChangedError: Something is of other code, and that is not wanted.
            InputMismatchError: A file has changed, and that is not wanted.
        """
        policy = options.on_code_change
        for change in self.changes:
            if (change.policy or policy) == "error":
                raise CodeChangedError(change.name, what, change.recorded, change.now)
        if self.changed_files:
            if options.adopts_input or policy == "rerun":
                return True
            if policy == "error":
                thread_id = self.saved.address.thread_id
                why = "; ".join(self.changed_files)
                why += " (on_code_change='keep' uses what is recorded)"
                raise InputMismatchError(thread_id, why, adopts=True)
        return any((change.policy or policy) == "rerun" for change in self.changes)

    def notice(self, saver: BaseCheckpointSaver) -> str:
        """Return the notice that the kept result of a run is one of other code, or of
        other files; empty: it is neither.
        """
        if not (self.changes or self.changed_files):
            return ""
        at = datetime.fromtimestamp(self.saved.checkpoint.at / 1e9).astimezone()
        parts = [f"kept result of {at:%Y-%m-%d %H:%M}"]
        if self.changes:
            names = ", ".join(f"`{change.name}`" for change in self.changes)
            parts.append(f"the code of {names} changed since")
        parts.extend(self.changed_files)
        parts.append("on_code_change='rerun' or again=True makes it anew")
        text = "; ".join(parts)
        if not self.changes:
            return text
        difference = difference_in(saver, self.changes[0].recorded, self.changes[0].now)
        return f"{text}: {difference}" if difference else text

    def node_notices(self) -> tuple[OtherCodeNotice | str, ...]:
        """Return the notices that results of finished nodes are of other code, or of
        other files.
        """
        code_notices = [
            OtherCodeNotice(change.name, change.recorded, change.now, change.results, 0)
            for change in self.changes
        ]
        file_notices = [
            f"{text}; the results of calls with it are used as recorded "
            "(on_code_change='rerun' makes them anew)"
            for text in self.changed_files
        ]
        return *code_notices, *file_notices


def kept_results(
    program: Program, saver: BaseCheckpointSaver, saved: Saved
) -> KeptResults:
    """Compare the results of nodes that led to a checkpoint with the code as it is
    now.
    """
    comparison, first_checkpoint = CodeComparison(program), None
    changed_files: dict[str, None] = {}
    for identifier, ran in saver.node_results(saved.address):
        has_changed = comparison.add(ran)
        files: list[FileContent] = []
        for name, digest, size in ran.used:
            if name.startswith(USED_FILE):
                files.append((name.removeprefix(USED_FILE), digest, size))
        texts = changes_since(files) if files else ()
        changed_files.update(dict.fromkeys(texts))
        if has_changed or texts:
            first_checkpoint = identifier
    return KeptResults(
        saved,
        comparison.changes,
        frozenset(comparison.unknown),
        first_checkpoint,
        tuple(changed_files),
    )


def difference_in(saver: BaseCheckpointSaver, recorded: str, now: str) -> str:
    """Return the first line in which the sources of two digests differ; empty: not
    known.
    """
    return first_difference(saver.source_of(recorded), SOURCES.get(now, ""))
