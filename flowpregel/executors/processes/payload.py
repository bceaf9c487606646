"""What travels: bytes that the other process can turn back into the same thing.

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
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import cache
from hashlib import blake2b
from types import FunctionType
from typing import Any, Final, TypeAlias, TypedDict, is_typeddict
from weakref import WeakSet

from flowpregel.carried import default_of, place_of, variable_at

PROTOCOL: Final = 5
DIGEST_SIZE: Final = 16

Keep: TypeAlias = Callable[[pickle.PickleBuffer], bool] | None
"""Told of each large buffer: True keeps it in the pickle, False sends it apart."""


def dumps(value: Any, keep: Keep = None, start_again: Callable[[], None] = lambda: None) -> bytes:
    """Return *value* pickled, exactly.

    Args:
        value: What to pickle.
        keep: Told of each large buffer.
        start_again: Called when *keep* will be told of all buffers once more.

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


def loads(data: bytes | memoryview, buffers: Iterable[Any] | None = None) -> Any:
    """Return what `dumps` was given.

    Raises:
        BaseException: Whatever the unpickling of a part raises.
    """
    return pickle.loads(data, buffers=buffers)


def digest_of(data: bytes) -> bytes:
    """Return what names *data* in all processes."""
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
    """Return how cloudpickle makes the class *kind*, with what it needs to be one like it.

    Its slots, which cloudpickle only notes: what has a ``__dict__`` in their place
    could not come back. And of a TypedDict a base that one can be made of: before
    Python 3.12 one that extends others says only that it is a dict.
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


# ------------------------------------------------ functions behind decorators


def _wrapper_of(function: FunctionType) -> tuple[str, str, int] | None:
    """Return where to find *function*, if its name now stands for what decorates it.

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
        found = _inner(found)
        if found is None:
            return None
        if found is function:
            return module, function.__qualname__, depth
    return None


def _inner(wrapper: Any) -> Any:
    return getattr(wrapper, "__wrapped__", None)


def _look_up(module: str, qualname: str) -> Any:
    found = sys.modules.get(module) or importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def unwrapped(module: str, qualname: str, depth: int) -> Any:
    """Return the function under *depth* decorators of ``module.qualname``."""
    found = _look_up(module, qualname)
    for _ in range(depth):
        found = _inner(found)
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

    By value once more, cloudpickle would find the class there, and overwrite its
    attributes and methods with our copies.
    """
    name = _trackers("_DYNAMIC_CLASS_TRACKER_BY_CLASS").get(kind)
    if name is None or kind in _made_here:
        _made_here.add(kind)
        return None
    return name, f"{kind.__module__}.{kind.__qualname__}"


def class_sent(name: str, called: str) -> type:
    """Return the class that was sent by value under *name*.

    Raises:
        AttributeError: Nobody holds it any more.
    """
    found: type | None = _trackers("_DYNAMIC_CLASS_TRACKER_BY_ID").get(name)
    if found is None:
        raise AttributeError(
            f"class {called} came back from a worker, and is gone here: keep it in a module"
        )
    return found


def _trackers(name: str) -> Any:
    """Return one of the tables by which cloudpickle tells that two copies are one class."""
    from cloudpickle import cloudpickle  # noqa: PLC0415 - loaded by now

    return getattr(cloudpickle, name)
