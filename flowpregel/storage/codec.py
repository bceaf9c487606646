"""Exact encoding of values: a decoded value is equal to the original, with equal types.

A pickle refers to a class of the main program as ``__main__.Name``. The program that
decodes it may have another main module: it may import the same file under its real
name, or be a tool that reads the store. So the main module's real name and file are
written before such a pickle, and the class is looked up in that module. Objects that
cannot be imported by a name (lambdas, closures, local classes) are pickled by value,
with cloudpickle. Exceptions are pickled in a form that can be decoded whatever
arguments their classes take.

The first byte of an encoded value is a letter that names the format of the rest. The
numbers in parentheses are the sizes of fields in bytes::

    i   an int, in two's complement
    t   a str, in UTF-8
    p   a pickle
    m   a pickle with a description of the main module, large buffers, or both: size of
        the description (2), number of buffers (4), size of the pickle (8), size of each
        buffer (8); then the description, the pickle and the buffers themselves
    c   the bytes that the user's own codec has returned
    z   a value in any of the formats above, compressed: its size (8) and a zstd frame

An int or a str is not pickled, because its pickle would be 4 or 16 bytes longer.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import pickletools
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, cast

from flowpregel._interrupts import is_from_handler
from flowpregel._pickling.buffers import stays_inside
from flowpregel._pickling.by_value import (
    PROTOCOL,
    BytecodeVersionError,
    by_value_pickler,
    dumps_with,
)
from flowpregel._pickling.culprits import class_name, culprit_in
from flowpregel.errors import (
    StoreCorruptError,
    StoreError,
    StoreVersionError,
    ValueEncodingError,
)
from flowpregel.storage.errors import extra_module
from flowpregel.storage.renames import Renames

_SMALLEST = 256
"""The size, in bytes, below which a value is not worth the time to compress it."""
OUT_OF_BAND = 128 << 10
"""The size, in bytes, from which a buffer stays outside of the pickle, so that it is
copied only once.
"""
_INT, _TEXT, _PLAIN, _PARTS, _ZSTD, _CUSTOM = b"i", b"t", b"p", b"m", b"z", b"c"
_SIZES = struct.Struct(">cHIQ")
_FRAME = bytes((*pickle.PROTO, PROTOCOL, *pickle.FRAME))
"""The beginning of a pickle with a frame. The size of the frame (8 bytes) follows."""
_FRAME_END = 11
_HEAD = 1_000
"""The number of bytes at the start of a pickle that are searched for the name of the
first class.
"""
RENAMES: ContextVar[Renames | None] = ContextVar("flowpregel_renames", default=None)
"""The renames to apply to the value that is being decoded. They are in a context
variable because the user's own codec may call `PythonCodec`.
"""
_ZSTANDARD = "zstandard", "compression", "zstd"
_EARLIER_MODULES = {
    "flowpregel._lmdb.codec": __name__,
    "flowpregel._core.copies": "flowpregel._pickling.by_value",
    # Only Python 3.13 writes this name into the pickles of paths. Python 3.12
    # cannot import it, so it is replaced.
    "pathlib._local": "pathlib",
}
"""The names by which modules can be imported now, by the earlier names, which recorded
values still contain.
"""


class Codec(Protocol):
    """The interface of a codec, which turns values into bytes and back. You can pass
    your own codec to a saver.

    Example:
        >>> import json
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel.checkpoint.lmdb import LMDBSaver
        >>> class JSONCodec:
        ...     def encode(self, value):
        ...         return json.dumps(value).encode()
        ...     def decode(self, data):
        ...         return json.loads(data)
        >>> with TemporaryDirectory() as folder:
        ...     with LMDBSaver(folder, codec=JSONCodec()) as saver:
        ...         saver.send_signal("1", "paid", [20])
        ...         saver.receive_signal("1", "paid", receiver="call-1")
        ([20],)
    """

    def encode(self, value: Any) -> bytes:
        """Return *value* as bytes. Raise any exception if *value* cannot be encoded."""

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded.

        Args:
            data: The bytes that `encode` returned.
        """


class ValueCodec:
    """The codec of a store's values: another codec, with optional compression.

    Compressed values are decoded even if *compression* is False.

    Args:
        inner: The codec that encodes the values, or None for `PythonCodec`.
        compression: True to compress the values that become smaller.
        renamed: The new names of classes, by their earlier names.

    Raises:
        ConfigurationError: An extra that compression needs is not installed.

    Example:
        >>> codec = ValueCodec(None)
        >>> codec.decode(codec.encode((1, "a"), None), None)
        (1, 'a')
    """

    plain_types: frozenset[type] = frozenset()
    """The exact types of the values that `encode` returns unchanged."""

    def __init__(
        self,
        inner: Codec | None,
        compression: bool = False,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self._inner: Codec = inner or PythonCodec()
        self.renames: Renames = Renames(renamed)
        self._mark = b"" if inner is None else _CUSTOM
        self.fields_of: Callable[[Any], Any] = getattr(inner, "fields_of", pickle.loads)
        self.record_of: Callable[[Any], Any] = record_of
        self._zstandard = extra_module(*_ZSTANDARD) if compression else None

    def load_renames_with(self, load: Callable[[], bytes | None]) -> None:
        """Register *load*, a function that reads the store's record of renames. It is
        called when a value that refers to a class is decoded.
        """
        self.renames.load = load

    def encode(self, value: Any, label: object) -> bytes:
        """Return *value* as bytes.

        Args:
            value: Any value.
            label: The origin of the value, for messages: its channel and its task. It
                is converted to text only in an error.

        Raises:
            ValueEncodingError: The value cannot be encoded. The message names the part
                of the value that causes the problem.
        """
        try:
            data = self._mark + self._inner.encode(value)
        except Exception as error:
            if is_from_handler(error):
                raise
            step, part = culprit_in(value, self._inner.encode)
            raise ValueEncodingError(
                f"{label} cannot be stored: value{step} is a {class_name(part)} "
                f"({type(error).__name__}: {error}); store what it is made from "
                "instead"
            ) from error
        if self._zstandard is None or len(data) < _SMALLEST:
            return data
        # Each value gets a new compressor, since two OS threads must not share one.
        frame: bytes = self._zstandard.ZstdCompressor(level=3).compress(data)
        return min(data, _ZSTD + len(data).to_bytes(8, "big") + frame, key=len)

    def decode(self, data: bytes, label: object) -> Any:
        """Return the value that was encoded.

        Args:
            data: The bytes that `encode` returned.
            label: The origin of the value, for messages. It is converted to text only
                in an error.

        Raises:
            ValueEncodingError: A class of the value cannot be imported, or its code
                raised an error while the value was decoded, or a function of it was
                compiled by another version of Python.
        """
        token = RENAMES.set(self.renames)
        try:
            if data[:1] == _ZSTD:
                data = _decompressed(data)
            if data[:1] == _CUSTOM:
                data = data[1:]
            return self._inner.decode(data)
        except StoreError:
            raise
        except Exception as error:
            if is_from_handler(error):
                raise
            raise decoding_error(error, label) from reported_cause(error)
        finally:
            RENAMES.reset(token)


def record_of(fields: Any) -> bytes:
    """Return the fields of a record as a pickle.

    A small pickle has one frame, whose header (9 bytes) is only useful if the pickle is
    read from a stream. So the header is left out.
    """
    data = pickle.dumps(fields, PROTOCOL)
    size = len(data) - _FRAME_END
    if data.startswith(_FRAME) and size == int.from_bytes(data[3:_FRAME_END], "little"):
        return data[: len(_FRAME) - 1] + data[_FRAME_END:]
    return data


class PythonCodec:
    """The codec for any Python value.

    Example:
        >>> codec = PythonCodec()
        >>> codec.decode(codec.encode({"a": (1, {2})}))
        {'a': (1, {2})}
    """

    # `PartsCodec` overrides this function: to join the parts of a value would copy
    # large buffers.
    _joined: Callable[[Iterable[Any]], Any] = staticmethod(b"".join)

    def encode(self, value: Any) -> bytes:
        """Return *value* as bytes."""
        if type(value) is int:
            return _INT + value.to_bytes(
                value.bit_length() // 8 + 1, "big", signed=True
            )
        if type(value) is str:
            return _TEXT + value.encode("utf-8", "surrogatepass")
        buffers: list[memoryview] = []
        keep_inside = partial(stays_inside, buffers, OUT_OF_BAND)
        file = io.BytesIO()
        try:
            _Pickler(file, PROTOCOL, buffer_callback=keep_inside).dump(value)
            data = file.getvalue()
        except Exception:  # noqa: BLE001 - a user's class may raise any error
            buffers.clear()
            data = _encode_by_value(value)
        main = _describe_main() if b"__main__" in data else b""
        if not buffers and not main:
            return _PLAIN + data
        sizes = [(view.nbytes << 1) | view.readonly for view in buffers]
        head = _SIZES.pack(_PARTS, len(main), len(sizes), len(data))
        encoded: bytes = self._joined(
            (head, struct.pack(f">{len(sizes)}Q", *sizes), main, data, *buffers)
        )
        return encoded

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded.

        Decoding can run any code, so *data* must come from a trusted source: a record
        whose keyed checksum has been verified.
        """
        kind = data[:1]
        view = memoryview(data)
        if kind == _INT:
            return int.from_bytes(view[1:], "big", signed=True)
        if kind == _TEXT:
            return str(view[1:], "utf-8", "surrogatepass")
        if kind == _PLAIN:
            return self._load(view[1:])
        if kind != _PARTS:
            raise StoreVersionError(
                f"a value has the format {kind!r}, which this release does not know; "
                "read it with the release that wrote it"
            )
        _, described, count, size = _SIZES.unpack_from(view)
        sizes = struct.unpack_from(f">{count}Q", view, _SIZES.size)
        start = _SIZES.size + 8 * count + described
        main = bytes(view[start - described : start])
        at = start + size
        buffers = []
        for packed in sizes:
            size_of_part = packed >> 1
            is_readonly = packed & 1
            part = view[at : at + size_of_part]
            # A buffer that was writable, such as an array's, must be writable again, so
            # its bytes are copied.
            buffers.append(part if is_readonly else bytearray(part))
            at += size_of_part
        return self._load(view[start : start + size], main, buffers)

    def _load(self, data: Any, main: bytes = b"", buffers: Sequence[Any] = ()) -> Any:
        # This is a separate method, because `InertCodec`, with which tools read a
        # store, overrides it to run no code.
        renames = RENAMES.get()
        if (
            not main
            and not buffers
            and (renames is None or not renames.matter(data.obj))
        ):
            with suppress(ImportError, AttributeError):
                return pickle.loads(data)
            # The pickle is loaded again by our own unpickler, whose error names the
            # missing class.
        return _Unpickler(io.BytesIO(data), main, buffers, renames).load()


class PartsCodec(PythonCodec):
    """A `PythonCodec` for values that are written to a file of their own.

    Example:
        >>> b"".join(PartsCodec().parts_of((1, 2))) == PythonCodec().encode((1, 2))
        True
    """

    _joined = staticmethod(tuple)

    def parts_of(self, value: Any) -> Sequence[Any]:
        """Return the parts of the encoded *value*, without copies of large buffers.

        Raises:
            Exception: *value* cannot be encoded.
        """
        encoded: Any = self.encode(value)
        return encoded if isinstance(encoded, tuple) else (encoded,)

    def read_parts(self, file: io.BufferedIOBase, size: int) -> Sequence[Any]:
        """Return the parts of an encoded value, each large buffer in writable memory of
        its own. Nothing is decoded.

        Args:
            file: The file that has the encoded value, at its beginning.
            size: The size of the file in bytes.
        """
        head = file.read(_SIZES.size)
        if head[:1] != _PARTS or len(head) < _SIZES.size:
            return (head + file.read(),)
        _, described, count, pickled = _SIZES.unpack(head)
        # If the file is damaged, no memory is allocated for the sizes that it claims.
        if 8 * count > size - len(head):
            return (head + file.read(),)
        packed = file.read(8 * count)
        rest = size - len(head) - len(packed) - described - pickled
        sizes = [number >> 1 for number in struct.unpack(f">{count}Q", packed)]
        if sum(sizes) != rest:
            return (head + packed + file.read(),)
        first = head + packed + file.read(described + pickled)
        buffers = []
        for buffer_size in sizes:
            buffer = bytearray(buffer_size)
            file.readinto(buffer)
            buffers.append(buffer)
        return (first, *buffers)

    def decode_parts(self, parts: Sequence[Any]) -> Any:
        """Return the value whose parts `read_parts` has returned. The value uses the
        memory of the large buffers.

        Decoding can run any code, so the parts must come from a trusted source.
        """
        first, *buffers = parts
        if not buffers:
            return self.decode(first)
        _, described, count, pickled = _SIZES.unpack_from(first)
        end = _SIZES.size + 8 * count + described
        main = bytes(first[end - described : end])
        return self._load(memoryview(first)[end : end + pickled], main, buffers)


def _decompressed(data: bytes) -> bytes:
    """Return the value in a compressed frame.

    The size of the value is checked first, because a malicious frame of 50 kB could
    decompress to gigabytes.

    Raises:
        StoreCorruptError: The size differs from the size that is stored with the frame.
    """
    zstandard = extra_module(*_ZSTANDARD)
    size = int.from_bytes(data[1:9], "big")
    frame = data[9:]
    if zstandard.frame_content_size(frame) != size:
        raise StoreCorruptError(
            "a compressed value does not have the size it was written with"
        )
    return cast(bytes, zstandard.ZstdDecompressor().decompress(frame))


# ---------------------------------------------------------------- pickles


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (
            _reduce_exception(obj) if isinstance(obj, BaseException) else NotImplemented
        )


def _encode_by_value(value: Any) -> bytes:
    class Pickler(by_value_pickler()):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, BaseException):
                return _reduce_exception(obj)
            # cloudpickle would pickle all objects of `__main__` by value. A decoded
            # class would then be a different class: `isinstance` would fail, and so
            # would comparisons of enum members by identity.
            if getattr(obj, "__module__", None) == "__main__":
                with suppress(AttributeError):
                    if attrgetter(obj.__qualname__)(sys.modules["__main__"]) is obj:
                        return NotImplemented
            return super().reducer_override(obj)

    return dumps_with(Pickler, value)


def _reduce_exception(error: BaseException) -> Any:
    """Return a reduction of *error* that does not call the ``__init__`` of a user's
    class.

    Plain pickle calls the class with ``error.args``, which are the arguments that the
    ``__init__`` passed to its base class. If the ``__init__`` of the class takes
    different arguments, this call fails, but only when the pickle is loaded.
    """
    kind = type(error)
    base = _builtin_base(type(error))
    has_own_form = (
        kind.__reduce__ is not base.__reduce__
        or kind.__reduce_ex__ is not object.__reduce_ex__
        or not vars(kind).keys().isdisjoint(("__getstate__", "__setstate__"))
    )
    if has_own_form:
        return NotImplemented
    # The built-in `__reduce__` is called directly, to bypass reducers that another
    # library (such as tblib) may have registered with copyreg.
    reduced = base.__reduce__(error)
    if kind is base and not error.__cause__:
        return reduced
    return rebuild_error, (
        kind,
        reduced[1],
        error.args,
        {**vars(error)},
        error.__cause__,
    )


def rebuild_error(
    kind: type[BaseException],
    built_with: tuple[Any, ...],
    args: tuple[Any, ...],
    state: dict[str, Any],
    cause: BaseException | None,
) -> BaseException:
    """Return an error from the parts that `_reduce_exception` stored, without calling
    the ``__init__`` of a user's class.
    """
    base = _builtin_base(kind)
    error: BaseException = base.__new__(kind, *built_with)
    base.__init__(error, *built_with)
    error.args = args
    error.__dict__.update(state)
    if cause is not None:
        error.__cause__ = cause
    return error


def _builtin_base(kind: type[BaseException]) -> Any:
    """Return the nearest built-in base class of an exception class. The fields of such
    a base class are not in ``__dict__``.
    """
    return next(
        base
        for base in kind.__mro__
        if base.__module__ == "builtins" and issubclass(base, BaseException)
    )


# ---------------------------------------------------------------- errors of decoding


class MissingClass(Exception):
    """The error that a value refers to a class or a function that cannot be imported.

    Args:
        name: The full name of the class or function.
        cause: The error of the import.
        is_whole: True if the value itself is of the class, False if a part of it is.
    """

    def __init__(self, name: str, cause: Exception, is_whole: bool) -> None:
        super().__init__(name, cause, is_whole)
        self.name = name
        self.cause = cause
        self.is_whole = is_whole

    def __str__(self) -> str:
        return (
            f"{'is' if self.is_whole else 'holds'} a {self.name}, which cannot be "
            f"imported ({type(self.cause).__name__}: {self.cause})"
        )


def decoding_error(
    error: Exception, label: object, import_advice: str = ""
) -> ValueEncodingError:
    """Return the error that the caller gets if a value cannot be decoded.

    Args:
        error: The error that `PythonCodec` or the user's codec raised.
        label: The origin of the value, with which the message begins.
        import_advice: The advice if a class cannot be imported. By default, the caller
            is advised to record the new name of the class in the store.
    """
    match error:
        case MissingClass(name=name):
            advice = import_advice or (
                f"If the class was moved or renamed: `flowpregel rename {name} NEW "
                f"STORE`, or StoreOptions(renamed={{{name!r}: 'new.name'}})"
            )
            return ValueEncodingError(
                f"{label} {error}: it was kept but cannot be read back. {advice}"
            )
        case BytecodeVersionError():
            return ValueEncodingError(
                f"{label} {error}: it was kept but cannot be read back. Read it with "
                "the version that compiled it. Every version can read functions and "
                "classes of the top level of a module"
            )
    return ValueEncodingError(
        f"{label} was kept but cannot be read back: {type(error).__name__}: {error}; "
        "its class must be importable under the name it had"
    )


def reported_cause(error: Exception) -> Exception:
    """Return the cause to report with a `decoding_error`: the error of the import if a
    class is missing, or else *error* itself.
    """
    return error.cause if isinstance(error, MissingClass) else error


# ---------------------------------------------------------------- the main module


def _describe_main() -> bytes:
    """Return the real name and the file of this program's main module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else ""
    return f"{name}\0{_file_of(main)}".encode("utf-8", "surrogatepass")


def _file_of(module: Any) -> str:
    file = getattr(module, "__file__", None)
    return os.path.realpath(file) if isinstance(file, str) else ""


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        described: bytes,
        buffers: Sequence[Any],
        renames: Renames | None,
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._described = described
        self._renames = renames
        self._head = file.getvalue()[:_HEAD]

    def find_class(self, module: str, name: str) -> Any:
        module = _EARLIER_MODULES.get(module, module)
        try:
            return self._found(module, name)
        except Exception as error:
            if is_from_handler(error):
                raise
            is_whole = _begins_with(self._head, module)
            raise MissingClass(f"{module}.{name}", error, is_whole) from error

    def _found(self, module: str, name: str) -> Any:
        names = [f"{module}.{name}"]
        if module == "__main__":
            described = self._described.decode("utf-8", "surrogatepass")
            real, _, path = described.partition("\0")
            stem = os.path.basename(path).removesuffix(".py")
            names += [f"{main}.{name}" for main in (real, stem) if main]
        if self._renames:
            for full_name in names:
                renamed = self._renames.find(full_name)
                if renamed is not None:
                    return renamed
        if module != "__main__":
            return super().find_class(module, name)
        return attrgetter(name)(_main_module(self._described))


def _begins_with(head: bytes, module: str) -> bool:
    """Return whether the first class or function in a pickle belongs to *module*.

    *head* is the beginning of the pickle.
    """
    # The head may end in the middle of an opcode, which ends the search.
    with suppress(ValueError):
        for opcode, argument, _ in pickletools.genops(head):
            if opcode.name not in ("PROTO", "FRAME", "MEMOIZE"):
                return bool(argument == module)
    return False


def _main_module(described: bytes) -> Any:
    """Return the module that was the main module of the program that wrote a value.

    That module may be the main module of this process, another module that is already
    imported, or a module that can be imported by its name or from its file.
    """
    name, _, path = described.decode("utf-8", "surrogatepass").partition("\0")
    for module in (sys.modules["__main__"], *sys.modules.values()):
        if not path or _file_of(module) == path:
            return module
    if name:
        # If the module is not on this program's path, its file is tried next.
        with suppress(ImportError):
            return importlib.import_module(name)
    if not os.path.exists(path):
        raise ValueEncodingError(
            f"a value refers to a class of the program {path}, which no longer "
            "exists; define the class in a module that both programs import"
        )
    # The file is imported under another name, as multiprocessing does in its workers,
    # so that code under `if __name__ == "__main__"` does not run.
    alias = f"__flowpregel_main_{os.path.basename(path).removesuffix('.py')}__"
    spec = importlib.util.spec_from_file_location(alias, path)
    if spec is None or spec.loader is None:
        raise ValueEncodingError(
            f"a value refers to the program {path}, which cannot be imported"
        )
    module = sys.modules[alias] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise
    return module
