"""Signals: values that other programs send to a run. One call receives each signal.

Signals are stored beside the pending writes of the thread, and are deleted with the
thread.
"""

from __future__ import annotations

from typing import Any

from flowpregel._core.records import Address
from flowpregel.checkpoint.layout import SIGNALS, Tables, digest, sidecar_key


def send(
    tables: Tables, transaction: Any, thread_id: str, name: str, data: bytes
) -> None:
    """Store an encoded value after the values that were sent before.

    The thread need not exist yet.
    """
    namespace = tables.ensure_namespace(transaction, Address(thread_id))
    prefix = sidecar_key(SIGNALS, namespace.prefix) + digest(name)
    signals = tables.writes.scan(transaction, prefix, backwards=True)
    last, _ = next(signals, (prefix + bytes(8), b""))
    number = 1 + int.from_bytes(last[len(prefix) :], "big")
    record = tables.record_of((data, None))
    tables.writes.put(transaction, prefix + number.to_bytes(8, "big"), record)


def unreceived(
    tables: Tables, transaction: Any, thread_id: str, name: str, receiver: str
) -> tuple[bytes, bytes] | None:
    """Return the key and value of the signal that *receiver* has received.

    If *receiver* has received no signal, return the first signal without a receiver, or
    None.
    """
    namespace = tables.namespace(transaction, Address(thread_id))
    if namespace is None:
        return None
    first_free = None
    prefix = sidecar_key(SIGNALS, namespace.prefix) + digest(name)
    for key, record in tables.writes.scan(transaction, prefix):
        data, received_by = tables.fields_of(record)
        if received_by == receiver:
            return key, data
        if received_by is None and first_free is None:
            first_free = key, data
    return first_free


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
    tables.writes.put(transaction, key, tables.record_of((data, receiver)))
    return data
