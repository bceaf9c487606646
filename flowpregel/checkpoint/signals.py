"""Signals: values that were sent to a run from elsewhere, each received by one call of
it.

They lie beside the pending writes of their thread, and go with it.
"""

from __future__ import annotations

from typing import Any

from flowpregel._core.records import Address
from flowpregel.checkpoint.layout import SIGNALS, Tables, beside, digest


def send(
    tables: Tables, transaction: Any, thread_id: str, name: str, data: bytes
) -> None:
    """Keep a value, encoded, behind those that were sent before; the thread may be to
    come.
    """
    namespace = tables.ensure_namespace(transaction, Address(thread_id))
    place = beside(SIGNALS, namespace.prefix) + digest(name)
    last = next(
        tables.writes.scan(transaction, place, backwards=True), (place + bytes(8), b"")
    )[0]
    number = 1 + int.from_bytes(last[len(place) :], "big")
    record = tables.record_of((data, None))
    tables.writes.put(transaction, place + number.to_bytes(8, "big"), record)


def unreceived(
    tables: Tables, transaction: Any, thread_id: str, name: str, receiver: str
) -> tuple[bytes, bytes] | None:
    """Return the key of what is *receiver*'s, or of the first that is nobody's, and the
    value.
    """
    namespace = tables.namespace(transaction, Address(thread_id))
    free = None
    if namespace is not None:
        place = beside(SIGNALS, namespace.prefix) + digest(name)
        for key, record in tables.writes.scan(transaction, place):
            data, received_by = tables.fields_of(record)
            if received_by == receiver:
                return key, data
            if received_by is None and free is None:
                free = key, data
    return free


def receive(
    tables: Tables, transaction: Any, thread_id: str, name: str, receiver: str
) -> bytes | None:
    """Return what `unreceived` finds, and make it *receiver*'s: each time it asks it
    gets that.
    """
    found = unreceived(tables, transaction, thread_id, name, receiver)
    if found is None:
        return None
    tables.writes.put(transaction, found[0], tables.record_of((found[1], receiver)))
    return found[1]
