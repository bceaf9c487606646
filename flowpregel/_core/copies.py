"""Copies of values that no later change of the original can reach; objects that are not
copied.

What an in-memory saver, store or cache keeps must read back as it was when it
was kept. A value of an immutable built-in type is kept as it is; any other is
pickled, into a tuple of one item, which no value kept as it is can be.

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
"""The exact types that are kept as they are."""

_PROTOCOL = 5


def snapshot_value(value: Any, what: str) -> Any:
    """Return a copy of *value* for `restore_value`.

    Args:
        value: Anything that pickle or cloudpickle can write.
        what: What the value is, for the message of an error.

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
        data = _dumps_by_value(value, what)
    return (data,)


def as_storable(error: BaseException) -> BaseException:
    """Return *error* if it can be kept, or what is to be kept in its place."""
    try:
        snapshot_value(error, "an error")
    except ValueEncodingError:
        stand_in = RecordedError(type(error).__qualname__, str(error))
        for note in getattr(error, "__notes__", ()):
            stand_in.add_note(note)
        return stand_in
    return error


def restore_value(kept: Any, what: object) -> Any:
    """Return a new copy of the value that `snapshot_value` was given.

    Raises:
        ValueEncodingError: The value's class cannot be read back.
    """
    if type(kept) is not tuple:
        return kept
    try:
        return pickle.loads(kept[0])
    except Exception as error:
        raise ValueEncodingError(
            f"{what} was kept but cannot be read back: {type(error).__name__}: "
            f"{error}; check the class's __reduce__ or __setstate__"
        ) from error


def private_copy(value: Any) -> Any:
    """Return a copy of *value* that no change of it reaches; *value* itself if it
    cannot be kept.

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
        """cloudpickle, but for the variables of the function that a pydantic class is
        in.

        The class notes them for names in annotations; any of them may be a lock.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, CodeType):
                # Since 3.1.3 cloudpickle leaves the file's name out. Its text is a new
                # one each time, as theirs are: else the pickle would depend on who
                # holds it too.
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
                    # It is none in the process that reads this, but a digest is to be
                    # the same.
                    reduced = (class_of_main, reduced[:2], *reduced[2:])
            return reduced

    return WithoutVariables


def code_of_file(
    file: str,
    make: Callable[..., CodeType],
    given: tuple[Any, ...],
) -> CodeType:
    """Return the code that cloudpickle's recipe makes, of *file*, where its source is
    found.
    """
    return make(*given).replace(co_filename=file)


def _dumps_by_value(value: Any, what: str) -> bytes:
    try:
        out = io.BytesIO()
        by_value_pickler()(out, protocol=_PROTOCOL).dump(value)
        data = out.getvalue()
        pickle.loads(data)
    except Exception as error:
        raise ValueEncodingError(
            f"{what} cannot be kept: a {type(value).__name__} does not survive "
            f"pickling ({type(error).__name__}: {error}); keep it in a Context or "
            "UntrackedValue channel, or give its class a __reduce__"
        ) from error
    return data


Decode: TypeAlias = Callable[[Sequence[Any]], tuple[tuple[Any, ...], ...]]
"""Decodes what was kept of several supersteps, each time into new objects."""


@dataclass(frozen=True, eq=False, repr=False)
class ReplayedWrites(Sequence[tuple[Any, ...]]):
    """The writes of a channel's supersteps, oldest first: a tuple for each.

    The states of one history have most of them in common. They share what was
    kept of it, and decode what they need: no object is in two of them.
    """

    kept: Sequence[Any]
    """What was kept of all supersteps of the channel, oldest first."""
    stop: int
    """The end of those that count."""
    decode: Decode
    start: int = 0

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.decode(self.kept[self.start : self.stop]))

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
    """What is not copied to a worker: it would be another one there."""


_names: WeakKeyDictionary[ProcessBound, str] = WeakKeyDictionary()
_made_here: WeakValueDictionary[str, ProcessBound] = WeakValueDictionary()


class Placeholder:
    """Stands for an object of another process, and becomes that again when it is sent
    there.

    Args:
        name: Names the object.
        kind: The name of its class.
    """

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind

    def __getattr__(self, wanted: str) -> NoReturn:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        raise ConfigurationError(
            f".{wanted} of {self!r} was asked for in a worker process: ask outside of "
            "the run, or give the node executor='threads'"
        )

    def __repr__(self) -> str:
        return f"<stand-in for a {self._kind} of another process>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (self._name, self._kind)


def reference_to(resident: ProcessBound) -> tuple[Any, ...]:
    """Return *resident* as a pickle has it: by its name in this process."""
    name = _names.setdefault(resident, uuid.uuid4().hex)
    _made_here[name] = resident
    return find, (name, type(resident).__qualname__)


def find(name: str, kind: str) -> ProcessBound | Placeholder:
    """Return the object of this process that has *name*, or a stand-in for that of
    another.
    """
    found = _made_here.get(name)
    return Placeholder(name, kind) if found is None else found
