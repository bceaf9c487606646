"""Values decoded from their pickles without running any of the user's code.

A pickle is a program: it names classes and functions of any module and calls them. This
module does not look these names up. An `OpaqueObject` records the name, the arguments
of the call and the state of the object instead. A store can therefore be read without
the program that wrote it, and a malicious pickle does no harm. Real objects are created
only of the types in `_READABLE_TYPES`, and of Python's and flowpregel's exceptions.

The time to read a value grows no faster than the number of bytes. A tuple that holds
the same tuple twice, which holds the same tuple twice, and so on, has a few hundred
bytes, but hashing, comparing or printing it takes 2 ** depth steps, in C code that
nothing can interrupt. So no value is hashed: a dict key that is not a `str` becomes an
`OpaqueKey`, and a set becomes a list. Code that converts a value to text calls
`is_small` first. Python's C unpickler would hash keys, so it only reads pickles that
match `_harmless`, which contain nothing to hash.
"""

from __future__ import annotations

import builtins
import datetime
import io
import pickle
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar
from uuid import UUID

from flowpregel import errors
from flowpregel._core.commands import Interrupt
from flowpregel.storage.codec import PythonCodec, rebuild_error
from flowpregel.storage.plain_fields import fields_of

_MOST_OBJECTS = 250_000
"""The greatest number of strings, containers and objects in a value. A value with more
of them would take too long to read.
"""


class InertCodec(PythonCodec):
    """A codec that decodes the values that `PythonCodec` encodes, but neither imports
    nor calls the objects that they name.

    A value that cannot be decoded is replaced by a string that explains why, so that
    all other values can still be shown.

    Example:
        >>> codec = InertCodec()
        >>> codec.decode(codec.encode({"a": ZeroDivisionError("b")}))
        {'a': ZeroDivisionError('b')}
    """

    fields_of = staticmethod(fields_of)

    def decode(self, data: bytes) -> Any:
        """Return the value in *data*, or a string that explains why that failed."""
        try:
            return super().decode(data)
        except Exception as error:  # noqa: BLE001 - damaged data may raise anything
            kind = type(error).__name__
            return f"<unreadable: {kind}: {error}>"

    def _load(
        self,
        data: Any,
        main: bytes = b"",
        buffers: Sequence[Any] = (),
    ) -> Any:
        if _harmless().fullmatch(data):
            return pickle.loads(data)
        reader = _InertUnpickler(io.BytesIO(data), buffers=buffers)
        return reader.load()


@lru_cache(1)
def _harmless() -> re.Pattern[bytes]:
    """Return a pattern for pickles of strings, numbers, lists and tuples without
    repeated objects.

    None of the opcodes in the pattern names, calls, hashes or repeats an object. Most
    pickles in a store match the pattern, including the largest.
    """
    texts = b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(256))
    opcodes = (
        rb"\x94",
        rb"[N\x88\x89]",
        rb"K.",
        rb"M..",
        rb"J.{4}",
        rb"G.{8}",
        rb"\x8c(?:" + texts + rb")",
        rb"[()\]tae\x85\x86\x87]",
        rb"\x95.{8}",
    )
    opcode = b"|".join(opcodes)
    # The quantifier is possessive, so that the pattern reads each byte only once.
    return re.compile(rb"\x80.(?:" + opcode + rb")*+\.", re.DOTALL)


class OpaqueKey:
    """A placeholder for a dict key that is not a string.

    No two placeholders are equal, and the key itself is not hashed.

    Args:
        value: The key in whose place it stands.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


class OpaqueItems(list[Any]):
    """The items of a set, in the order in which they were written."""

    add = list[Any].append


def as_key(key: Any) -> Any:
    """Return *key* if it is a string, or else an `OpaqueKey` as its placeholder."""
    if type(key) is str:
        return key
    return OpaqueKey(key)


def is_small(value: Any, most: int = 100_000) -> bool:
    """Return whether *value* can be converted to text in bounded time.

    Args:
        value: Any value. The parts of containers and opaque objects are counted too.
        most: The limit on the number of items. An item is counted again each time it is
            repeated.
    """
    remaining = most
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str | bytes | bytearray):
            thousands = len(item) // 1_000
            remaining -= thousands
        parts = _parts_of_item(item)
        remaining -= 1
        if remaining < len(parts):
            return False
        pending.extend(parts)
    return True


def _parts_of_item(item: Any) -> Sequence[Any]:
    """Return the values that the `repr` of *item* would contain."""
    match item:
        case dict():
            parts = list(item.keys())
            parts += item.values()
            return parts
        case list() | tuple() | set() | frozenset():
            return tuple(item)
        case OpaqueKey():
            return (item.value,)
        case OpaqueObject():
            return (*item.args, item.fields)
        case BaseException():
            return (*item.args, vars(item))
    return ()


def stored_locations(value: Any) -> Iterator[str]:
    """Yield the paths and URLs of the files to which the handles of stored values in
    *value* refer (see `flowpregel.stored`).

    Args:
        value: A value that `InertCodec` has decoded.
    """
    pending = [value]
    # A container may occur many times in the value, and is searched once.
    searched: set[int] = set()
    while pending:
        item = pending.pop()
        if isinstance(item, _OpaqueStored):
            yield str(item.data["location"])
            continue
        parts = _parts_of_item(item)
        if parts and id(item) not in searched:
            searched.add(id(item))
            pending.extend(parts)


class _InertUnpickler(pickle._Unpickler):  # noqa: SLF001 - the one in C hashes keys
    """Python's unpickler, with opaque objects in place of the user's objects."""

    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    stack: list[Any]
    memo: dict[int, Any]
    dispatch: ClassVar[dict[int, Any]] = dict(
        pickle._Unpickler.dispatch  # noqa: SLF001 - as above
    )

    def load_dict(self) -> None:
        """Make a dict of the items after the last mark on the unpickler's stack."""
        # `pop_mark` is called first, because it replaces `self.stack`. Otherwise the
        # new dict would be appended to the old stack.
        items = self.pop_mark()
        self.append(_set_items({}, items))

    def load_setitem(self) -> None:
        """Put an item into a dict."""
        value = self.stack.pop()
        key = self.stack.pop()
        target = self.stack[-1]
        _set_items(target, (key, value))

    def load_setitems(self) -> None:
        """Put the items after the last mark into a dict."""
        items = self.pop_mark()
        target = self.stack[-1]
        _set_items(target, items)

    def load_memoize(self) -> None:
        """Remember an object to which the pickle may refer again (opcode MEMOIZE).

        Raises:
            UnpicklingError: There are too many objects.
        """
        count = len(self.memo)
        if count >= _MOST_OBJECTS:
            raise pickle.UnpicklingError(f"it has over {_MOST_OBJECTS:,} objects")
        self.memo[count] = self.stack[-1]

    def load_empty_set(self) -> None:
        """Make a set without items."""
        self.append(OpaqueItems())

    def load_frozenset(self) -> None:
        """Make a set of the items after the last mark on the unpickler's stack."""
        items = self.pop_mark()
        self.append(OpaqueItems(items))

    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.MEMOIZE[0]] = load_memoize
    dispatch[pickle.EMPTY_SET[0]] = load_empty_set
    dispatch[pickle.FROZENSET[0]] = load_frozenset

    def find_class(self, module: str, name: str) -> Any:
        """Return an exception class of Python or flowpregel, or a placeholder for any
        other class.
        """
        package = module.partition(".")[0]
        exception = _known_exception(package, name)
        if exception is not None:
            return exception
        factory = _READABLE_TYPES.get(f"{package}.{name}")
        return opaque_class(name, factory)


def _known_exception(
    package: str,
    name: str,
) -> type[BaseException] | None:
    """Return the exception class of Python or flowpregel with this name, or None."""
    match package:
        case "builtins":
            candidate = vars(builtins).get(name)
        case "flowpregel":
            candidate = vars(errors).get(name)
        case _:
            return None
    if isinstance(candidate, type) and issubclass(candidate, BaseException):
        return candidate
    return None


def _set_items(target: Any, items: Sequence[Any]) -> Any:
    """Put items into *target*, and return *target*.

    Args:
        target: A dict, or the placeholder for an object with items.
        items: Alternating keys and values.
    """
    if not isinstance(target, dict | OpaqueObject):
        kind = type(target).__name__
        raise pickle.UnpicklingError(f"a {kind} has no items by key")
    keys = items[::2]
    values = items[1::2]
    for key, value in zip(keys, values, strict=True):
        target[as_key(key)] = value
    return target


class OpaqueObject:
    """A placeholder for an object whose class is not looked up, or for the result of a
    function that is not looked up.

    Args:
        args: The arguments of the call that created the object.
        fields: The object's fields by name.
    """

    factory: ClassVar[Callable[..., Any] | None] = None
    """A harmless function that creates the real object, or None."""
    data: Mapping[str, Any] = {}
    """Fields that a preview leaves out. Only a full view shows them."""
    args: list[Any]
    fields: dict[Any, Any]

    def __new__(cls, /, *args: Any, **fields: Any) -> Any:
        """Return the real object if a factory can create it, or else a placeholder.

        A pickle may call this method with or without arguments.
        """
        factory = cls.factory
        if factory is not None and (factory in _ANY_SIZE or is_small(args)):
            try:
                return factory(*args)
            except Exception:  # noqa: BLE001 - such as a time of a foreign time zone
                pass
        instance = object.__new__(cls)
        instance.args = list(args)
        instance.fields = fields
        return instance

    def __call__(self, *args: Any) -> Any:
        """Return a placeholder for the result of calling this object."""
        name = type(self).__name__
        if is_small(self):
            name = repr(self)
        result_class = opaque_class(name)
        return result_class(*args)

    def __setstate__(self, state: Any) -> None:
        if _has_slots(state):
            instance_state, slots_state = state
            self._add_state(instance_state)
            self._add_state(slots_state)
        else:
            self._add_state(state)

    def _add_state(self, state: Any) -> None:
        if isinstance(state, dict):
            # If the object is a pydantic model, the state has the fields under
            # ``__dict__``.
            model_fields = state.get("__dict__")
            if isinstance(model_fields, dict):
                self.fields |= model_fields
            else:
                self.fields |= state
        elif isinstance(state, list | tuple):
            self.args += state
        elif state is not None:
            self.args.append(state)

    def append(self, item: Any) -> None:
        """Record an item of a list or of a set."""
        self.args.append(item)

    add = append

    def __setitem__(self, key: Any, value: Any) -> None:
        """Record an item of a dict."""
        item = {as_key(key): value}
        self.args.append(item)

    def __repr__(self) -> str:
        kind = type(self).__name__
        parts = [repr(argument) for argument in self.args]
        for name, value in self.fields.items():
            parts.append(f"{name}={value!r}")
        arguments = ", ".join(parts)
        return f"{kind}({arguments})"


def _has_slots(state: Any) -> bool:
    """Return whether a pickled state is a pair: the instance's dict, and its slots."""
    if not isinstance(state, tuple) or len(state) != 2:
        return False
    _, slots_state = state
    return isinstance(slots_state, dict)


@lru_cache(1_000)
def opaque_class(
    name: str,
    factory: Callable[..., Any] | None = None,
) -> type[OpaqueObject]:
    """Return the placeholder for the class or function with this name."""
    namespace: dict[str, Any] = {
        "factory": None,
        "__module__": "builtins",
    }
    if factory is not None:
        namespace["factory"] = staticmethod(factory)
    short_name = name.rpartition("<locals>.")[2]
    return type(short_name, (OpaqueObject,), namespace)


class _OpaqueArray(OpaqueObject):
    """A NumPy array, represented by its shape and dtype."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, data = state
        self.fields = {"shape": shape, "dtype": dtype.args[0]}
        self.data = {"data": data}


_OpaqueArray.__name__ = "ndarray"


def _array(
    data: Any,
    dtype: Any,
    shape: Any,
    order: str,
) -> Any:
    """Return the array that NumPy's unpickling function would create."""
    array = _OpaqueArray()
    array.__setstate__((1, shape, dtype, order, data))
    return array


def _empty_array(*_: Any) -> Any:
    """Return an array whose state follows later in the pickle."""
    return _OpaqueArray()


class _OpaqueStored(OpaqueObject):
    """A handle of a stored value, represented by the value's type and size."""


_OpaqueStored.__name__ = "Stored"


def _stored_handle(
    location: Any,
    digest: Any,
    nbytes: Any,
    type_name: Any,
) -> Any:
    """Return a placeholder for the handle of a stored value, without reading the
    value.
    """
    handle = _OpaqueStored()
    handle.fields = {"type_name": type_name, "nbytes": nbytes}
    handle.data = {"location": location, "digest": digest}
    return handle


def _dict(items: Any = (), *_: Any) -> dict[Any, Any]:
    """Return a dict with the items of a mapping, or of key and value pairs."""
    if isinstance(items, dict):
        return dict(items)
    entries: dict[Any, Any] = {}
    for key, value in items:
        entries[as_key(key)] = value
    return entries


def _new_dict(*_: Any) -> dict[Any, Any]:
    """Return a dict whose items follow later in the pickle."""
    return {}


def _list(items: Any = (), *_: Any) -> list[Any]:
    """Return the items of a deque."""
    return list(items)


def _array_item(dtype: Any, data: bytes) -> Any:
    """Return an array item as a Python number."""
    (type_name, *_) = dtype.args
    number_format = _NUMBER_FORMATS[type_name]
    (number,) = struct.unpack("<" + number_format, data)
    return number


class _Zone(datetime.tzinfo):
    """A placeholder for a time zone, which has only the zone's key. Creating the real
    zone would read a file.
    """

    def __init__(self, key: str, *_: Any) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"ZoneInfo({self.key!r})"


def _attribute(owner: Any, name: str) -> Any:
    """Return a placeholder for the attribute *name* of a class, such as a method that
    creates the object.
    """
    qualified_name = f"{owner.__name__}.{name}"
    if qualified_name == "ZoneInfo._unpickle":
        return _Zone
    return opaque_class(qualified_name)


def _class_by_name(_: Any, name: str, *__: Any) -> type[OpaqueObject]:
    """Return a placeholder for a class that cloudpickle has pickled by value."""
    return opaque_class(name)


def _error(
    kind: Any,
    built_with: Any,
    args: Any,
    state: Any,
    cause: Any,
) -> BaseException:
    """Return the error that a pickle describes.

    If its class is the user's, the error gets a new class with the same name. It has
    the same arguments and notes.
    """
    if issubclass(kind, OpaqueObject):
        name = kind.__name__
        kind = type(name, (Exception,), {})
        built_with = args
    return rebuild_error(kind, built_with, args, state, cause)


_NUMBER_FORMATS = {
    "f8": "d",
    "f4": "f",
    "i8": "q",
    "i4": "i",
    "u8": "Q",
    "u4": "I",
    "b1": "?",
}
_TIMES = (
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
)
_PATHS = (PurePosixPath, PureWindowsPath, type(Path()))
_READABLE_TYPES: dict[str, Any] = {
    **{f"datetime.{kind.__name__}": kind for kind in _TIMES},
    **{f"pathlib.{kind.__name__}": kind for kind in _PATHS},
    "uuid.UUID": partial(object.__new__, UUID),
    "builtins.getattr": _attribute,
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "collections.defaultdict": _new_dict,
    "collections.deque": _list,
    "flowpregel.Interrupt": partial(object.__new__, Interrupt),
    "flowpregel.Stored": _stored_handle,
    "flowpregel.rebuild_error": _error,
    "numpy.scalar": _array_item,
    "numpy._frombuffer": _array,
    "numpy._reconstruct": _empty_array,
    "cloudpickle._make_skeleton_class": _class_by_name,
    "cloudpickle._make_skeleton_enum": _class_by_name,
}
"""Harmless factories, by the top-level package and the name of a class or function."""
_ANY_SIZE = (_dict, _new_dict, _list, _error, _array)
"""Factories that accept arguments of any size. They do not convert arguments to text,
so they take time in proportion to the number of arguments.
"""
