"""Pickles that another process can load, and the path to the part that cannot be pickled.

The C pickle is used when it is exact. What it refers to by name and the other
process could not find (anything of ``__main__``, lambdas, local classes) goes by
value, with cloudpickle.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import cache
from hashlib import blake2b
from operator import attrgetter
from struct import Struct
from types import FunctionType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar, is_typeddict
from weakref import WeakSet

from flowpregel.carried import default_of, place_of, variable_at

Part = TypeVar("Part")
PROTOCOL: Final = 5
DIGEST_SIZE: Final = 16

SHARE_FROM: Final = 128 << 10
"""Bytes from which a buffer goes through shared memory: a link is faster below."""
_COUNT: Final = Struct("<HB")
_REF: Final = Struct("<QQQ")
_MOST_REFS: Final = 64
"""More buffers than that stay in the pickle: each may need a descriptor handed over."""
Keep: TypeAlias = Callable[[pickle.PickleBuffer], bool] | None
"""Called with each large buffer: True keeps it in the pickle, False leaves it out."""


def dumps(value: Any, keep: Keep = None, start_again: Callable[[], None] = lambda: None) -> bytes:
    """Return *value* pickled, exactly.

    Args:
        value: What to pickle.
        keep: Called with each large buffer.
        start_again: Called before *keep* is called with all buffers once more.

    Raises:
        Exception: Whatever the pickling of a part of *value* raises.
    """
    try:
        data = pickle.dumps(value, PROTOCOL, buffer_callback=keep)
    except Exception:  # noqa: BLE001 - by value it may work; if not, that error is raised
        start_again()
        return dumps_by_value(value, keep)
    if b"__main__" in data or _kept_by_value():
        start_again()
        return dumps_by_value(value, keep)
    return data


def dumps_apart(
    value: Any,
    put: Callable[[memoryview], Part | None],
    take_back: Callable[[list[Part]], object] = lambda parts: None,
) -> tuple[bytes, list[Part]]:
    """Return *value* pickled, and what *put* has returned for each of its large buffers.

    Args:
        value: What to pickle.
        put: Puts a buffer elsewhere; None: it stays in the pickle.
        take_back: Called with what *put* has returned, when it is not wanted after all.

    Raises:
        Exception: Whatever the pickling of a part of *value* raises.
    """
    parts: list[Part] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        part = put(raw) if raw.nbytes >= SHARE_FROM and len(parts) < _MOST_REFS else None
        if part is not None:
            parts.append(part)
        return part is None

    def start_again() -> None:
        take_back(parts)
        parts.clear()

    try:
        return dumps(value, stays, start_again), parts
    except BaseException:
        start_again()
        raise


def loads(data: bytes | memoryview, buffers: Iterable[Any] | None = None) -> Any:
    """Return what `dumps` was given.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    return pickle.loads(data, buffers=buffers)


def digest_of(data: bytes) -> bytes:
    """Return a digest of *data*, the same in all processes."""
    return blake2b(data, digest_size=DIGEST_SIZE).digest()


def dumps_by_value(value: Any, keep: Keep = None) -> bytes:
    """Return *value* pickled with cloudpickle, whatever it refers to."""
    out = io.BytesIO()
    _by_value_pickler()(out, protocol=PROTOCOL, buffer_callback=keep).dump(value)
    return out.getvalue()


def _kept_by_value() -> bool:
    """Whether the user registered modules with ``cloudpickle.register_pickle_by_value``."""
    cloudpickle = sys.modules.get("cloudpickle")
    return cloudpickle is not None and bool(cloudpickle.list_registry_pickle_by_value())


@cache
def _by_value_pickler() -> Any:
    import cloudpickle  # noqa: PLC0415 - 30 ms, and often never needed

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        """cloudpickle, which also knows decorated functions and the coordinator's classes."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, FunctionType):
                wrapper = _wrapper_of(obj)
                if wrapper is not None:
                    return unwrapped, wrapper
            elif isinstance(obj, ContextVar) and (place := place_of(obj)) is not None:
                return variable_at, (place, *default_of(obj))
            elif _in_worker and isinstance(obj, type):
                known = _known_there(obj)
                if known is not None:
                    return class_sent, known
            reduced = super().reducer_override(obj)
            return _with_its_layout(obj, reduced) if isinstance(obj, type) else reduced

    return ByValue


def _with_its_layout(kind: type, reduced: Any) -> Any:
    """Return cloudpickle's recipe for the class *kind*, completed.

    cloudpickle leaves out slots: instances of a class that has a ``__dict__`` in their
    place could not come back. And before Python 3.12 a TypedDict that extends others
    has only `dict` among its bases.
    """
    if not isinstance(reduced, tuple) or reduced[0].__name__ != "_make_skeleton_class":
        return reduced
    make, (meta, name, bases, namespace, *more), *rest = reduced
    if is_typeddict(kind) and bases == (dict,):
        bases = (TypedDict,)
    slots = vars(kind).get("__slots__")
    # A NamedTuple, or another metaclass, makes its slots itself, and may refuse them.
    makes_none = type(kind) in (type, ABCMeta) and not issubclass(kind, tuple)
    if makes_none and isinstance(slots, str | tuple | list | dict):
        namespace = {**namespace, "__slots__": slots}
    return make, (meta, name, bases, namespace, *more), *rest


# ------------------------------------------------ messages


class BufferRef(NamedTuple):
    """A buffer in shared memory that was written for one reader."""

    id: int
    """Names it, once in the life of its writer."""
    segment: int
    """The segment it lies in."""
    size: int


class Message(NamedTuple):
    """A pickle, and the buffers in shared memory that belong to it::

    count of refs | ref, ref, ... | the pickle, unless it is itself the first ref
    """

    data: bytes
    refs: Sequence[BufferRef] = ()


class BufferWriter(Protocol):
    """Where `pack` puts large buffers."""

    def share(self, data: memoryview) -> BufferRef | None:
        """Put *data* into shared memory; None: there is no room."""

    def release(self, ref_id: int) -> None:
        """Take back what nobody will read."""


Open: TypeAlias = Callable[[BufferRef], memoryview]
"""Returns a buffer in shared memory."""


def pack(value: Any, share: BufferWriter | None = None) -> Message:
    """Return *value* as a message.

    Raises:
        Exception: *value* cannot be pickled.
    """
    if share is None:
        return Message(_COUNT.pack(0, False) + dumps(value))

    def take_back(refs: Iterable[BufferRef]) -> None:
        for ref in refs:
            share.release(ref.id)

    data, refs = dumps_apart(value, share.share, take_back)
    whole = share.share(memoryview(data)) if len(data) >= SHARE_FROM else None
    if whole is not None:
        refs.insert(0, whole)
        data = b""
    head = _COUNT.pack(len(refs), whole is not None)
    return Message(b"".join((head, *(_REF.pack(*ref) for ref in refs), data)), refs)


def unpack(data: bytes | memoryview, open_ref: Open | None = None, at: int = 0) -> Any:
    """Return the value that `pack` was given.

    Args:
        data: Has the message's data at its end.
        open_ref: Opens buffers in shared memory.
        at: Where the message begins.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    number, whole = _COUNT.unpack_from(data, at)
    start = at + _COUNT.size
    end = start + number * _REF.size
    if not number:
        return loads(memoryview(data)[end:])
    if open_ref is None:
        raise ValueError("the message names shared memory, and this end has none")
    views = [open_ref(BufferRef(*each)) for each in _REF.iter_unpack(data[start:end])]
    if whole:
        return loads(views[0], views[1:])
    return loads(memoryview(data)[end:], views)


# ------------------------------------------------ functions behind decorators


def _wrapper_of(function: FunctionType) -> tuple[str, str, int] | None:
    """Return where to find *function*, if its name now refers to its decorator's result.

    The function under ``@task`` is no longer what its module holds under its
    name. Sending it by value would copy the globals it uses: caches, locks, tables.
    """
    module = function.__module__
    if not module or module == "__main__" or "<locals>" in function.__qualname__:
        return None
    try:
        found = _look_up(module, function.__qualname__)
    except (ImportError, AttributeError):
        return None
    for depth in range(1, 8):
        found = getattr(found, "__wrapped__", None)
        if found is function:
            return module, function.__qualname__, depth
    return None


def _look_up(module: str, qualname: str) -> Any:
    return attrgetter(qualname)(sys.modules.get(module) or importlib.import_module(module))


def unwrapped(module: str, qualname: str, depth: int) -> Any:
    """Return the function under *depth* decorators of ``module.qualname``."""
    found = _look_up(module, qualname)
    for _ in range(depth):
        found = found.__wrapped__
    return found


# ------------------------------------------------ classes of the user's program

_in_worker = False
_made_here: WeakSet[type] = WeakSet()
"""Classes that this worker's tasks have defined, and that were sent by value."""


def mark_as_worker() -> None:
    """From now on, a class that came by value is the coordinator's."""
    global _in_worker
    _in_worker = True


def _known_there(kind: type) -> tuple[str, str] | None:
    """Return what names *kind* in the coordinator, if it came from there by value.

    Sent by value once more, the class would be found there by cloudpickle, and its
    attributes and methods overwritten with our copies.
    """
    name = _trackers("_DYNAMIC_CLASS_TRACKER_BY_CLASS").get(kind)
    if name is None or kind in _made_here:
        _made_here.add(kind)
        return None
    return name, f"{kind.__module__}.{kind.__qualname__}"


def class_sent(name: str, called: str) -> type:
    """Return the class that was sent by value under *name*.

    Raises:
        AttributeError: It no longer exists.
    """
    found: type | None = _trackers("_DYNAMIC_CLASS_TRACKER_BY_ID").get(name)
    if found is None:
        raise AttributeError(
            f"class {called} came back from a worker, and is gone here: keep it in a module"
        )
    return found


def _trackers(name: str) -> Any:
    """Return one of the tables by which cloudpickle recognises its copies of a class."""
    from cloudpickle import cloudpickle  # noqa: PLC0415 - loaded by now

    return getattr(cloudpickle, name)
