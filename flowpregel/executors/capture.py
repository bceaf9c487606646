"""The arguments of a call as they were when the call was made, for a process that gets them later.

A task on an OS thread or an event loop of this process is given the caller's own objects,
as any function is.
"""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
from functools import cache
from typing import Any, Final

from flowpregel._core.copies import IMMUTABLE
from flowpregel._core.records import Arguments, Node
from flowpregel.executors.base import Executor
from flowpregel.executors.processes.serialization import SHARE_FROM
from flowpregel.executors.processes.shared_memory import (
    Arena,
    default_limit,
    fill,
    segments_for,
)

_KEEP: Final = 256 << 20
"""Bytes of arguments in shared memory from which it is better to wait for what is in use."""
_LONGEST_WAIT: Final = 10.0
"""Seconds that a call waits for room in shared memory before it takes other memory."""


def runs_elsewhere(node: Node, default: Any) -> bool:
    """Return whether calls of *node* are sent to another process.

    Args:
        node: What is called.
        default: The executor of nodes that name none.
    """
    if node.role != "leaf" or any(step.is_async for step in node.steps):
        return False
    executor = default if node.executor is None else node.executor
    if isinstance(executor, Executor):
        return executor.capabilities.isolates
    return executor not in ("inline", "threads")


def captured(arguments: Arguments, *, may_wait: bool = False) -> Arguments:
    """Return *arguments* as they are now: later changes do not reach what is returned.

    What cannot be copied is returned as it is; the executor that has to pickle it reports it.

    Args:
        arguments: Of a call that is made now.
        may_wait: Whether to wait for shared memory that other calls still use.
    """
    given = (*arguments.args, *arguments.kwargs.values())
    changeable = [value for value in given if type(value) not in IMMUTABLE]
    if not changeable:
        return arguments
    try:
        copied = iter(_copied(changeable, _LONGEST_WAIT if may_wait else 0.0))
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return arguments
    values = [value if type(value) in IMMUTABLE else next(copied) for value in given]
    count = len(arguments.args)
    kwargs = dict(zip(arguments.kwargs, values[count:], strict=True))
    return Arguments(tuple(values[:count]), kwargs)


def _copied(values: list[Any], wait: float) -> list[Any]:
    """Return a copy of *values*; large buffers are copied to where workers read them."""
    buffers: list[Any] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if isinstance(raw.obj, ctypes.Array):  # of a handle, which does not change
            buffers.append(raw.obj)
            return False
        memory: Any = arena().allocate(raw.nbytes, wait) if raw.nbytes >= SHARE_FROM else None
        if memory is None:
            buffers.append(bytearray(raw))
        else:
            fill(memory, raw)
            buffers.append(pickle.PickleBuffer(memory).raw())
        return False

    try:
        data = pickle.dumps(values, pickle.HIGHEST_PROTOCOL, buffer_callback=stays)
    except Exception:  # noqa: BLE001 - lambdas and local classes: a copy may refer to them
        return copy.deepcopy(values)
    copied: list[Any] = pickle.loads(data, buffers=buffers)
    return copied


@cache
def arena() -> Arena:
    """Return the memory for arguments of calls that this process makes."""
    return Arena(default_limit() // 2, segments=segments_for(2), keep=_KEEP)


# A forked process writes to memory of its own.
os.register_at_fork(after_in_child=arena.cache_clear)
