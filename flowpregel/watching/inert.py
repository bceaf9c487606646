"""Values as they are shown: read from their pickles, without running anything of the user's.

A pickle is a program: it names classes and functions of any module, and calls them. Here a
name stands for nothing but itself, and what is called with it, and put into it, is noted: a
`Shown`. So a store can be looked at without the program that wrote it, and a pickle that was
made to do harm does none. Only what must be made to be readable is made: `_KNOWN`, and
Python's own exceptions and ours.

Nor does reading take longer than the bytes allow. A tuple of tuples that all hold one and the same
is a few hundred bytes, and to hash, compare or print it takes 2 to the power of its depth steps, in
C, where nothing can interrupt it. So no value is hashed: a key of a dict that is no text is a
`ShownKey`, and a set is the list of its items. What makes a text of a value asks `is_small` first.
Python's unpickler in C would hash; it only reads what `_harmless` has seen to hold nothing to hash.
"""

from __future__ import annotations

import builtins
import datetime
import io
import pickle
import re
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

_MOST_OBJECTS = 250_000
"""Of a value with more texts, containers and objects nothing is shown: some seconds' work."""


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
        if _harmless().fullmatch(data):
            return pickle.loads(data)
        return _ShownReader(io.BytesIO(data), buffers=buffers).load()


@lru_cache(1)
def _harmless() -> re.Pattern[bytes]:
    """Return what matches pickles of texts, numbers, lists and tuples, each of which is there once.

    No opcode in it names, calls, hashes or repeats anything. Such pickles are most of those that
    are read, and among them the largest.
    """
    texts = b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(256))
    opcodes = (
        rb"\x94", rb"[N\x88\x89]", rb"K.", rb"M..", rb"J.{4}", rb"G.{8}",
        rb"\x8c(?:" + texts + rb")", rb"[()\]tae\x85\x86\x87]", rb"\x95.{8}",
    )  # fmt: skip
    # Possessive: each byte is looked at once.
    return re.compile(rb"\x80.(?:" + b"|".join(opcodes) + rb")*+\.", re.DOTALL)


class ShownKey:
    """A key of a dict that is no text: another than all others, so that it need not be hashed.

    Args:
        value: The key.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


class ShownItems(list[Any]):
    """The items of a set, in the order in which they were written."""

    add = list[Any].append


def as_key(key: Any) -> Any:
    """Return what stands for a *key* in a dict."""
    return key if type(key) is str else ShownKey(key)


def is_small(value: Any, most: int = 100_000) -> bool:
    """Return whether a text of *value* can be made in bounded time.

    Args:
        value: Anything; containers, and what was read inertly, are looked into.
        most: How many items it may have, each counted as often as it is reached.
    """
    waiting = [value]
    while waiting:
        each = waiting.pop()
        parts: Sequence[Any] = ()
        match each:
            case str() | bytes() | bytearray():
                most -= len(each) // 1_000
            case dict():
                parts = (*each.keys(), *each.values())
            case list() | tuple() | set() | frozenset():
                parts = tuple(each)
            case ShownKey():
                parts = (each.value,)
            case Shown():
                parts = (*each.args, each.fields)
            case BaseException():
                parts = (*each.args, vars(each))
        most -= 1
        if most < len(parts):
            return False
        waiting.extend(parts)
    return True


class _ShownReader(pickle._Unpickler):  # noqa: SLF001 - the one in C hashes keys
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    stack: list[Any]
    memo: dict[int, Any]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # noqa: SLF001 - as above

    def load_dict(self) -> None:
        """Make a dict of the items behind the mark."""
        items = self.pop_mark()  # after which there is another stack
        self.append(_filled({}, items))

    def load_setitem(self) -> None:
        """Put an item into a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        _filled(self.stack[-1], (key, value))

    def load_setitems(self) -> None:
        """Put the items behind the mark into a dict."""
        items = self.pop_mark()
        _filled(self.stack[-1], items)

    def load_memoize(self) -> None:
        """Note an object that may be there again, unless there are too many."""
        if len(self.memo) >= _MOST_OBJECTS:
            raise pickle.UnpicklingError(f"it has over {_MOST_OBJECTS:,} objects")
        self.memo[len(self.memo)] = self.stack[-1]

    def load_empty_set(self) -> None:
        """Make a set without items."""
        self.append(ShownItems())

    def load_frozenset(self) -> None:
        """Make a set of the items behind the mark."""
        items = self.pop_mark()
        self.append(ShownItems(items))

    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.MEMOIZE[0]] = load_memoize
    dispatch[pickle.EMPTY_SET[0]] = load_empty_set
    dispatch[pickle.FROZENSET[0]] = load_frozenset

    def find_class(self, module: str, name: str) -> Any:
        root = module.partition(".")[0]
        if root in ("builtins", "flowpregel"):
            found = vars(builtins if root == "builtins" else errors).get(name)
            if isinstance(found, type) and issubclass(found, BaseException):
                return found
        return stand_in(name, _KNOWN.get(f"{root}.{name}"))


def _filled(target: Any, items: Sequence[Any]) -> Any:
    """Return *target*, a dict or what stands for one, with keys and values in turns."""
    if not isinstance(target, dict | Shown):
        raise pickle.UnpicklingError(f"a {type(target).__name__} has no items by key")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[as_key(key)] = value
    return target


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
        if cls.known is not None and (cls.known in _OF_ANY_SIZE or is_small(args)):
            try:
                return cls.known(*args)
            except Exception:  # noqa: BLE001 - such as a time of a foreign time zone
                pass
        made = object.__new__(cls)
        made.args, made.fields = [*args], fields
        return made

    def __call__(self, *args: Any) -> Any:
        """Note that it was a function, and what that was called with."""
        name = repr(self) if is_small(self) else type(self).__name__
        return stand_in(name)(*args)

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
        self.args.append({as_key(key): value})

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


def _dict(items: Any = (), *_: Any) -> dict[Any, Any]:
    """Return the dict of a mapping, or of pairs."""
    if isinstance(items, dict):
        return dict(items)
    return {as_key(key): value for key, value in items}


def _new_dict(*_: Any) -> dict[Any, Any]:
    """Return a dict whose items follow."""
    return {}


def _list(items: Any = (), *_: Any) -> list[Any]:
    """Return the items of a deque."""
    return [*items]


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
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "collections.defaultdict": _new_dict,
    "collections.deque": _list,
    "flowpregel.Interrupt": partial(object.__new__, Interrupt),
    "flowpregel.rebuild_error": _error,
    "numpy.scalar": _number,
    "numpy._frombuffer": _array,
    "numpy._reconstruct": lambda *_: _Array(),
    "cloudpickle._make_skeleton_class": lambda kind, name, *_: stand_in(name),
    "cloudpickle._make_skeleton_enum": lambda bases, name, *_: stand_in(name),
}
"""By the first part of its module's name, and its own: what is made, and harmless to make."""
_OF_ANY_SIZE = (_dict, _new_dict, _list, _error, _array)
"""Those of them that take no longer than their arguments are long: none makes a text."""
