"""The codec for any Python value: pickles that refer to classes by name, `__main__`'s too.

A pickle refers to a class of the program as ``__main__.Name``, which in the next program
may be another module: the same file imported under its real name, or a tool that reads
the store. So the main module's real name and file stand before such a pickle, and the
name is looked up there. What has no name to refer to (lambdas, closures, local classes)
is kept by value, with cloudpickle; exceptions in a form that reads back whatever
arguments their classes take.

::

    i, an int        t, a text       (as a pickle they would take 4 and 16 bytes more)
    p, pickle
    m, size of the main module's description (2), number of large buffers (4),
       size of the pickle (8), size of each buffer (8), description, pickle, buffers
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import struct
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

from flowpregel.errors import StoreVersionError, ValueEncodingError

_PROTOCOL = 5
OUT_OF_BAND = 128 << 10
"""Buffers of so many bytes stay outside of the pickle, and are copied only once."""
_ALIAS = "__flowpregel_main_{}__"
_INT, _TEXT, _PLAIN, _PARTS = b"i", b"t", b"p", b"m"
_SIZES = struct.Struct(">cHIQ")


class PythonCodec:
    """The codec for any Python value.

    Example:
        >>> codec = PythonCodec()
        >>> codec.decode(codec.encode({"a": (1, {2})}))
        {'a': (1, {2})}
    """

    def encode(self, value: Any) -> bytes:
        """Return *value* as bytes."""
        if type(value) is int:
            return _INT + value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        if type(value) is str:
            return _TEXT + value.encode("utf-8", "surrogatepass")
        buffers: list[memoryview] = []

        def keep_inside(buffer: pickle.PickleBuffer) -> bool:
            try:
                view = buffer.raw()
            except BufferError:  # not contiguous
                return True
            if view.nbytes >= OUT_OF_BAND:
                buffers.append(view)
            return view.nbytes < OUT_OF_BAND

        file = io.BytesIO()
        try:
            _Pickler(file, _PROTOCOL, buffer_callback=keep_inside).dump(value)
            data = file.getvalue()
        except Exception:  # noqa: BLE001 - a class may raise anything while it is pickled
            buffers.clear()
            data = _dumps_by_value(value)
        main = _describe_main() if b"__main__" in data else b""
        if not buffers and not main:
            return _PLAIN + data
        sizes = [(view.nbytes << 1) | view.readonly for view in buffers]
        head = _SIZES.pack(_PARTS, len(main), len(sizes), len(data))
        return b"".join((head, struct.pack(f">{len(sizes)}Q", *sizes), main, data, *buffers))

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded.

        *data* must come from someone who may run code here: a record whose
        keyed checksum held.
        """
        kind, view = data[:1], memoryview(data)
        if kind == _INT:
            return int.from_bytes(view[1:], "big", signed=True)
        if kind == _TEXT:
            return str(view[1:], "utf-8", "surrogatepass")
        if kind == _PLAIN:
            return pickle.loads(view[1:])
        if kind != _PARTS:
            raise StoreVersionError(
                f"a value has the format {kind!r}, which this release does not know; "
                "read it with the release that wrote it"
            )
        _, described, count, size = _SIZES.unpack_from(view)
        sizes = struct.unpack_from(f">{count}Q", view, _SIZES.size)
        start = _SIZES.size + 8 * count + described
        main, at = bytes(view[start - described : start]), start + size
        buffers = []
        for packed in sizes:
            part = view[at : at + (packed >> 1)]
            # A writable array must come back writable, so it gets memory of its own.
            buffers.append(part if packed & 1 else bytearray(part))
            at += packed >> 1
        return _Unpickler(io.BytesIO(view[start : start + size]), main, buffers).load()


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


# ---------------------------------------------------------------- the main module


def _describe_main() -> bytes:
    """Return the real name and the file of this program's main module."""
    return _describe(id(sys.modules.get("__main__")))


@lru_cache(maxsize=4)
def _describe(_module: int) -> bytes:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else ""
    file = getattr(main, "__file__", None)
    path = os.path.realpath(file) if file else ""
    return f"{name}\0{path}".encode("utf-8", "surrogatepass")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, described: bytes, buffers: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._described = described

    def find_class(self, module: str, name: str) -> Any:
        if module != "__main__":
            return super().find_class(module, name)
        found: Any = _main_module(self._described)
        for part in name.split("."):
            found = getattr(found, part)
        return found


def _main_module(described: bytes) -> Any:
    if described == _describe_main():
        return sys.modules["__main__"]
    name, _, path = described.decode("utf-8", "surrogatepass").partition("\0")
    main = sys.modules["__main__"]
    if not path or _is_file_of(main, path):
        return main
    for module in list(sys.modules.values()):
        if _is_file_of(module, path):
            return module
    return _imported(name, path)


def _is_file_of(module: Any, path: str) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.realpath(file) == path


def _imported(name: str, path: str) -> Any:
    if name:
        # It may not be on this program's path, or not any more: its file may be there.
        with suppress(ImportError):
            return importlib.import_module(name)
    if not os.path.exists(path):
        raise ValueEncodingError(
            f"a value refers to a class of the program {path}, which is not there any more; "
            "put the class into a module that both programs import"
        )
    # As multiprocessing does for its workers: under another name, so that
    # what the file guards with `if __name__ == "__main__"` does not run.
    alias = _ALIAS.format(os.path.basename(path).removesuffix(".py"))
    spec = importlib.util.spec_from_file_location(alias, path)
    if spec is None or spec.loader is None:
        raise ValueEncodingError(f"a value refers to the program {path}, which cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise
    return module
