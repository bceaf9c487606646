"""Results taken back, so that the next run makes their calls again, and what was made of them.

::

    body (taken back)
     ├── parse('a.txt')       stays
     ├── parse('b.txt')       taken back
     │    └── clean('b')      stays: it answers if it is asked for again
     └── total([1, 2])        stays, as that one

What such a call calls itself, and what its caller calls after it, may be something else the
next time. That is then no sign of chance.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flowpregel._core.asked import NOWHERE, CallRecord
from flowpregel._core.ids import caller_of
from flowpregel._core.records import CALLED, RESUME, Address
from flowpregel._lmdb.codec import ValueCodec
from flowpregel.checkpoint.base import WRITES_IDX_MAP
from flowpregel.checkpoint.retention import forget_checkpoints
from flowpregel.checkpoint.tables import Tables, WritesRecord, checkpoint_key
from flowpregel.errors import ConfigurationError

_POSITION = WRITES_IDX_MAP[CALLED]


def take_back(
    tables: Tables, transaction: Any, codec: ValueCodec, address: Address, calls: Collection[str]
) -> None:
    """Take results of calls back, those of the tasks that made them, and all later checkpoints.

    Args:
        tables: The store's records.
        transaction: A write transaction.
        codec: The store's.
        address: The checkpoint that the calls left something on.
        calls: Their ids.

    Raises:
        ConfigurationError: It has no such call.
    """
    namespace = tables.namespace(transaction, address.thread_id, address.namespace)
    if namespace is None or address.checkpoint_id is None:
        raise ConfigurationError(f"there is nothing to take back at {address}")
    pending = tables.writes.scan(
        transaction, checkpoint_key(namespace.prefix, address.checkpoint_id)
    )
    tasks = {key: WritesRecord(*tables.fields_of(data)) for key, data in pending}
    chosen = {task.path for task in tasks.values() if task.task_id in calls}
    taken = {*chosen}
    for path in chosen:
        while path := caller_of(path):
            taken.add(path)
    # By caller, the path after which its calls may be others the next time.
    first = {caller_of(path): path for path in sorted(taken, reverse=True)}
    first.update(dict.fromkeys(chosen, ""))
    for key, task in tasks.items():
        if task.path in taken:
            answers = {at: write for at, write in task.writes.items() if write[0] == RESUME}
            task = task._replace(writes=answers, ran=None)
        elif task.path > first.get(caller_of(task.path), task.path):
            task = _anywhere(task, codec)
        else:
            continue
        tables.writes.put(transaction, key, tables.record_of(tuple(task)))
    later = [
        id for id, _ in tables.newest_first(transaction, namespace) if id > address.checkpoint_id
    ]
    forget_checkpoints(tables, transaction, address, later)


def _anywhere(task: WritesRecord, codec: ValueCodec) -> WritesRecord:
    """Return what is kept of a call, without its place among the calls of its body."""
    _, data = task.writes.get(_POSITION, (CALLED, b""))
    asked = codec.decode(data, "a call") if data else None
    if asked is None:
        return task
    changed = codec.encode(tuple(CallRecord(*asked)._replace(place=NOWHERE)), "a call")
    return task._replace(writes={**task.writes, _POSITION: (CALLED, changed)})
