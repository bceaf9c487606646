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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from flowpregel._code.digest import SOURCES
from flowpregel._core.program import Program
from flowpregel._core.provenance import (
    CodeChange,
    CodeComparison,
    CodePolicy,
    OtherCodeNotice,
    first_difference,
)
from flowpregel._core.records import Saved
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.errors import CodeChangedError


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

    def is_rerun(self, policy: CodePolicy, what: str) -> bool:
        """Return whether what is of other code is made anew.

        Args:
            policy: The ``on_code_change`` of the run; that of a task counts more.
            what: The name of the result, for the error.

        Raises:
            CodeChangedError: Something is of other code, and that is not wanted.
        """
        for change in self.changes:
            if (change.policy or policy) == "error":
                raise CodeChangedError(change.name, what, change.recorded, change.now)
        return any((change.policy or policy) == "rerun" for change in self.changes)

    def notice(self, saver: BaseCheckpointSaver) -> str:
        """Return the notice that the kept result of a run is one of other code."""
        at = datetime.fromtimestamp(self.saved.checkpoint.at / 1e9).astimezone()
        names = ", ".join(f"`{change.name}`" for change in self.changes)
        text = (
            f"kept result of {at:%Y-%m-%d %H:%M}; the code of {names} changed since; "
            "on_code_change='rerun' or again=True makes it anew"
        )
        difference = difference_in(saver, self.changes[0].recorded, self.changes[0].now)
        return f"{text}: {difference}" if difference else text

    def node_notices(self) -> tuple[OtherCodeNotice, ...]:
        """Return the notices that results of finished nodes are of other code."""
        return tuple(
            OtherCodeNotice(change.name, change.recorded, change.now, change.results, 0)
            for change in self.changes
        )


def kept_results(
    program: Program, saver: BaseCheckpointSaver, saved: Saved
) -> KeptResults:
    """Compare the results of nodes that led to a checkpoint with the code as it is
    now.
    """
    comparison, first_checkpoint = CodeComparison(program), None
    for identifier, ran in saver.node_results(saved.address):
        if comparison.add(ran):
            first_checkpoint = identifier
    return KeptResults(
        saved, comparison.changes, frozenset(comparison.unknown), first_checkpoint
    )


def difference_in(saver: BaseCheckpointSaver, recorded: str, now: str) -> str:
    """Return the first line in which the sources of two digests differ; empty: not
    known.
    """
    return first_difference(saver.source_of(recorded), SOURCES.get(now, ""))
