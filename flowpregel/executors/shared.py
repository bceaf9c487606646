"""`shared`: a value that is written to shared memory once, for all calls that are given it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pickle import PickleBuffer
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from weakref import WeakValueDictionary

from flowpregel._core.digest import digest_of
from flowpregel._core.records import Arguments
from flowpregel.errors import ConfigurationError
from flowpregel.executors.capture import Parts, arena, pickled_handles, read_parts, write_parts
from flowpregel.executors.processes.serialization import find_culprit, loads
from flowpregel.executors.processes.shared_memory import (
    PrivateMapping,
    allocate_alone,
    copy_on_write,
    origin_of,
)

T = TypeVar("T")
_made_here: Final[WeakValueDictionary[bytes, Shared[Any]]] = WeakValueDictionary()
_KEPT_UP_TO: Final = 64 << 20
_by_key: Final[ContextVar[bool]] = ContextVar("flowpregel_shared_by_key", default=False)


class Shared(Generic[T]):
    """A handle of a value in shared memory; `shared` makes it.

    The memory is freed with the handle: when nothing refers to it any more, at the end of
    a ``with`` block, or by `close`. Tasks that have the value by then keep it.
    """

    __slots__ = ("__weakref__", "_digest", "_key", "_parts", "_type", "_unused")

    def __init__(self, key: bytes, kind: str, digest: str | None, parts: Parts) -> None:
        self._key = key
        self._type = kind
        self._digest = digest
        self._parts = parts
        self._unused: Parts = ()
        """The parts, if they are mapped copy-on-write for this handle and not written to."""

    @property
    def value(self) -> T:
        """A copy of the value, made at each access; of large arrays only what is written to."""
        parts, self._unused = self._unused, ()
        value: T = loads(parts[0], parts[1:]) if parts else read_parts(self._open_parts)
        return value

    def close(self) -> None:
        """Free the memory. Calls that were given the handle should have ended."""
        self._parts = self._unused = ()

    @property
    def _open_parts(self) -> Parts:
        if not self._parts:
            raise ValueError(f"{self!r} was closed: make a new one with shared()")
        return self._parts

    def __flowpregel_digest__(self) -> str:
        """Return the digest of the value, by which recorded calls are found again."""
        if self._digest is None:
            self._digest = digest_of(self.value, "a shared value", strict=False)
        return self._digest

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if _by_key.get() and self._key not in _made_here:
            return _found, (self._key, self._type)
        pickled_handles.get([]).append(self)
        parts = self._open_parts
        if self._key not in _made_here:
            parts = [copy_on_write(each) for each in parts]  # a task may have written to these
        wrap = PickleBuffer if protocol >= 5 else bytes
        return _received, (self._key, self._type, self._digest, *map(wrap, parts))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<shared {self._type}>"


def shared(value: T) -> Shared[T]:
    """Write *value* to shared memory once, and return a handle to give to any number of calls.

    A task that is given the handle as an argument receives the value. A handle inside of an
    argument (in a list, a dict, an object) stays a handle; its ``value`` is the value. Either
    way the task may change what it receives: it has a copy of its own, of which only the
    parts that it writes to take memory.

    The handle keeps *value* as it is now. Recorded calls are found by the value's content,
    which is hashed once: a program that is run again shares its value again.

    Args:
        value: Anything that can be pickled; large buffers in it, such as NumPy arrays, gain.

    Raises:
        ConfigurationError: It cannot be pickled.

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
    made: Shared[T] = Shared(os.urandom(16), type(value).__qualname__, None, parts)
    _made_here[made._key] = made  # noqa: SLF001 - its maker
    return made


def _allocate(size: int) -> Any:
    """Return memory for a value: small memory is kept for other values, larger memory is not."""
    buffer = arena().allocate(size) if size <= _KEPT_UP_TO else None
    return buffer or allocate_alone(size)


def with_values(arguments: Arguments) -> Arguments:
    """Return *arguments* with values in the place of the handles among them."""
    args, kwargs = arguments.args, arguments.kwargs
    if Shared not in map(type, args) and Shared not in map(type, kwargs.values()):
        return arguments
    return Arguments(
        tuple(_value_of(each) for each in args),
        {name: _value_of(each) for name, each in kwargs.items()},
    )


def _value_of(given: Any) -> Any:
    return given.value if isinstance(given, Shared) else given


@contextmanager
def sent_by_key() -> Iterator[None]:
    """Pickle handles that came from the coordinator as references to the coordinator's own."""
    token = _by_key.set(True)
    try:
        yield
    finally:
        _by_key.reset(token)


def _received(key: bytes, kind: str, digest: str | None, *parts: Any) -> Shared[Any]:
    """Return a handle that came from another process, or this process's own."""
    if (own := _made_here.get(key)) is not None:
        return own
    made: Shared[Any] = Shared(key, kind, digest, parts)
    if all(isinstance(origin_of(memoryview(each)), PrivateMapping) for each in parts[1:]):
        made._unused = parts  # noqa: SLF001 - its maker
    return made


def _found(key: bytes, kind: str) -> Shared[Any]:
    """Return this process's own handle.

    Raises:
        ValueError: It is gone.
    """
    handle = _made_here.get(key)
    if handle is None:
        raise ValueError(f"the handle of a shared {kind} is gone: keep it while tasks use it")
    return handle
