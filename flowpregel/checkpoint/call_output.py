"""The text that a task has printed and logged."""

from __future__ import annotations

from typing import NamedTuple


class CallOutput(NamedTuple):
    """The output of a call, or of a node's task, from all its attempts.

    It consists of stdout, stderr and log records, in the order in which they arrived,
    as UTF-8. Terminal escape sequences are included.
    """

    checkpoint_id: str
    """The id of the checkpoint from which the task started."""
    task_id: str
    """The id of the task."""
    name: str
    """The call as text, such as ``parse('a.txt')``, or the name of the node."""
    began: int
    """The time of the first output, in wall-clock nanoseconds."""
    head: bytes
    """The beginning of the output."""
    tail: bytes
    """The end of the output, without the bytes that are in *head*."""
    size: int
    """The total number of bytes that the task wrote, stored or not."""

    def and_then(self, more: CallOutput, limit: int) -> CallOutput:
        """Return this output followed by *more*, cut to *limit* bytes.

        One half of the limit is for the beginning, the other for the end.

        Args:
            more: The later output of the same task.
            limit: The greatest number of bytes to keep.

        Example:
            >>> first = CallOutput("", "", "f(4)", 0, b"one two ", b"", 8)
            >>> more = CallOutput("", "", "f(4)", 0, b"three", b"", 5)
            >>> both = first.and_then(more, limit=8)
            >>> both.head, both.tail, both.size
            (b'one ', b'hree', 13)
        """
        # Bytes may be missing between a head and a tail. The four parts can be joined
        # all the same. Where bytes are missing, the head and the tail both fill their
        # halves of the limit, so neither new half contains bytes from both sides of the
        # gap.
        ends = self.head + self.tail + more.head + more.tail
        half = limit // 2
        tail = ends[half:][-half:] if half else b""
        return self._replace(head=ends[:half], tail=tail, size=self.size + more.size)

    @property
    def text(self) -> str:
        """The stored text. If bytes were cut out, a line gives their number."""
        return self.after(0)

    def after(self, seen: int) -> str:
        """Return the text after the first *seen* bytes.

        Example:
            >>> output = CallOutput("", "", "parse('a')", 0, b"one", b"three", 12)
            >>> print(output.text)
            one
            [... 4 bytes were not kept ...]
            three
            >>> output.after(7)
            'three'
        """
        remaining = self.size - max(seen, len(self.head))
        rest = self.tail[-remaining:] if remaining > 0 else b""
        cut = ""
        if remaining > len(rest):
            missing = remaining - len(rest)
            cut = f"\n[... {missing:,} bytes were not kept ...]\n"
        beginning = self.head[seen:].decode(errors="replace")
        end = rest.decode(errors="replace")
        return f"{beginning}{cut}{end}"
