"""Digests of the arguments of a call, by content.

Equal content gives an equal digest: in every process, whatever the order of a
dict or a set, and whether two parts of a value are one object or copies of each
other. A digest never depends on `hash`, on `id`, or on pickle's memo.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import marshal
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from pickle import PickleBuffer
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

from flowpregel._code.classes import is_importable
from flowpregel._code.digest import CodeDigest, code_digest, codes_hold
from flowpregel._code.sources import note_code
from flowpregel._code.values import (
    cells_of,
    is_ours,
    is_outside,
    reduced,
    target_of_partial,
    type_form,
)
from flowpregel._pickling.gained_fields import LeftOutFields, choices
from flowpregel._pickling.moved_classes import earlier_homes
from flowpregel.errors import ConfigurationError

_ATOMS: frozenset[type] = frozenset({int, str, bytes, type(None), float, bool, complex})
"""The types that `marshal` writes by content. Version 2 of the format is used, because
later versions write references to repeated objects, so that equal values may have
different bytes.
"""
_MARSHAL = 2
_SIZE = 16
_MOST_RUNS = 256
"""The number of runs, the latest ones, for which a `SharedSpace` (a cache namespace)
remembers that it has read the constants in the functions' code.
"""
_LARGE = 1 << 20
"""The size, in bytes, from which a buffer is hashed separately, with SHA-256."""


def digest_of(
    value: Any,
    description: str = "a value",
    *,
    strict: bool = False,
    fields: LeftOutFields | None = None,
) -> str:
    """Return a digest of the content of *value*: 32 hex digits.

    A class whose objects have a content that their pickle does not show can define a
    method ``__flowpregel_digest__`` that returns the digest of this content.

    Args:
        value: Anything. An object of a class that is not built in is digested by its
            reduction: the function that rebuilds it and the arguments, as pickle would
            store them.
        description: The name of the value in error messages.
        strict: True to refuse a value that has no content to digest, such as a lock;
            otherwise such a value is digested by its type.
        fields: The fields of objects to leave out, if any.

    Raises:
        ConfigurationError: *strict* is True, and a part of *value* has no content to
            digest.

    Example:
        >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
        True
    """
    digest = hashlib.blake2b(digest_size=_SIZE)
    try:
        _Feeder(digest.update, description, strict, fields).feed(value)
    except RecursionError as error:
        raise ConfigurationError(
            f"{description} are nested too deeply to be digested (lists in lists, "
            "objects that hold each other): pass them flat, or as text or bytes"
        ) from error
    return digest.hexdigest()


def earlier_digests(value: Any, description: str) -> Iterator[str]:
    """Yield the digests that *value* may have had before classes in it gained fields
    with defaults, or were moved or renamed.

    Args:
        value: The arguments of a call, or an input.
        description: The name of the value in error messages.
    """
    known = LeftOutFields({}, have_equal_content)
    digest_of(value, description, strict=False, fields=known)
    for left_out in choices(known.with_defaults):
        fields = LeftOutFields(left_out, _never)
        yield digest_of(value, description, strict=False, fields=fields)
    for homes in earlier_homes(known.classes):
        fields = LeftOutFields({}, _never, homes)
        yield digest_of(value, description, strict=False, fields=fields)


def _never(*_: Any) -> bool:
    return False


def have_equal_content(first: Any, second: Any) -> bool:
    """Return True if two values have equal content, and False if they differ, or have
    no content to digest.
    """
    try:
        digests = {
            digest_of(value, "a value", strict=True) for value in (first, second)
        }
    except ConfigurationError:
        return False
    return len(digests) == 1


def arguments_digest(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    description: str,
) -> str:
    """Return a digest of a call's arguments. A value without content is digested by its
    type.
    """
    plain = plain_digest(args, kwargs)
    if plain is not None:
        return plain
    return digest_of((args, dict(kwargs)), description, strict=False)


def plain_digest(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return the `arguments_digest` of arguments that are all positional and satisfy
    `has_plain_values`, or None for other arguments.
    """
    if kwargs or not _ATOMS.issuperset(map(type, args)):
        return None
    plain = b"plain" + marshal.dumps(args, _MARSHAL)
    return hashlib.blake2b(plain, digest_size=_SIZE).hexdigest()


def has_plain_values(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return True if all arguments are of a type in `_ATOMS`, such as numbers and
    strings, whose values refer to no file.
    """
    return _ATOMS.issuperset(map(type, chain(args, kwargs.values())))


def _reduced(value: Any) -> str | tuple[Any, ...]:
    """Return the reduction that pickle would make of *value*: the function that
    rebuilds it, and the arguments of that function. Only the reduction of an enum
    differs from pickle's.
    """
    if isinstance(value, enum.Flag) and value.name not in type(value).__members__:
        members = [member for member in type(value) if member in value]
        rest = value.value
        for member in members:
            rest &= ~member.value
        return type(value), ([member.name for member in members], rest)
    if isinstance(value, enum.Enum):
        # An enum member is reduced to its name, because it remains the same member if
        # its value is edited.
        return type(value), (value.name,)
    return reduced(value)


def definition_of(target: Any) -> tuple[str, str]:
    """Return the module and the qualified name of a callable."""
    target = target_of_partial(target)
    owner = target if hasattr(target, "__qualname__") else type(target)
    return getattr(owner, "__module__", None) or "__dynamic__", str(owner.__qualname__)


def space_of(
    name: str,
    functions: Sequence[Any],
    version: str | None = None,
) -> tuple[str, ...]:
    """Return the cache namespace of the results of *functions*.

    Two functions share a namespace only if they have the same module, name and code (or
    *version*), and close over equal values.

    Raises:
        ConfigurationError: A function refers to a value whose content the digest of
            code cannot include.
    """
    return SharedSpace(name, functions, version).now()


class SharedSpace:
    """The cache namespace of functions' results, which changes with their code.

    Args:
        name, functions, version: See `space_of`.
        ends: Strings that are appended to the namespace.
    """

    def __init__(
        self,
        name: str,
        functions: Sequence[Any],
        version: str | None = None,
        ends: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._ends = ends
        self._functions = functions
        self._version = version
        self._known: tuple[str, ...] = ()
        self._codes: list[CodeDigest] = []
        """The digests of the functions' code, which are part of the namespace."""
        self._asked_by: dict[Hashable, None] = {}
        """The latest runs that have used this namespace. For each of them, constants
        that may change in place were read again.
        """

    def now(self, run: Hashable = None) -> tuple[str, ...]:
        """Return the namespace for a call that is made now.

        Args:
            run: The run that makes the call. Constants are read again once for each
                run. If *run* is None, they are read again for each call.

        Raises:
            ConfigurationError: A function refers to a value whose content the digest of
                code cannot include.
        """
        if not self._known or not self._holds(run):
            self._known = self._read()
            if run is not None:
                self._asked_by[run] = None
            while len(self._asked_by) > _MOST_RUNS:
                self._asked_by.pop(next(iter(self._asked_by)), None)
        return self._known

    def _holds(self, run: Hashable) -> bool:
        if not codes_hold(self._codes):
            return False
        return all(code.is_fixed for code in self._codes) or run in self._asked_by

    def _read(self) -> tuple[str, ...]:
        codes = (
            [] if self._version is not None else [*map(code_digest, self._functions)]
        )
        parts = [self._name]
        for at, function in enumerate(self._functions):
            home = definition_of(function)
            parts.extend(home)
            if self._version is not None:
                parts.append(self._version)
                continue
            code = codes[at]
            if code.unseen:
                raise ConfigurationError(
                    f"the code of {home[1]!r} refers to {' and '.join(code.unseen)}, "
                    "but the code digest does not cover that content: its results "
                    "cannot be shared, because a change in it would go unnoticed; "
                    "give the task a version=, and change it by hand"
                )
            note_code(code.digest, [code], has_notices=False)
            parts.append(code.digest)
        self._codes = codes
        return (*parts, *self._ends)


def _carried(target: Any, seen: tuple[Any, ...] = ()) -> list[Any]:
    """Return the values that belong to a callable in addition to its code: bound
    arguments, defaults, and the values that it closes over.
    """
    if isinstance(target, functools.partial):
        return [*_carried(target.func, seen), target.args, dict(target.keywords)]
    if isinstance(target, MethodType):
        return [*_carried(target.__func__, seen), target.__self__]
    if not isinstance(target, FunctionType):
        return [target]
    carried: list[Any] = [target.__defaults__, target.__kwdefaults__]
    for content in cells_of(target).values():
        if not isinstance(content, FunctionType):
            carried.append(content)
        elif content not in seen:
            carried.extend(_carried(content, (*seen, target)))
    return carried


_MAKERS = [
    getattr(copyreg, name) for name in ("__newobj__", "__newobj_ex__", "_reconstructor")
]
"""The functions with which pickle rebuilds most objects. Their first argument is the
class.
"""
_FIELDS_SET = "__pydantic_fields_set__"


def _content_of_part(part: Any) -> Any:
    """Return the content of a part of a reduction, such as an object's state."""
    if isinstance(part, dict) and _FIELDS_SET in part:
        # In pydantic, two models are equal whichever of their fields were set
        # explicitly. So the set of these fields is left out.
        return {key: item for key, item in part.items() if key != _FIELDS_SET}
    is_iterator = hasattr(part, "__next__")
    return list(part) if is_iterator else part


class _Feeder:
    """A writer that adds values to a digest, each with its kind and size, so that
    different values give different bytes.
    """

    __slots__ = ("_fields", "_meanings", "_open", "_strict", "_update", "_what")

    def __init__(
        self,
        update: Callable[[Any], None],
        description: str,
        strict: bool,
        fields: LeftOutFields | None = None,
    ) -> None:
        self._update = update
        self._fields = fields
        self._what = description
        self._strict = strict
        self._open: dict[int, int] = {}
        """The depth of the value that is being written, and of each value that contains
        it, by the id of the value.
        """
        self._meanings: dict[type, str] = {}
        """The digests of the code of classes. They are cached, because a value may
        contain many objects of a class.
        """

    def feed(self, value: Any) -> None:
        """Add *value* to the digest."""
        kind = type(value)
        if kind in _ATOMS:
            self._update(marshal.dumps(value, _MARSHAL))
            return
        depth = len(self._open)
        if (first := self._open.setdefault(id(value), depth)) != depth:
            # The value contains itself. In its place, the number of levels to the outer
            # occurrence is written.
            self._update(b"^%d" % (depth - first))
            return
        _WRITERS.get(kind, _Feeder._feed_object)(self, value)
        del self._open[id(value)]

    def _feed_sequence(self, value: list[Any] | tuple[Any, ...]) -> None:
        tag = b"[" if type(value) is list else b"("
        self._update(tag + b"%d:" % len(value))
        if _ATOMS.issuperset(map(type, value)):
            self._update(marshal.dumps(value, _MARSHAL))
            return
        for item in value:
            self.feed(item)

    def _feed_dict(self, value: dict[Any, Any]) -> None:
        self._update(b"{%d:" % len(value))
        keyed = [(self._apart(key), item) for key, item in value.items()]
        for digest, item in sorted(keyed, key=lambda pair: pair[0]):
            self._update(digest)
            self.feed(item)

    def _feed_set(self, value: set[Any] | frozenset[Any]) -> None:
        self._update((b"<%d:" if type(value) is set else b">%d:") % len(value))
        for digest in sorted(map(self._apart, value)):
            self._update(digest)

    def _apart(self, value: Any) -> bytes:
        """Return a separate digest of *value*, for the order in which the keys of a
        dict and the items of a set are written.
        """
        digest = hashlib.blake2b(digest_size=_SIZE)
        feeder = _Feeder(digest.update, self._what, self._strict, self._fields)
        feeder._open, feeder._meanings = self._open, self._meanings
        feeder.feed(value)
        return digest.digest()

    def _feed_bytes(self, value: Any) -> None:
        with memoryview(value) as view:
            self._update(b"b%d:" % view.nbytes)
            data = view if view.c_contiguous else view.tobytes()
            # Large buffers are hashed with SHA-256 first. With the processor's
            # instructions for SHA-256, this takes about a third of the time.
            self._update(
                data if view.nbytes < _LARGE else hashlib.sha256(data).digest()
            )

    def _feed_function(self, value: Any) -> None:
        self._update(b"f")
        self.feed((code_digest(value).digest, _carried(value)))

    def _feed_object(self, value: Any) -> None:
        """Add an object to the digest as pickle would reduce it: the function that
        rebuilds the object, and the arguments of that function.
        """
        kind = type(value)
        if isinstance(value, type):
            self._feed_class(value, is_value=True)
            return
        if (known := getattr(kind, "__flowpregel_digest__", None)) is not None:
            # The object never changes, and stores a digest of the content, so the
            # content is not read.
            self._update(b"h")
            self.feed(known(value))
            return
        if kind.__module__.partition(".")[0] == "pathlib":
            # Paths are written as strings. Since Python 3.12, a path's reduction has
            # the segments from which it was built, which may differ between equal
            # paths.
            self._update(b"p")
            self.feed((kind.__qualname__, str(value)))
            return
        if (form := type_form(value)) is not None:
            self._update(b"t")
            self.feed(form)
            return
        try:
            parts = _reduced(value)
        except Exception as error:  # noqa: BLE001 - raised by a user's `__reduce__`
            self._refuse(value, error)
            return
        if self._fields is not None:
            parts = self._fields.strip(value, parts)
        self._update(b"o")
        if isinstance(parts, str):
            # The object is reduced to its name, which does not change with its code. If
            # it is a wrapper, such as one made by `functools.cache`, the wrapped
            # function is written too.
            inner = getattr(value, "__wrapped__", None)
            self.feed((*definition_of(kind), getattr(value, "__module__", None), parts))
            if isinstance(inner, FunctionType) and not is_ours(value):
                self.feed(inner)
        else:
            self._feed_parts(kind, parts)

    def _feed_parts(self, kind: type, parts: tuple[Any, ...]) -> None:
        """Add the reduction *parts* of an object of the class *kind* to the digest."""
        maker, arguments, *rest = parts
        self.feed(self._home_of(maker))
        if isinstance(maker, type):
            self._feed_meaning(maker, is_value=maker is not kind)
        elif isinstance(maker, FunctionType) and "<locals>" in maker.__qualname__:
            self.feed(maker)
        if maker in _MAKERS and arguments[0] is kind:
            self._update(b"(%d:" % len(arguments))
            self._feed_class(kind, is_value=False)
            for item in arguments[1:]:
                self.feed(item)
        else:
            self.feed(arguments)
        for part in rest:
            self.feed(_content_of_part(part))

    def _feed_class(self, class_: type, *, is_value: bool) -> None:
        self._update(b"c")
        self.feed(self._home_of(class_))
        self._feed_meaning(class_, is_value=is_value)

    def _home_of(self, target: Any) -> tuple[str, str]:
        """Return the module and name of a class or function, or its earlier module and
        name if this digest uses earlier names.
        """
        home = definition_of(target)
        if self._fields is None:
            return home
        if not isinstance(target, type):
            return home
        if is_outside(target):
            return home
        earlier = self._fields.home_of(target)
        return earlier or home

    def _feed_meaning(self, class_: type, *, is_value: bool) -> None:
        """Add the digest of a class's code to the digest, unless its name is enough.

        For recorded calls, the name of an importable class is enough: if a bug in a
        method of the class is fixed, an object is still the same argument. For a cache
        that runs share (*strict*), the code is included, because a miss costs no more
        than computing the result again.
        """
        if is_importable(class_) and (
            is_outside(class_) or not (is_value or self._strict)
        ):
            return
        if class_ not in self._meanings:
            code = code_digest(class_)
            if code.unseen and self._strict:
                raise ConfigurationError(
                    f"{self._what} cannot be compared by content: the class "
                    f"{class_.__qualname__} refers to {' and '.join(code.unseen)}; "
                    "give the cache policy a key_func, or the task a version"
                )
            self._meanings[class_] = code.digest
        self.feed(self._meanings[class_])

    def _refuse(self, value: Any, error: Exception) -> None:
        if self._strict:
            raise ConfigurationError(
                f"{self._what} cannot be compared by content, because of a "
                f"{type(value).__qualname__} ({error}); give the cache policy a "
                "key_func, or the task a version"
            ) from error
        self._update(b"?")
        self.feed(definition_of(type(value)))


_WRITERS: dict[type, Callable[[_Feeder, Any], None]] = {
    list: _Feeder._feed_sequence,  # noqa: SLF001 - its own table
    tuple: _Feeder._feed_sequence,  # noqa: SLF001
    dict: _Feeder._feed_dict,  # noqa: SLF001
    MappingProxyType: _Feeder._feed_dict,  # noqa: SLF001
    set: _Feeder._feed_set,  # noqa: SLF001
    frozenset: _Feeder._feed_set,  # noqa: SLF001
    bytearray: _Feeder._feed_bytes,  # noqa: SLF001
    memoryview: _Feeder._feed_bytes,  # noqa: SLF001
    PickleBuffer: _Feeder._feed_bytes,  # noqa: SLF001
    FunctionType: _Feeder._feed_function,  # noqa: SLF001
}
