"""Signals: values that other programs send to a run. One call receives each signal.

Signals are stored beside the pending writes of the thread, and are deleted with the
thread.
"""

from __future__ import annotations

from typing import Any

from flowpregel._core.records import Address
from flowpregel.checkpoint.layout import (
    SIGNALS,
    NamespaceRecord,
    digest,
    sidecar_key,
)
from flowpregel.checkpoint.tables import Tables


def _signals_prefix(namespace: NamespaceRecord, name: str) -> bytes:
    """Return the prefix of the keys of the signals with a name. The number of the
    signal follows it.
    """
    return sidecar_key(SIGNALS, namespace.prefix) + digest(name)


def send(
    tables: Tables, transaction: Any, thread_id: str, name: str, data: bytes
) -> None:
    """Store an encoded value after the values that were sent before.

    The thread need not exist yet.
    """
    namespace = tables.ensure_namespace(transaction, Address(thread_id))
    prefix = _signals_prefix(namespace, name)
    number = 1
    newest_first = tables.writes.scan(transaction, prefix, backwards=True)
    newest = next(newest_first, None)
    if newest is not None:
        newest_key, _ = newest
        number += int.from_bytes(newest_key[len(prefix) :], "big")
    key = prefix + number.to_bytes(8, "big")
    record = tables.record_of((data, None))
    tables.writes.put(transaction, key, record)


def unreceived(
    tables: Tables, transaction: Any, thread_id: str, name: str, receiver: str
) -> tuple[bytes, bytes] | None:
    """Return the key and value of the signal that a call which waits for one gets.

    If the call, whose id is *receiver*, has received a signal in an earlier run, return
    that one. Otherwise return the first signal that no call has received, or None.
    """
    namespace = tables.namespace(transaction, Address(thread_id))
    if namespace is None:
        return None
    first_unreceived = None
    prefix = _signals_prefix(namespace, name)
    for key, record in tables.writes.scan(transaction, prefix):
        data, received_by = tables.fields_of(record)
        if received_by == receiver:
            return key, data
        if received_by is None and first_unreceived is None:
            first_unreceived = key, data
    return first_unreceived


def receive(
    tables: Tables, transaction: Any, thread_id: str, name: str, receiver: str
) -> bytes | None:
    """Return the value of the signal that `unreceived` finds, and record *receiver* as
    its receiver.

    The same receiver gets the same value every time.
    """
    signal = unreceived(tables, transaction, thread_id, name, receiver)
    if signal is None:
        return None
    key, data = signal
    record = tables.record_of((data, receiver))
    tables.writes.put(transaction, key, record)
    return data
