"""Values for other processes: the pickled arguments of calls, values in shared memory,
and objects that each worker makes once (resources).

Arguments for a worker are pickled at the time of the call, with large buffers in shared
memory that the worker will map. A task on an OS thread or event loop of this process
gets the caller's own objects, as any function does. `shared` writes a value to shared
memory once, for all calls that get the handle. A `resource`, such as a model or a
connection, is created once in each worker and used by many tasks.
"""

from __future__ import annotations

import atexit
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial, wraps
from pickle import PickleBuffer
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from flowpregel._core.records import Arguments, Node
from flowpregel._pickling.copies import IMMUTABLE
from flowpregel._pickling.crossing import SHARE_FROM, dumps, find_culprit
from flowpregel._pickling.digest import digest_of
from flowpregel._pickling.sent_modules import SENT_MODULES
from flowpregel.errors import ConfigurationError
from flowpregel.executors.base import Executor, default_executor
from flowpregel.executors.calls import (
    CallFuture,
    is_unexposed,
    note_exposed,
    with_results,
)
from flowpregel.executors.processes.wire import shared_memory as memory

T = TypeVar("T")
_made_here: Final[WeakValueDictionary[bytes, Shared[Any]]] = WeakValueDictionary()
_KEPT_UP_TO: Final = 64 << 20
_by_key: Final[ContextVar[bool]] = ContextVar("flowpregel_shared_by_key", default=False)
_LONGEST_WAIT: Final = 10.0
"""Seconds for which a call waits for room in shared memory before it uses private
memory.
"""
pickled_handles: Final[ContextVar[list[Any]]] = ContextVar("flowpregel_pickled_handles")
"""The list to which handles of shared values (`Shared`) and packed results add
themselves when they are pickled. So the caller knows which of them are among the
arguments.
"""
Parts: TypeAlias = Sequence[Any]
"""A pickle, and the large buffers that belong to it."""


def write_parts(value: Any, allocate: Callable[[int], Any]) -> Parts:
    """Pickle *value*, and return the parts: the pickle and its large buffers.

    Args:
        value: The value to pickle.
        allocate: A function that takes the size of a large buffer, and returns shared
            memory for it, or None if there is no room.

    Raises:
        Exception: *value* cannot be pickled.
    """

    def put(data: memoryview) -> Any:
        if data.nbytes < SHARE_FROM:
            return data
        # A buffer that is in shared memory already is not copied, because it belongs to
        # a shared value and never changes.
        if memory.origin_of(data) is not None:
            return data.obj
        buffer = allocate(data.nbytes)
        if buffer is None:
            return bytearray(data)
        memory.fill(buffer, data)
        return buffer

    large: list[memoryview] = []
    data = dumps(value, large)
    return [put(part) for part in (memoryview(data), *large)]


def read_parts(parts: Parts) -> Any:
    """Unpickle the value in *parts*, and return it. Changing the value does not change
    *parts*.
    """
    data, *buffers = map(memory.copy_on_write, parts)
    return pickle.loads(data, buffers=buffers)


class CapturedArguments(Arguments):
    """The arguments of a call, pickled at the time of the call.

    Args:
        parts: The pickled parts of the positional and keyword arguments.
        handles: The handles of the shared values in the arguments, which keep the
            shared memory in use as long as this object exists.
    """

    __slots__ = ("_handles", "_parts")

    def __init__(self, parts: Parts, handles: Sequence[Any] = ()) -> None:
        self._parts = parts
        self._handles = handles

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        """A new copy of the positional arguments."""
        args: tuple[Any, ...] = read_parts(self._parts)[0]
        return args

    @property
    def kwargs(self) -> dict[str, Any]:  # type: ignore[override]
        """A new copy of the keyword arguments."""
        kwargs: dict[str, Any] = read_parts(self._parts)[1]
        return kwargs

    @property
    def nbytes(self) -> int:
        """The size of the pickled arguments in bytes, including their large buffers."""
        return sum(memoryview(part).nbytes for part in self._parts)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Return a reduction that becomes the arguments themselves in another
        process.
        """
        if SENT_MODULES.get():
            # The pickled parts refer to modules by name. If the other process lacks
            # some of them, the arguments are pickled again, with the code of these
            # modules.
            return Arguments, (self.args, self.kwargs)
        return _loaded, tuple(map(PickleBuffer, self._parts))


def _loaded(data: Any, *buffers: Any) -> Arguments:
    return Arguments(*pickle.loads(data, buffers=buffers))


def runs_elsewhere(node: Node, default: Any) -> bool:
    """Return whether calls of *node* are executed in another process.

    Args:
        node: The node that is called.
        default: The executor of nodes that do not name one.
    """
    executor = default if node.executor is None else node.executor
    if executor is None:
        executor = default_executor()
    if isinstance(executor, Executor):
        isolates = executor.capabilities.isolates
    else:
        isolates = executor not in ("inline", "threads")
    return (
        isolates
        and node.role == "leaf"
        and all(step.func is not None for step in node.steps)
    )


def captured(arguments: Arguments, *, may_wait: bool = False) -> Arguments:
    """Return *arguments* in a form that later changes by the caller do not affect.

    Arguments that cannot be pickled are returned unchanged, except that each
    `PackedResult` becomes a copy of the result. The executor, which must pickle them
    too, reports the error.

    Args:
        arguments: The arguments of a call that is made now.
        may_wait: True to wait for shared memory that other calls still use.
    """
    args, kwargs = arguments.args, arguments.kwargs
    if IMMUTABLE.issuperset(map(type, args)) and IMMUTABLE.issuperset(
        map(type, kwargs.values())
    ):
        return arguments
    allocate = partial(arena().allocate, wait=_LONGEST_WAIT if may_wait else 0.0)
    handles: list[Any] = []
    token = pickled_handles.set(handles)
    try:
        return CapturedArguments(write_parts((args, dict(kwargs)), allocate), handles)
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
        return _without_packed(arguments)
    finally:
        pickled_handles.reset(token)


class PackedResult:
    """The result of a call, pickled once for all calls that get it as an argument.

    Another process unpickles it as the result itself. Its large buffers are in shared
    memory and never change, so a pool of worker processes does not copy them again, and
    a cluster sends them to each machine once.

    Args:
        parts: The pickled parts of the result.
    """

    __slots__ = ("__weakref__", "_parts")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @property
    def value(self) -> Any:
        """A new copy of the result at each access."""
        return read_parts(self._parts)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if SENT_MODULES.get():
            # If modules are sent by value, the result is pickled again, together with
            # their code.
            return _itself, (self.value,)
        # This object is added to the list, so that the arguments keep a reference to
        # it, and its shared memory stays in use until the call has ended.
        pickled_handles.get([]).append(self)
        return _unpacked, tuple(map(PickleBuffer, self._parts))


def _itself(value: Any) -> Any:
    return value


def _unpacked(data: Any, *buffers: Any) -> Any:
    return pickle.loads(data, buffers=buffers)


def _without_packed(arguments: Arguments) -> Arguments:
    """Return *arguments* with each packed result replaced by a copy of the result."""
    args, kwargs = arguments.args, arguments.kwargs
    if PackedResult not in map(type, (*args, *kwargs.values())):
        return arguments
    values: dict[str, Any] = {}
    for name, argument in kwargs.items():
        values[name] = _unwrapped(argument)
    return Arguments(tuple(map(_unwrapped, args)), values)


def _unwrapped(argument: Any) -> Any:
    return argument.value if isinstance(argument, PackedResult) else argument


_packed_results: Final[WeakKeyDictionary[CallFuture[Any], ref[PackedResult]]] = (
    WeakKeyDictionary()
)
"""The packed results that are arguments of calls in progress, by the future of the
result.
"""


def late_arguments(
    node: Node,
    executor: Any,
    arguments: Arguments,
) -> Arguments:
    """Return the arguments of a call, with the futures among them replaced by their
    results. All of these futures must be done.

    If the call goes to another process, large results are replaced by a `PackedResult`.

    Args:
        node: The node that is called.
        executor: The executor of nodes that do not name one, or None in a worker.
        arguments: The arguments with the futures.
    """
    result_of: Callable[[Any], Any] = with_results
    if executor is not None and runs_elsewhere(node, executor):
        result_of = _packed_result
    else:
        note_exposed(arguments)
    args = tuple(map(result_of, arguments.args))
    kwargs: dict[str, Any] = {}
    for name, argument in arguments.kwargs.items():
        kwargs[name] = result_of(argument)
    return Arguments(args, kwargs)


def _packed_result(argument: Any) -> Any:
    """Return the result of *argument* as a `PackedResult`, if *argument* is a future
    with a large result that no user code has got yet. Otherwise, return *argument* with
    each future replaced by the future's result.
    """
    # A packed result is used for several calls, so nothing may change it. If user code
    # had got the result, it might change it, and each call must get the content at the
    # time of the call.
    if not isinstance(argument, CallFuture) or not is_unexposed(argument):
        return with_results(argument)
    reference = _packed_results.get(argument)
    packed = None if reference is None else reference()
    if packed is None:
        result = with_results(argument)
        if _nbytes_of(result) < SHARE_FROM:
            return result
        try:
            packed = PackedResult(write_parts(result, arena().allocate))
        except Exception:  # noqa: BLE001 - the executor of the call raises the error
            return result
        _packed_results[argument] = ref(packed)
    return packed


def _nbytes_of(value: Any) -> int:
    """Return the size of a str (in characters), of bytes or of an array (in bytes), or
    0 for any other value.
    """
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


@cache
def arena() -> memory.Arena:
    """Return the shared memory for the arguments of this process's calls."""
    return memory.Arena(memory.default_limit() // 2, segments=memory.segments_for(2))


# A forked process creates shared memory of its own, because it must not write to its
# parent's.
os.register_at_fork(after_in_child=arena.cache_clear)


# ------------------------------------------------ shared values


class Shared(Generic[T]):
    """A handle of a value in shared memory, returned by `shared`.

    The memory is freed with the last reference to the handle, at the end of a ``with``
    block, or by `close`. Tasks that already have the value keep it.

    Args:
        key: The unique bytes by which processes identify the handle.
        kind: The name of the value's type.
        digest: The digest of the value, or None to compute it at the first use.
        parts: The pickled value, in parts.

    Example:
        >>> from flowpregel import shared
        >>> words = shared(["ada", "bob"])
        >>> words.value
        ['ada', 'bob']
    """

    __slots__ = ("__weakref__", "_digest", "_key", "_parts", "_type", "_unused")

    def __init__(self, key: bytes, kind: str, digest: str | None, parts: Parts) -> None:
        self._key = key
        self._type = kind
        self._digest = digest
        self._parts = parts
        self._unused: Parts = ()
        """The parts that were mapped copy-on-write for this handle. The first access to
        `value` uses them without another copy.
        """

    @property
    def value(self) -> T:
        """A new copy of the value at each access. A large array is mapped
        copy-on-write, so only the pages that are written to are really copied.
        """
        parts, self._unused = self._unused, ()
        if not parts:
            return cast(T, read_parts(self._open_parts))
        return cast(T, pickle.loads(parts[0], buffers=parts[1:]))

    def close(self) -> None:
        """Free the memory. Calls that got the handle should have ended."""
        self._parts = self._unused = ()

    @property
    def nbytes(self) -> int:
        """The size of the value in bytes."""
        return sum(memoryview(part).nbytes for part in self._open_parts)

    @property
    def _open_parts(self) -> Parts:
        if not self._parts:
            raise ValueError(f"{self!r} was closed: make a new one with shared()")
        return self._parts

    def __flowpregel_digest__(self) -> str:
        """Return the digest of the value, by which recorded calls are found."""
        if self._digest is None:
            self._digest = digest_of(self.value, "a shared value", strict=False)
        return self._digest

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if _by_key.get() and self._key not in _made_here:
            return _found, (self._key, self._type)
        pickled_handles.get([]).append(self)
        parts = self._open_parts
        if self._key not in _made_here:
            # This process has mapped the parts for a task, which may write to them. So
            # the pickle gets fresh copies.
            parts = [*map(memory.copy_on_write, parts)]
        wrap = PickleBuffer if protocol >= 5 else bytes
        wrapped_parts = [wrap(part) for part in parts]
        return _received, (self._key, self._type, self._digest, *wrapped_parts)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<shared {self._type}>"


def shared(value: T) -> Shared[T]:
    """Write *value* to shared memory once, and return a handle that you can pass to any
    number of calls.

    A task that gets the handle as an argument receives the value. A handle inside an
    argument (in a list, a dict, an object) remains a handle, with the value in its
    ``value`` attribute. In both cases the task has its own copy, and may change it.
    Only the pages of the copy that it writes to take memory.

    The handle keeps a copy of *value*, made now. Recorded calls are found by the
    content of the value, which is hashed once. So a program that runs again, and shares
    an equal value, finds them.

    Args:
        value: Any object that can be pickled. Objects with large buffers, such as NumPy
            arrays, profit most.

    Raises:
        ConfigurationError: *value* cannot be pickled.

    Example:
        >>> table = shared([1, 2, 3])
        >>> table.value
        [1, 2, 3]
    """
    try:
        parts = write_parts(value, _allocate)
    except Exception as error:
        path, cause = find_culprit(value, "value")
        raise ConfigurationError(f"shared() cannot pickle {path}: {cause}") from error
    handle: Shared[T] = Shared(os.urandom(16), type(value).__qualname__, None, parts)
    _made_here[handle._key] = handle  # noqa: SLF001 - its maker
    return handle


def _allocate(size: int) -> Any:
    """Return shared memory for a value. Only blocks of up to `_KEPT_UP_TO` bytes are
    reused for other values.
    """
    buffer = arena().allocate(size) if size <= _KEPT_UP_TO else None
    return buffer or memory.allocate_alone(size)


@contextmanager
def sent_by_key() -> Iterator[None]:
    """While the context is open, handles that came from the coordinator are pickled as
    their keys, by which the coordinator finds its own handles.
    """
    token = _by_key.set(True)
    try:
        yield
    finally:
        _by_key.reset(token)


def _received(key: bytes, kind: str, digest: str | None, *parts: Any) -> Shared[Any]:
    """Unpickle a handle: return this process's own handle with this key, or else a new
    one for the received parts of the value.
    """
    own_handle = _made_here.get(key)
    if own_handle is not None:
        return own_handle
    handle: Shared[Any] = Shared(key, kind, digest, parts)
    buffers = parts[1:]
    origins = [memory.origin_of(memoryview(buffer)) for buffer in buffers]
    if all(isinstance(origin, memory.PrivateMapping) for origin in origins):
        # This process has mapped the buffers copy-on-write for this handle, so the
        # first task that reads the value may write to them.
        handle._unused = parts  # noqa: SLF001 - its maker
    return handle


def _found(key: bytes, kind: str) -> Shared[Any]:
    """Unpickle a handle that was sent by key: return the one that this process has
    created.

    Raises:
        ValueError: The handle was freed.
    """
    handle = _made_here.get(key)
    if handle is None:
        raise ValueError(
            f"the handle of a shared {kind} is gone: keep a reference to it while "
            "tasks use it"
        )
    return handle


# ------------------------------------------------ resources of a worker process

_resources: dict[tuple[str, str], Any] = {}
_lock = threading.RLock()


def _resource_of(make: Callable[[], T], teardown: Callable[[T], Any] | None) -> T:
    """Return this process's resource of the function *make*. At the first call, create
    it.
    """
    # The key is the name of the function, not the function, because a worker may get a
    # new copy of *make* with each task.
    key = make.__module__, make.__qualname__
    with _lock:
        if key not in _resources:
            _resources[key] = make()
            if teardown is not None:
                atexit.register(teardown, _resources[key])
        value: T = _resources[key]
        return value


def resource(
    make: Callable[[], T] | None = None, *, teardown: Callable[[T], Any] | None = None
) -> Any:
    """Turn a function that creates a resource into one that creates it once in each
    process, at the first use.

    Args:
        make: A function that creates the resource. It is called once in each process
            that requests the resource.
        teardown: A function that is called with the resource when the process exits
            normally.

    Returns:
        A function that returns the process's resource.

    Example:
        >>> @resource
        ... def model():
        ...     return {"weights": [1.0, 2.0]}
        >>> model() is model()
        True
    """
    if make is None:
        return partial(resource, teardown=teardown)
    return wraps(make)(partial(_resource_of, make, teardown))
