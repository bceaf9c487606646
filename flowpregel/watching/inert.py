"""Values as they are shown: read from their pickles, without running anything of the user's.

A pickle is a program: it names classes and functions of any module, and calls them. Here a
name stands for nothing but itself, and what is called with it, and put into it, is noted: a
`Shown`. So a store can be looked at without the program that wrote it, and a pickle that was
made to do harm does none. Only what must be made to be readable is made: `_KNOWN`, and
Python's own exceptions and ours.
"""

from __future__ import annotations

import builtins
import datetime
import io
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar
from uuid import UUID

from flowpregel import errors
from flowpregel._core.commands import Interrupt
from flowpregel._lmdb.codec import PythonCodec, rebuild_error
from flowpregel._lmdb.records import fields_of


class InertCodec(PythonCodec):
    """Decodes what `PythonCodec` encoded, without importing or calling what a value names.

    One value that cannot be read must not hide all the others: it is read as a text.

    Example:
        >>> codec = InertCodec()
        >>> codec.decode(codec.encode({"a": ZeroDivisionError("b")}))
        {'a': ZeroDivisionError('b')}
    """

    fields_of = staticmethod(fields_of)

    def decode(self, data: bytes) -> Any:
        try:
            return super().decode(data)
        except Exception as error:  # noqa: BLE001 - what is damaged may raise anything
            return f"<unreadable: {type(error).__name__}: {error}>"

    def _load(self, data: Any, main: bytes = b"", buffers: Sequence[Any] = ()) -> Any:
        return _ShownReader(io.BytesIO(data), buffers=buffers).load()


class _ShownReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        root = module.partition(".")[0]
        if root in ("builtins", "flowpregel"):
            found = vars(builtins if root == "builtins" else errors).get(name)
            if isinstance(found, type) and issubclass(found, BaseException):
                return found
        return stand_in(name, _KNOWN.get(f"{root}.{name}"))


class Shown:
    """An object of a class that is not looked up, or what a function would have returned.

    Args:
        args: What it was called with.
        fields: What it holds by name.
    """

    known: ClassVar[Callable[..., Any] | None] = None
    """Makes the object after all."""
    data: Mapping[str, Any] = {}
    """What it holds too, and is shown only if all of it is."""
    args: list[Any]
    fields: dict[Any, Any]

    def __new__(cls, /, *args: Any, **fields: Any) -> Any:
        """Make it in every way in which a pickle can."""
        if cls.known is not None:
            try:
                return cls.known(*args)
            except Exception:  # noqa: BLE001 - such as a time of a foreign time zone
                pass
        made = object.__new__(cls)
        made.args, made.fields = [*args], fields
        return made

    def __call__(self, *args: Any) -> Any:
        """Note that it was a function, and what that was called with."""
        return stand_in(repr(self))(*args)

    def __setstate__(self, state: Any) -> None:
        # With slots a state is that of the instance's dict, and that of the slots.
        both = isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)
        for part in state if both else (state,):
            if isinstance(part, dict):
                inner = part.get("__dict__")  # of a pydantic model
                self.fields |= inner if isinstance(inner, dict) else part
            elif part is not None:
                self.args += part if isinstance(part, list | tuple) else [part]

    def append(self, item: Any) -> None:
        """Note an item of a list, or of a set."""
        self.args.append(item)

    add = append

    def __setitem__(self, key: Any, value: Any) -> None:
        """Note an item of a dict."""
        self.args.append({key: value})

    def __repr__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self.fields.items()]
        return f"{type(self).__name__}({', '.join([*map(repr, self.args), *fields])})"


@lru_cache(1_000)
def stand_in(name: str, known: Callable[..., Any] | None = None) -> type[Shown]:
    """Return what stands for the class, or the function, of this name."""
    parts = {"known": known and staticmethod(known), "__module__": "builtins"}
    return type(name.rpartition("<locals>.")[2], (Shown,), parts)


class _Array(Shown):
    """An array of NumPy's: its shape and the type of its items."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, data = state
        self.fields, self.data = {"shape": shape, "dtype": dtype.args[0]}, {"data": data}


_Array.__name__ = "ndarray"


def _array(data: Any, dtype: Any, shape: Any, order: str) -> Any:
    made = _Array()
    made.__setstate__((1, shape, dtype, order, data))
    return made


def _number(dtype: Any, data: bytes) -> Any:
    """Return one item of an array as Python's number."""
    return struct.unpack("<" + _NUMBERS[dtype.args[0]], data)[0]


class _Zone(datetime.tzinfo):
    """A time zone: to make the real one its file would be looked for."""

    def __init__(self, key: str, *_: Any) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"ZoneInfo({self.key!r})"


def _attribute(owner: Any, name: str) -> Any:
    called = f"{owner.__name__}.{name}"
    return _Zone if called == "ZoneInfo._unpickle" else stand_in(called)


def _error(kind: Any, built_with: Any, args: Any, state: Any, cause: Any) -> BaseException:
    """Return an error of a class of the user's as one with its name, arguments and notes."""
    if issubclass(kind, Shown):
        kind, built_with = type(kind.__name__, (Exception,), {}), args
    return rebuild_error(kind, built_with, args, state, cause)


_NUMBERS = {"f8": "d", "f4": "f", "i8": "q", "i4": "i", "u8": "Q", "u4": "I", "b1": "?"}
_TIMES = ("date", "datetime", "time", "timedelta", "timezone")
_PATHS = (PurePosixPath, PureWindowsPath, type(Path()))
_KNOWN: dict[str, Any] = {
    **{f"datetime.{name}": getattr(datetime, name) for name in _TIMES},
    **{f"pathlib.{kind.__name__}": kind for kind in _PATHS},
    "uuid.UUID": partial(object.__new__, UUID),
    "builtins.getattr": _attribute,
    "collections.OrderedDict": dict,
    "collections.Counter": dict,
    "collections.defaultdict": lambda *_: {},
    "collections.deque": lambda items=(), *_: [*items],
    "flowpregel.Interrupt": partial(object.__new__, Interrupt),
    "flowpregel.rebuild_error": _error,
    "numpy.scalar": _number,
    "numpy._frombuffer": _array,
    "numpy._reconstruct": lambda *_: _Array(),
    "cloudpickle._make_skeleton_class": lambda kind, name, *_: stand_in(name),
    "cloudpickle._make_skeleton_enum": lambda bases, name, *_: stand_in(name),
}
"""By the first part of its module's name, and its own: what is made, and harmless to make."""
