"""What tasks print and log: its beginning and its end, on its way into the store.

::

    add --> pending, by task --with the next commit, or within a second--> writes

What a task has printed is in the transaction of its result: it came before that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from flowpregel._core.records import Address
from flowpregel.checkpoint.layout import OUTPUT, Tables, beside, checkpoint_key, digest
from flowpregel.errors import StoreError

PERIOD: Final = 1.0
"""Seconds after which what came is written though nothing is committed."""


class CallOutput(NamedTuple):
    """What a call, or a node's task, has printed and logged, in all its attempts.

    stdout, stderr and log records, in the order in which they came, as UTF-8. It is
    what the task wrote, terminal escapes included.
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
        """Return what is kept of this and of *more* after it: *limit* bytes, half of
        each end.
        """
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
        cut = (
            f"\n[... {left - len(rest):,} bytes were not kept ...]\n"
            if left > len(rest)
            else ""
        )
        return (
            self.head[seen:].decode(errors="replace")
            + cut
            + rest.decode(errors="replace")
        )


Pending: TypeAlias = dict[tuple[Address, str], CallOutput]
"""By checkpoint and task."""


class OutputBuffer:
    """What has come and is not in the store yet. Any OS thread may use it.

    Args:
        tables: The store's records.
        limit: The most bytes that are kept of a task; 0: nothing is.
    """

    def __init__(self, tables: Tables, limit: int) -> None:
        self.pending: Pending = {}
        self._tables = tables
        self._limit = limit
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def add(self, address: Address, output: CallOutput) -> None:
        """Add *output* to what there is of its task."""
        if self._limit <= 0:
            return
        with self._lock:
            self._append(self.pending, {(address, output.task_id): output})
            if self._timer is None:
                self._timer = threading.Timer(PERIOD, self.flush)
                self._timer.daemon = True
                # the program is ending, and closes the store
                with suppress(RuntimeError):
                    self._timer.start()

    def flush(self) -> None:
        """Write what is pending in a transaction of its own."""
        if self.pending:
            with suppress(StoreError):  # a run that cannot commit is told so
                self.write(lambda transaction: None)

    def write(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)`` of one that writes, into which is put what is
        pending then.

        If it fails, that is pending again: it may be of other runs.
        """
        taken: Pending = {}

        def both(transaction: Any) -> Any:
            # No other transaction is under way: what came first is written first. This
            # one may be begun anew; more may have come by then.
            with self._lock:
                self._append(taken, self.pending)
                self.pending = {}
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            result = work(transaction)
            for (address, _), output in taken.items():
                self._put(transaction, address, output)
            return result

        try:
            return self._tables.write(both)
        # not Ctrl-C, which comes before it is begun or after it is kept
        except Exception:
            with self._lock:
                self._append(taken, self.pending)
                self.pending, self._timer = taken, None
            raise

    def _append(self, kept: Pending, more: Pending) -> None:
        """Put what each task has printed behind what there is of it."""
        for place, output in more.items():
            empty = output._replace(head=b"", tail=b"", size=0)
            kept[place] = kept.get(place, empty).and_then(output, self._limit)

    def _put(self, transaction: Any, address: Address, output: CallOutput) -> None:
        """Put what a task has printed after what is there."""
        tables = self._tables
        namespace = tables.ensure_namespace(transaction, address)
        pending = checkpoint_key(namespace.prefix, output.checkpoint_id)
        key = beside(OUTPUT, pending) + digest(output.task_id)
        if (known := tables.writes.get(transaction, key)) is not None:
            output = CallOutput(*tables.fields_of(known)).and_then(output, self._limit)
        tables.writes.put(transaction, key, tables.record_of(tuple(output)))


def stored_outputs(
    tables: Tables, address: Address, transaction: Any
) -> list[CallOutput]:
    """Return what is kept of the tasks that started at *address*, the first to print
    first.
    """
    namespace = tables.namespace(transaction, address)
    if namespace is None:
        return []
    pending = namespace.prefix
    if address.checkpoint_id is not None:
        pending = checkpoint_key(pending, address.checkpoint_id)
    found = tables.writes.scan(transaction, beside(OUTPUT, pending))
    kept = [CallOutput(*tables.fields_of(data)) for _, data in found]
    return sorted(kept, key=lambda output: output.began)
