"""The arguments of a call as they were when the call was made, for a process that gets them later.

They are pickled at the call, large buffers to where a worker will map them. A task on an OS
thread or an event loop of this process is given the caller's own objects, as any function is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache, partial
from pickle import PickleBuffer
from typing import Any, Final, TypeAlias

from flowpregel._core.copies import IMMUTABLE
from flowpregel._core.records import Arguments, Node
from flowpregel.executors.base import Executor, default_executor
from flowpregel.executors.processes.serialization import SHARE_FROM, dumps, loads
from flowpregel.executors.processes.shared_memory import (
    Arena,
    copy_on_write,
    default_limit,
    fill,
    origin_of,
    segments_for,
)

_KEEP: Final = 256 << 20
"""Bytes of arguments in shared memory from which it is better to wait for what is in use."""
_LONGEST_WAIT: Final = 10.0
"""Seconds that a call waits for room in shared memory before it takes other memory."""
pickled_handles: Final[ContextVar[list[Any]]] = ContextVar("flowpregel_pickled_handles")
"""Handles of shared values add themselves here when they are pickled."""
Parts: TypeAlias = Sequence[Any]
"""A pickle, and the large buffers that belong to it."""


def write_parts(value: Any, allocate: Callable[[int], Any]) -> Parts:
    """Return *value* pickled; *allocate* gives memory for what is large, or None.

    Raises:
        Exception: *value* cannot be pickled.
    """
    buffers: list[Any] = []

    def put(data: memoryview) -> Any:
        if origin_of(data) is not None:  # of a shared value, which does not change
            return data.obj
        buffer = allocate(data.nbytes)
        if buffer is None:
            return bytearray(data)
        fill(buffer, data)
        return buffer

    def stays(buffer: PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes >= SHARE_FROM:
            buffers.append(put(raw))
        return raw.nbytes < SHARE_FROM

    data: Any = dumps(value, stays, buffers.clear)
    return (put(memoryview(data)) if len(data) >= SHARE_FROM else data, *buffers)


def read_parts(parts: Parts) -> Any:
    """Return the value; it may be written to, and *parts* stay as they are."""
    data, *buffers = map(copy_on_write, parts)
    return loads(data, buffers)


class CapturedArguments(Arguments):
    """The arguments of a call, pickled when it was made.

    Args:
        parts: Those of the positional and keyword arguments.
        handles: Of the shared values among them, which live as long as the call.
    """

    __slots__ = ("_handles", "_parts")

    def __init__(self, parts: Parts, handles: Sequence[Any] = ()) -> None:
        self._parts = parts
        self._handles = handles

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The positional arguments, a copy of their own."""
        args: tuple[Any, ...] = read_parts(self._parts)[0]
        return args

    @property
    def kwargs(self) -> dict[str, Any]:  # type: ignore[override]
        """The keyword arguments, a copy of their own."""
        kwargs: dict[str, Any] = read_parts(self._parts)[1]
        return kwargs

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle as the tuple of both."""
        return _loaded, tuple(map(PickleBuffer, self._parts))


def _loaded(data: Any, *buffers: Any) -> Any:
    return loads(data, buffers)


def runs_elsewhere(node: Node, default: Any) -> bool:
    """Return whether calls of *node* are sent to another process.

    Args:
        node: What is called.
        default: The executor of nodes that name none.
    """
    if node.role != "leaf" or any(step.is_async for step in node.steps):
        return False
    executor = default if node.executor is None else node.executor
    if executor is None:
        executor = default_executor()
    if isinstance(executor, Executor):
        return executor.capabilities.isolates
    return executor not in ("inline", "threads")


def captured(arguments: Arguments, *, may_wait: bool = False) -> Arguments:
    """Return *arguments* as they are now: later changes do not reach what is returned.

    What cannot be pickled is returned as it is; the executor that has to pickle it reports it.

    Args:
        arguments: Of a call that is made now.
        may_wait: Whether to wait for shared memory that other calls still use.
    """
    args, kwargs = arguments.args, arguments.kwargs
    if IMMUTABLE.issuperset(map(type, args)) and IMMUTABLE.issuperset(map(type, kwargs.values())):
        return arguments
    allocate = partial(arena().allocate, wait=_LONGEST_WAIT if may_wait else 0.0)
    handles: list[Any] = []
    token = pickled_handles.set(handles)
    try:
        return CapturedArguments(write_parts((args, dict(kwargs)), allocate), handles)
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return arguments
    finally:
        pickled_handles.reset(token)


@cache
def arena() -> Arena:
    """Return the memory for arguments of calls that this process makes."""
    return Arena(default_limit() // 2, segments=segments_for(2), keep=_KEEP)


# A forked process writes to memory of its own.
os.register_at_fork(after_in_child=arena.cache_clear)
