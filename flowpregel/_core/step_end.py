"""The end of a superstep that no barrier follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepEnd:
    """The reasons why a superstep ends without a barrier."""

    is_paused: bool = False
    """True if a task asks a question."""
    failure: BaseException | None = None
    """The first error that makes the run fail."""
    command: object = None
    """The `Command` of a task for the parent graph."""

    def fail(self, error: BaseException) -> bool:
        """Record *error* as the failure of the superstep, and return whether it is the
        first failure.
        """
        is_first = self.failure is None
        if is_first:
            self.failure = error
        return is_first
