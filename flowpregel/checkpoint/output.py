"""What a call has printed and logged, as far as it is kept: the beginning and the end of it."""

from __future__ import annotations

from typing import NamedTuple


class CallOutput(NamedTuple):
    """What a call, or a node's task, has printed and logged, in all its attempts.

    stdout, stderr and log records, in the order in which they came, as UTF-8. It is what the
    task wrote, terminal escapes included.
    """

    checkpoint_id: str
    """The checkpoint that the task started from."""
    task_id: str
    name: str
    """The call as a person reads it, or the name of the node."""
    began: int
    """When the first of it came (wall-clock nanoseconds)."""
    head: bytes
    """The beginning."""
    tail: bytes
    """The end, if that is not in *head*."""
    size: int
    """The bytes of all that was written."""

    def and_then(self, more: CallOutput, limit: int) -> CallOutput:
        """Return what is kept of this and of *more* after it: *limit* bytes, half of each end."""
        # Nothing is missing within either, unless both its ends have their full length.
        ends = self.head + self.tail + more.head + more.tail
        half = limit // 2
        tail = ends[half:][-half:] if half else b""
        return self._replace(head=ends[:half], tail=tail, size=self.size + more.size)

    @property
    def text(self) -> str:
        """What is kept, with a line that says how much was cut, if anything was."""
        return self.after(0)

    def after(self, seen: int) -> str:
        """Return the text that came after the first *seen* bytes.

        Example:
            >>> output = CallOutput("", "", "parse('a')", 0, b"one ", b"three", 13)
            >>> print(output.text)
            one
            [... 4 bytes were not kept ...]
            three
            >>> output.after(8)
            'three'
        """
        left = self.size - max(seen, len(self.head))
        rest = self.tail[-left:] if left > 0 else b""
        cut = f"\n[... {left - len(rest):,} bytes were not kept ...]\n" if left > len(rest) else ""
        return self.head[seen:].decode(errors="replace") + cut + rest.decode(errors="replace")
