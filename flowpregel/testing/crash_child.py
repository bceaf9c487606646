"""The processes that `flowpregel.testing.crash` lets die.

::

    harness --orders--> nursery --fork--> child: the workflow, dies or ends
            <--pid, status--    <--wait--

The nursery is one process that has imported what a workflow needs and has no OS
threads; each order is run in a fork of it. So a child costs milliseconds, and
is a process of its own all the same.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import re
import struct
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flowpregel import _fault

LENGTH = struct.Struct("<Q")
REPLY = struct.Struct("<q")
_LONGEST_TEXT = 300
_IDS = re.compile(r":[0-9a-f]{8}-[0-9a-f-]{27}")
_HEAVY = (
    "lmdb", "cloudpickle", "loky", "flowpregel.func", "flowpregel.checkpoint.lmdb",
    "flowpregel.executors.processes", "flowpregel.graph",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a child is to do."""

    workflow: bytes
    """The pickled callable, or its ``module:function``."""
    folder: str
    """What the workflow is given."""
    result: str
    """The file for what it came to."""
    output: str
    """The file for what it prints."""
    env: Mapping[str, str]
    path: tuple[str, ...]
    history: bool


@dataclass(frozen=True, slots=True)
class Came:
    """What a run of a workflow came to, in a form that two runs can be compared by."""

    result: tuple[str, str]
    """A digest, and a text for people."""
    history: tuple[tuple[str, ...], ...]
    """A line for each checkpoint of each thread, oldest first."""


def main() -> int:
    """Fork a child for each order, and tell how it ended; in a child: return its exit code."""
    orders, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    for name in (*_HEAVY, *sys.argv[1:]):
        importlib.import_module(name)
    gc.freeze()  # so that no child looks through all of this when it ends
    while (order := _next(orders)) is not None:
        pid = os.fork()
        if pid == 0:
            replies.close()
            return _live(order)
        replies.write(REPLY.pack(pid))
        _, status = os.waitpid(pid, 0)
        replies.write(REPLY.pack(os.waitstatus_to_exitcode(status)))
    return 0


def _next(orders: IO[bytes]) -> Order | None:
    head = orders.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    order = pickle.loads(orders.read(*LENGTH.unpack(head)))
    assert isinstance(order, Order)
    return order


def _live(order: Order) -> int:
    """Run the workflow in this process."""
    os.setsid()
    output = os.open(order.output, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    sys.path[:] = order.path
    os.environ.update(order.env)
    _fault.arm()
    try:
        result = _loaded(order.workflow)(Path(order.folder))
        _fault.fault("workflow.returned")
        _write(order, result)
    except BaseException:  # noqa: BLE001 - the harness shows what was printed
        traceback.print_exc()
        return 1
    return 0


def _loaded(workflow: bytes) -> Any:
    found = pickle.loads(workflow)
    if isinstance(found, str):
        module, _, name = found.partition(":")
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    return found


def _write(order: Order, result: Any) -> None:
    # What comes now is the harness's, not the workflow's.
    for name in (_fault.TRACE, _fault.FAULT, _fault.ONCE):
        os.environ.pop(name, None)
    _fault.arm()
    history = tuple(history_of(Path(order.folder))) if order.history else ()
    draft = order.result + ".draft"
    Path(draft).write_bytes(pickle.dumps(Came(_shown(result), history)))
    os.replace(draft, order.result)


# ---------------------------------------------------------------- what is compared


def history_of(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield what the stores in *folder* hold, without what differs from run to run.

    Each line has the store, the thread, the namespace, the superstep, its source,
    the values and the pending writes. Ids and times are left out.
    """
    from flowpregel._lmdb.errors import DATA  # noqa: PLC0415 - lmdb is heavy
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - as above

    for file in sorted(folder.rglob(DATA)):
        with LMDBSaver(file.parent, readonly=True) as saver:
            places = {(each.thread_id, each.namespace) for each in saver.namespaces()}
            lines = [line for place in places for line in _lines(saver, *place)]
        for line in sorted(lines, key=lambda line: (line[:2], int(line[2]))):
            yield str(file.parent.relative_to(folder)), *line


def _lines(saver: Any, thread_id: str, namespace: str) -> Iterator[tuple[str, ...]]:
    from flowpregel._core.records import Address  # noqa: PLC0415 - heavy with the rest

    for saved in saver.history(Address(thread_id, namespace)):
        checkpoint = saved.checkpoint
        values = {name: _shown(value) for name, value in sorted(checkpoint.values.items())}
        deltas = {name: _shown((*delta.writes,)) for name, delta in sorted(saved.deltas.items())}
        yield (
            thread_id,
            _IDS.sub("", namespace),
            str(checkpoint.step),
            checkpoint.source,
            repr({**values, **deltas}),
            repr([item for write in saved.writes if (item := _written(write))]),
        )


def _written(write: Any) -> Any:
    """Return what a pending write is compared by; None: it is not.

    A failure is left out. One that was overcome stays beside the result, and a
    worker that is killed makes its task fail.
    """
    from flowpregel._core.records import (  # noqa: PLC0415 - heavy with the rest
        ERROR,
        ERROR_SOURCE,
        INTERRUPT,
        RESUME,
    )

    if write.channel in (ERROR, ERROR_SOURCE):
        return None
    if write.channel == INTERRUPT:  # an interrupt's id is made from its task's
        return write.channel, [_shown(item.value) for item in write.value]
    return write.channel, "" if write.channel == RESUME else _shown(write.value)


def _shown(value: Any) -> tuple[str, str]:
    from flowpregel._core.digest import digest_of  # noqa: PLC0415 - heavy with the rest

    text = repr(value)
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "..."
    return digest_of(value, "a value of the workflow", strict=False), text


if __name__ == "__main__":
    # The module that the harness knows, so that what it pickled is found.
    from flowpregel.testing import crash_child

    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(crash_child.main())
