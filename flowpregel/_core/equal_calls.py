"""Equal calls of one body whose records are used in another order than theirs.

Calls that ask for the same are known by their number among these. The number is given
when a call can start, so it may differ from the one in the recorded run where calls
wait for values. `lookup` finds the record of the same code then, and notes here which
numbers are used ahead and which are left.
"""

from __future__ import annotations

from collections.abc import Iterator

Question = tuple[str, str]
"""The name of the task and the digest of the arguments."""
MOST_LATER = 32
"""The number of later calls among which one of the same code is looked up."""


class ReorderedCalls:
    """The numbers of recorded calls that are used out of order, by question."""

    def __init__(self) -> None:
        self._ahead: set[tuple[Question, int]] = set()
        self._skipped: dict[Question, set[int]] = {}

    def is_taken(self, question: Question, number: int) -> bool:
        """Return whether the record of *number* has answered an earlier call."""
        return (question, number) in self._ahead

    def candidates(self, question: Question, number: int) -> Iterator[int]:
        """Yield the unused numbers beside *number*: skipped ones, then later ones."""
        skipped = self._skipped.get(question)
        if skipped:
            yield from sorted(skipped)
        later = number
        last = number + MOST_LATER
        while later < last:
            later += 1
            if not self.is_taken(question, later):
                yield later

    def note(
        self,
        question: Question,
        number: int,
        used: int,
    ) -> None:
        """Note that the record of *used* answers the call *number*."""
        skipped = self._skipped.setdefault(question, set())
        if used < number:
            skipped.discard(used)
        else:
            self._ahead.add((question, used))
        if not self.is_taken(question, number):
            skipped.add(number)

    def take_skipped(self, question: Question) -> int:
        """Return the first skipped number, and note that it is used.

        There is one for each call whose own number is taken.
        """
        skipped = self._skipped[question]
        number = min(skipped)
        skipped.discard(number)
        return number

    def clear(self) -> None:
        """Forget all numbers, for another attempt of the body."""
        self._ahead.clear()
        self._skipped.clear()
