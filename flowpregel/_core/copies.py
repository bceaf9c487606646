"""Copies of values that no later change of the original can reach; objects that are not
copied.

A value in an in-memory saver, store or cache must not change after it was stored. So a
value of an immutable built-in type is stored itself. Any other value is pickled, and
the pickle is stored in a tuple of one item: no value that is stored itself is a tuple.

Savers, stores and caches stay in their process: a worker has stand-ins for them.
"""

from __future__ import annotations

import io
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any, NoReturn, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from flowpregel._code.classes import class_of_main, is_importable
from flowpregel._core.ids import AttemptRecord
from flowpregel.errors import ConfigurationError, RecordedError, ValueEncodingError

IMMUTABLE: frozenset[type] = frozenset(
    {int, str, bytes, type(None), float, bool, AttemptRecord}
)
"""The exact types whose values are stored without a copy."""

_PROTOCOL = 5


def snapshot_value(value: Any, description: str) -> Any:
    """Return a copy of *value* for `restore_value`.

    Args:
        value: Anything that pickle or cloudpickle can write.
        description: What the value is, for the message of an error.

    Raises:
        ValueEncodingError: Neither can write it.

    Example:
        >>> kept = snapshot_value([1, 2], "an example")
        >>> restore_value(kept, "an example")
        [1, 2]
    """
    if type(value) in IMMUTABLE:
        return value
    try:
        data = pickle.dumps(value, _PROTOCOL)
        if isinstance(value, BaseException):
            # Only an exception's class can make one that is written and never read.
            pickle.loads(data)
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
        data = _dumps_by_value(value, description)
    return (data,)


def as_storable(error: BaseException) -> BaseException:
    """Return *error* if it can be stored, or an error to store in its place."""
    try:
        snapshot_value(error, "an error")
    except ValueEncodingError:
        stand_in = RecordedError(type(error).__qualname__, str(error))
        for note in getattr(error, "__notes__", ()):
            stand_in.add_note(note)
        return stand_in
    return error


def restore_value(snapshot: Any, description: object) -> Any:
    """Return a new copy of the value that `snapshot_value` was given.

    Raises:
        ValueEncodingError: The value's class cannot be read back.
    """
    if type(snapshot) is not tuple:
        return snapshot
    try:
        return pickle.loads(snapshot[0])
    except Exception as error:
        raise ValueEncodingError(
            f"{description} was kept but cannot be read back: {type(error).__name__}: "
            f"{error}; check the class's __reduce__ or __setstate__"
        ) from error


def private_copy(value: Any) -> Any:
    """Return a copy of *value* that no change of it reaches; *value* itself if it
    cannot be copied.

    Example:
        >>> given = [1]
        >>> private_copy(given) == given, private_copy(given) is given
        (True, False)
    """
    if type(value) in IMMUTABLE:
        return value
    try:
        return restore_value(snapshot_value(value, "a value"), "a value")
    except ValueEncodingError:
        return value


@cache
def by_value_pickler() -> Any:
    """Return a pickler for what plain pickle cannot: lambdas, closures, classes in
    functions.
    """
    import cloudpickle  # noqa: PLC0415 - 30 ms, and seldom needed

    class WithoutVariables(cloudpickle.Pickler):  # type: ignore[misc]
        """A cloudpickle pickler that leaves out the namespace around a pydantic class.

        A pydantic class in a function keeps the variables of that function for names in
        annotations; any of them may be a lock.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, CodeType):
                # Since 3.1.3 cloudpickle leaves the file's name out. Its text is a new
                # object each time, like the other texts of the code: otherwise the
                # pickle would depend on other references to the same text.
                return code_of_file, (
                    "".join(obj.co_filename),
                    *self.dispatch_table[CodeType](obj),
                )
            if isinstance(obj, io.TextIOWrapper) and obj not in (
                sys.stdout,
                sys.stderr,
            ):
                # cloudpickle would read the file, and pickle a `StringIO` in its place.
                raise TypeError("cannot pickle an open file: pass its path")
            reduced = super().reducer_override(obj)
            if (
                isinstance(obj, type)
                and isinstance(reduced, tuple)
                and len(reduced) > 2
            ):
                reduced[2][0].pop("__pydantic_parent_namespace__", None)
                if is_importable(obj):
                    # The reading process cannot import it, but digests must be equal.
                    reduced = (class_of_main, reduced[:2], *reduced[2:])
            return reduced

    return WithoutVariables


def code_of_file(
    file: str,
    make: Callable[..., CodeType],
    arguments: tuple[Any, ...],
) -> CodeType:
    """Return the code that cloudpickle rebuilds, with *file* as the file name."""
    return make(*arguments).replace(co_filename=file)


def _dumps_by_value(value: Any, description: str) -> bytes:
    try:
        out = io.BytesIO()
        by_value_pickler()(out, protocol=_PROTOCOL).dump(value)
        data = out.getvalue()
        pickle.loads(data)
    except Exception as error:
        raise ValueEncodingError(
            f"{description} cannot be kept: a {type(value).__name__} does not survive "
            f"pickling ({type(error).__name__}: {error}); keep it in a Context or "
            "UntrackedValue channel, or give its class a __reduce__"
        ) from error
    return data


Decode: TypeAlias = Callable[[Sequence[Any]], tuple[tuple[Any, ...], ...]]
"""Decodes the stored writes of several supersteps, each time into new objects."""


@dataclass(frozen=True, eq=False, repr=False)
class ReplayedWrites(Sequence[tuple[Any, ...]]):
    """The writes of a channel's supersteps, oldest first: a tuple for each.

    The states of one history have most writes in common. They share the stored form,
    and each decodes what it needs, so that no object is in two states.
    """

    stored: Sequence[Any]
    """The stored writes of all supersteps of the channel, oldest first."""
    stop: int
    """The index behind the last superstep that counts."""
    decode: Decode
    start: int = 0

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.decode(self.stored[self.start : self.stop]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | ReplayedWrites):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, or what goes to another process, is the tuple that it stands for.
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))


# ---------------------------------------------------------------- what is not copied
#
#     coordinator                      worker
#     a graph with its saver  -------> a graph with a stand-in
#     a graph with its saver  <------- a call of that graph, which the coordinator runs


class ProcessBound:
    """An object that is not copied to a worker, where it would be another object."""


_names: WeakKeyDictionary[ProcessBound, str] = WeakKeyDictionary()
_made_here: WeakValueDictionary[str, ProcessBound] = WeakValueDictionary()


class Placeholder:
    """Stands for an object of another process, and becomes it again when sent there.

    Args:
        name: The name of the object.
        kind: The name of the object's class.
    """

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigurationError(
            f".{name} of {self!r} was asked for in a worker process: ask outside of "
            "the run, or give the node executor='threads'"
        )

    def __repr__(self) -> str:
        return f"<stand-in for a {self._kind} of another process>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (self._name, self._kind)


def reference_to(resident: ProcessBound) -> tuple[Any, ...]:
    """Return the reduction of *resident* for a pickle: by its name in this process."""
    name = _names.setdefault(resident, uuid.uuid4().hex)
    _made_here[name] = resident
    return find, (name, type(resident).__qualname__)


def find(name: str, kind: str) -> ProcessBound | Placeholder:
    """Return the object with *name* in this process, or a stand-in for it."""
    resident = _made_here.get(name)
    return Placeholder(name, kind) if resident is None else resident
