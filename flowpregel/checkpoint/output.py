"""A buffer for the output of tasks, which is the text that they print and log.

::

    add --> pending, by task --with the next commit, or within a second--> writes

Of each task's output, the beginning and the end are stored. The output of a task
arrives before its result, and is therefore written in the same transaction as the
result or in an earlier transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from flowpregel._core.records import Address
from flowpregel.checkpoint.call_output import CallOutput
from flowpregel.checkpoint.layout import (
    OUTPUT,
    checkpoint_key,
    digest,
    sidecar_key,
)
from flowpregel.checkpoint.tables import Tables
from flowpregel.errors import StoreError

PERIOD: Final = 1.0
"""Seconds after which output is written even if nothing is committed."""


Pending: TypeAlias = dict[tuple[Address, str], CallOutput]
"""The output that is not in the store yet, by checkpoint and task."""


class OutputBuffer:
    """A buffer for output that is not in the store yet. Any OS thread may use it.

    Args:
        tables: The tables of the store.
        limit: The limit on the stored output of a task, in bytes. 0 stores nothing.
    """

    def __init__(self, tables: Tables, limit: int) -> None:
        self.pending: Pending = {}
        self._tables = tables
        self._limit = limit
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def add(self, address: Address, output: CallOutput) -> None:
        """Append *output* to the pending output of the same task."""
        if self._limit <= 0:
            return
        with self._lock:
            self._append(self.pending, {(address, output.task_id): output})
            if self._timer is None:
                self._timer = threading.Timer(PERIOD, self.flush)
                self._timer.daemon = True
                # While the program ends, no OS thread can be started. In this case, the
                # output is written when the store is closed.
                with suppress(RuntimeError):
                    self._timer.start()

    def flush(self) -> None:
        """Write the pending output in a transaction of its own."""
        if self.pending:
            # The error can be ignored, because the output becomes pending again, and
            # the run's next commit raises the error.
            with suppress(StoreError):
                self.write(lambda transaction: None)

    def write(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(transaction)``, called in a write transaction that also writes
        the pending output.

        If the transaction fails, the output becomes pending again, since it may belong
        to other runs.
        """
        outputs: Pending = {}

        def both(transaction: Any) -> Any:
            # The pending output is taken inside the transaction, when no other
            # transaction can be writing, so that it is written in the order of arrival.
            # If the store repeats the transaction, more output may have arrived, so it
            # is appended.
            with self._lock:
                self._append(outputs, self.pending)
                self.pending = {}
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            result = work(transaction)
            for (address, _), output in outputs.items():
                self._put(transaction, address, output)
            return result

        try:
            return self._tables.write(both)
        # `KeyboardInterrupt` need not be caught, because it is raised only before the
        # transaction begins, or after the commit.
        except Exception:
            with self._lock:
                self._append(outputs, self.pending)
                self.pending = outputs
                self._timer = None
            raise

    def _append(self, target: Pending, more: Pending) -> None:
        """Append each output in *more* to the output of the same task in *target*."""
        for key, output in more.items():
            empty = output._replace(head=b"", tail=b"", size=0)
            earlier = target.get(key, empty)
            target[key] = earlier.and_then(output, self._limit)

    def _put(self, transaction: Any, address: Address, output: CallOutput) -> None:
        """Append *output* to the stored output of the same task, in a transaction."""
        tables = self._tables
        namespace = tables.ensure_namespace(transaction, address)
        pending = checkpoint_key(namespace.prefix, output.checkpoint_id)
        key = sidecar_key(OUTPUT, pending) + digest(output.task_id)
        earlier_data = tables.writes.get(transaction, key)
        if earlier_data is not None:
            earlier = CallOutput(*tables.fields_of(earlier_data))
            output = earlier.and_then(output, self._limit)
        tables.writes.put(transaction, key, tables.record_of(tuple(output)))


def stored_outputs(
    tables: Tables, address: Address, transaction: Any
) -> list[CallOutput]:
    """Return the stored output of the tasks that started from the checkpoint at
    *address*, in the order in which the tasks first printed.
    """
    namespace = tables.namespace(transaction, address)
    if namespace is None:
        return []
    pending = namespace.prefix
    if address.checkpoint_id is not None:
        pending = checkpoint_key(pending, address.checkpoint_id)
    records = tables.writes.scan(transaction, sidecar_key(OUTPUT, pending))
    outputs = [CallOutput(*tables.fields_of(data)) for _, data in records]
    return sorted(outputs, key=lambda output: output.began)
