"""Pickles that refer to classes by name, and keep exceptions that pickle would break.

The C pickler asks `_Pickler.reducer_override` only about objects that are not of
a built-in plain type, so plain data is as fast as it can be.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

_PROTOCOL = 5
OUT_OF_BAND = 128 << 10
"""Buffers of so many bytes stay outside of the pickle, and are copied only once."""


def dumps(value: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
    """Return *value* pickled; large buffers are appended to *buffers* instead."""

    def keep_outside(buffer: pickle.PickleBuffer) -> bool:
        try:
            if buffer.raw().nbytes < OUT_OF_BAND:
                return True
        except BufferError:  # not contiguous
            return True
        buffers.append(buffer)
        return False

    file = io.BytesIO()
    try:
        _Pickler(file, _PROTOCOL, buffer_callback=keep_outside).dump(value)
    except Exception:  # noqa: BLE001 - a class may raise anything while it is pickled
        buffers.clear()
        return _dumps_by_value(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException):
            return _reduce_exception(obj)
        return NotImplemented


def _dumps_by_value(value: Any) -> bytes:
    import cloudpickle  # noqa: PLC0415 - heavy, needed only for what has no name

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, BaseException):
                return _reduce_exception(obj)
            # cloudpickle keeps all of `__main__` by value: read back, a class would be
            # another one, and `isinstance` and the identity of enums would not hold.
            if getattr(obj, "__module__", None) == "__main__" and _has_a_name(obj):
                return NotImplemented
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file, _PROTOCOL).dump(value)
    return file.getvalue()


def _has_a_name(obj: Any) -> bool:
    found: Any = sys.modules.get("__main__")
    for name in getattr(obj, "__qualname__", "<locals>").split("."):
        found = getattr(found, name, None)
    return found is obj


# ---------------------------------------------------------------- exceptions


def _reduce_exception(error: BaseException) -> Any:
    """Return how to rebuild *error* without calling an ``__init__`` of its own.

    Pickle calls the class with ``args``; that fails, when it is too late, for a
    class whose ``__init__`` takes other arguments than it passes on.
    """
    kind = type(error)
    own_form = kind.__reduce__ is not _builtin_base(kind).__reduce__ or (
        kind.__reduce_ex__ is not object.__reduce_ex__
    )
    if own_form or "__getstate__" in vars(kind) or "__setstate__" in vars(kind):
        return NotImplemented
    if kind is _builtin_base(kind) and not error.__cause__:
        # Not by what another library may have registered for it with copyreg (tblib does).
        return kind.__reduce__(error)
    state = {**vars(error)}
    base = _builtin_base(kind)
    reduced = base.__reduce__(error)
    assert isinstance(reduced, tuple)
    return _rebuild, (kind, reduced[1], error.args, state, error.__cause__)


def _rebuild(
    kind: type[BaseException],
    built_with: tuple[Any, ...],
    args: tuple[Any, ...],
    state: dict[str, Any],
    cause: BaseException | None,
) -> BaseException:
    base = _builtin_base(kind)
    error: BaseException = base.__new__(kind, *built_with)
    base.__init__(error, *built_with)
    error.args = args
    for name, value in state.items():
        error.__dict__[name] = value
    if cause is not None:
        error.__cause__ = cause
    return error


def _builtin_base(kind: type[BaseException]) -> Any:
    """Return the nearest base that is written in C, whose parts are not in ``__dict__``."""
    return next(
        base
        for base in kind.__mro__
        if base.__module__ == "builtins" and issubclass(base, BaseException)
    )
