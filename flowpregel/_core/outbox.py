"""The writes that a run will store with its next commit, and the effects that must
follow that commit.

A run shows nothing before the writes that caused it are stored. So effects that show a
result (to the stream, to a body that waits, to the cache) are collected here while
events are handled, beside the writes that record the result. `Run.flush` then returns
the commit of the writes, followed by the effects.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flowpregel._core.effects import (
    CacheKey,
    Call,
    Effect,
    Emit,
    Resolve,
    SaveState,
)
from flowpregel._core.ids import AttemptRecord
from flowpregel._core.records import Outcome, TaskWrites


@dataclass(slots=True, eq=False)
class Outbox:
    """The writes and effects of a run that wait for the next commit."""

    is_deferred: bool = False
    """True if nothing is stored before the run ends (``durability="exit"``)."""
    holds_attempts: bool = False
    """True if the records of nodes' attempts are stored in checkpoints, and not with
    the writes of tasks.
    """
    writes: list[TaskWrites] = field(default_factory=list)
    """The pending writes to store with the next batch."""
    effects: list[Effect] = field(default_factory=list)
    """The effects to perform after the commit that stores their causes."""
    step_attempts: list[AttemptRecord] = field(default_factory=list)
    """The records of nodes' attempts in this superstep that are stored in the next
    checkpoint, and not with writes.
    """
    unstored_attempts: list[AttemptRecord] = field(default_factory=list)
    """The records of nodes' attempts in the earlier supersteps since the newest stored
    checkpoint, which are stored in the next one too.
    """
    has_unstored_input: bool = False
    """True if the input of the run is not stored yet."""
    claims: set[CacheKey] = field(default_factory=set)
    """The keys of the shared results that this run has claimed, and so must compute or
    release.
    """
    notices: set[str] = field(default_factory=set)
    """The subjects of the notices that the user has already received."""

    def add_attempt(self, attempt: AttemptRecord) -> None:
        """Add the record of a node's attempt to the next checkpoint, if it names the
        code that made the node's writes, or results that the node used.
        """
        if attempt.code or attempt.used:
            self.step_attempts.append(attempt)

    def resolve(self, call: Call | SaveState, outcome: Outcome) -> None:
        """Give the caller of *call* its *outcome* after the next commit."""
        last = self.effects[-1] if self.effects else None
        if not isinstance(last, Resolve):
            last = Resolve([])
            self.effects.append(last)
        last.outcomes.append((call, outcome))

    def notify(self, text: str, subject: str | None = None) -> None:
        """Give the user a notice after the next commit.

        Args:
            text: The text of the notice.
            subject: The subject. Further notices with the same subject are dropped.
                None means that the text itself is the subject.
        """
        subject = text if subject is None else subject
        if subject not in self.notices:
            self.notices.add(subject)
            self.effects.append(Emit("notices", text))
