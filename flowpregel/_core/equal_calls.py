"""Equal calls of one body, which may get the records of one another.

Equal calls have the same task and arguments, and are distinguished by a number that
counts them. A call gets its number when it can start. If calls wait for values, the
number may differ from that in the recorded run. Then `lookup` finds a record with the
same code under another number, and records here which numbers were used ahead of order
and which were skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

CallGroup: TypeAlias = tuple[str, str]
"""A group of equal calls: the name of the task, and the digest of the arguments."""
MOST_LATER = 32
"""The greatest number of later records that are searched for one with the call's code,
if the call's own record has different code.
"""


class ReorderedCalls:
    """The recorded calls of one body (the code of a workflow or task) that were used
    out of order. Equal calls are numbered in the order in which they were recorded.
    """

    def __init__(self) -> None:
        self._ahead: set[tuple[CallGroup, int]] = set()
        self._skipped: dict[CallGroup, set[int]] = {}

    def is_taken(self, group: CallGroup, number: int) -> bool:
        """Return whether the record of *number* was used for an earlier call."""
        return (group, number) in self._ahead

    def candidates(self, group: CallGroup, number: int) -> Iterator[int]:
        """Yield the unused numbers other than *number*: first the skipped numbers, then
        later numbers.
        """
        skipped = self._skipped.get(group)
        if skipped:
            yield from sorted(skipped)
        later = number
        last = number + MOST_LATER
        while later < last:
            later += 1
            if not self.is_taken(group, later):
                yield later

    def take(
        self,
        group: CallGroup,
        number: int,
        used: int,
    ) -> None:
        """Note that the call with *number* gets the result that is recorded for the
        call with the number *used*.
        """
        skipped = self._skipped.setdefault(group, set())
        if used < number:
            skipped.discard(used)
        else:
            self._ahead.add((group, used))
        if not self.is_taken(group, number):
            skipped.add(number)

    def take_skipped(self, group: CallGroup) -> int:
        """Return the first skipped number, and count it as used.

        For each call whose own number was used by another call, there is a skipped
        number.
        """
        skipped = self._skipped[group]
        number = min(skipped)
        skipped.discard(number)
        return number
