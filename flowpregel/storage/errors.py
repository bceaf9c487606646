"""Errors of LMDB and the system, translated into ours; and the part of a value to
blame.
"""

from __future__ import annotations

import errno
import inspect
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from types import FunctionType
from typing import Any

from flowpregel.errors import (
    ConfigurationError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
)

DATA = "data.mdb"
_LITTLE_ROOM = 4 << 20
_DEEPEST, _MOST = 30, 10_000
"""How far the part of a value is searched for that cannot be kept, or sent."""
_DAMAGE = (
    "CorruptedError",
    "PageNotFoundError",
    "InvalidError",
    "PanicError",
    "BadTxnError",
    "BadValsizeError",
)


def of_system(error: OSError, path: str) -> StoreError:
    """Return our error for one that the operating system raised on *path*."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return StoreReadOnlyError(
                f"{path} cannot be used: {reason}; check the rights of the folder"
            )
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StoreFullError(f"{path}: {reason}; make room and try again")
        case errno.ELOOP:
            return StoreError(
                f"{path} goes in circles of symbolic links; give the folder itself"
            )
        case errno.ENOTDIR | errno.EEXIST:
            return StoreError(
                f"{path} leads through a file; a store is a folder: give one's path"
            )
    return StoreError(f"{path} cannot be used: {reason}")


@contextmanager
def named(path: str) -> Iterator[None]:
    """Raise our error in place of an `OSError` on *path*."""
    try:
        yield
    except OSError as error:
        raise of_system(error, path) from error


def of_lmdb(error: Exception, path: str) -> StoreError:
    """Return our error for one that LMDB raised on the store at *path*."""
    kind = type(error).__name__
    code = getattr(error, "code", 0)
    if kind in _DAMAGE:
        return StoreCorruptError(f"{path} is damaged ({error}); restore a backup")
    if kind == "VersionMismatchError":
        return StoreVersionError(
            f"{path} was written by another LMDB engine; it was not touched"
        )
    if kind == "ReadonlyError" or code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreReadOnlyError(
            f"{path} cannot be written: {error}; check its rights"
        )
    if kind == "NotFoundError":
        return StoreVersionError(
            f"{path} is an LMDB file, but no store of flowpregel's ({error})"
        )
    return of_commit(error, path)


def of_commit(error: Exception, path: str) -> StoreError:
    """Return our error for a commit, or a copy, that failed at *path*.

    LMDB reports a full disk as EIO, so the free space decides which error it was.
    """
    code = getattr(error, "code", 0)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or (
        code in (errno.EIO, 0) and _room(path) < _LITTLE_ROOM
    ):
        return StoreFullError(
            f"there is no room to write to {path} ({error}); nothing of this commit "
            "was kept, "
            "what was committed before stays readable: make room and try again"
        )
    return StoreError(
        f"{path} could not be written: {error}; nothing of this commit was kept"
    )


def extra_module(module: str, what: str, extra: str) -> Any:
    """Return a module of an extra's package, which *what* needs.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigurationError(
            f"{what} needs the package {package}; install flowpregel[{extra}]"
        ) from error


def _room(path: str) -> int:
    """Return how much the data file may grow: on its disk, and by this process's limit
    on files.
    """
    try:
        found = os.statvfs(path if os.path.exists(path) else os.path.dirname(path))
    except OSError:
        return _LITTLE_ROOM
    room, (limit, _) = (
        found.f_bavail * found.f_frsize,
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    if limit == resource.RLIM_INFINITY:
        return room
    data = os.path.join(path, DATA)
    return min(room, limit - (os.path.getsize(data) if os.path.exists(data) else 0))


# what cannot be kept, or sent ----------------------------------------------


def culprit_in(value: Any, encode: Callable[[Any], object]) -> tuple[str, Any]:
    """Return the path to the innermost part of *value* that *encode* refuses, and that
    part.

    The path is empty where *value* is refused though each of its parts is not.

    Example:
        >>> import pickle, threading
        >>> culprit_in({"a": [1, threading.Lock()]}, pickle.dumps)[0]
        "['a'][1]"
    """
    path, seen = "", {id(value)}
    # An object may refuse to be looked at; then it is the culprit.
    with suppress(Exception):
        while len(seen) < _DEEPEST:
            parts = (
                each for each in islice(_parts(value), _MOST) if id(each[1]) not in seen
            )
            found = next((each for each in parts if why_refused(each[1], encode)), None)
            if found is None:
                break
            path, value = path + found[0], found[1]
            seen.add(id(value))
    return path, value


def why_refused(value: Any, encode: Callable[[Any], object]) -> str | None:
    """Return why *encode* refuses *value*, or None if it does not."""
    try:
        encode(value)
    except RecursionError:
        return "it is nested too deeply"
    except BaseException as error:  # noqa: BLE001 - a class may raise anything while it is pickled
        return f"{type(error).__name__}: {error}"
    return None


def class_name(value: Any) -> str:
    """Return the name of *value*'s class, with its module unless that is `builtins`."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix(
        "builtins."
    )


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what *value* is made of, each with how to get there."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
        yield from ((f".keys()[{index}]", key) for index, key in enumerate(value))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, FunctionType):
        found = inspect.getclosurevars(value)
        yield from (
            (f".<closure {name}>", part) for name, part in found.nonlocals.items()
        )
        yield from ((f".<global {name}>", part) for name, part in found.globals.items())
        yield ".__defaults__", value.__defaults__
    else:
        if isinstance(value, BaseException):
            yield ".args", value.args
        slots = {
            name
            for kind in type(value).__mro__
            for name in getattr(kind, "__slots__", ())
        }
        for name in (*sorted(slots), *getattr(value, "__dict__", ())):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)
