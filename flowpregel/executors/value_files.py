"""The files in which values of `stored` are kept, in a local folder or an object store.

A file is the encoded value (see `flowpregel.storage.codec`), and is never changed. The
name is the SHA-256 of the content, so ``sha256sum`` can check a file. SHA-256 is used
because processors have instructions for it.

A local file is written under another name, synced and renamed, so that no reader sees a
part of it. In an object store, an object becomes visible only when it is complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from flowpregel._interrupts import is_from_handler
from flowpregel._urls import scheme_of, without_credentials
from flowpregel.errors import (
    ConfigurationError,
    FlowPregelError,
    StoredValueError,
    StoreError,
)
from flowpregel.executors.base import HOST
from flowpregel.storage.codec import (
    PartsCodec,
    ValueCodec,
    decoding_error,
    reported_cause,
)
from flowpregel.storage.drafts import sync_path
from flowpregel.storage.errors import extra_module, of_system

_WITHOUT_THREAD: Final = "no-thread"
"""The name of the folder for values that are written outside of runs, or in runs
without an id.
"""
_LONGEST_NAME: Final = 200
"""The number of bytes above which the name of a thread's folder is shortened. File
systems allow 255.
"""
_KEPT_UP_TO: Final = 256 << 20
"""The size, in bytes, up to which this process remembers the content of the file that
it read last.
"""
_COMPARED_AT_ONCE: Final = 1 << 20
"""The number of bytes of a file that are compared with a value at a time."""
_REQUESTS_AT_ONCE: Final = 16
"""The greatest number of requests to object stores at a time."""
_LOST: Final = (
    "if it is lost, take back the calls with lost values (`flowpregel redo ID --gone`) "
    "and run again"
)


Parts: TypeAlias = Sequence[bytes | bytearray | memoryview]
"""The content of a file, in parts that are written one after another."""


class WrittenValue(NamedTuple):
    """The file that a value was written to."""

    location: str
    """The absolute path or the URL of the file."""
    digest: str
    nbytes: int


class ValueFileState(NamedTuple):
    """The state of the file of a stored value, as far as this machine can find out."""

    exists: bool = False
    missing_folder: str | None = None
    """The folder that was passed to `stored`, if this machine has no such folder. The
    file may exist on other machines then.
    """
    error: FlowPregelError | None = None
    """The reason for which the file system cannot be reached."""

    @property
    def is_lost(self) -> bool:
        """True if the file does not exist, although its file system can be reached and
        this machine has its folder.
        """
        is_unknown = self.missing_folder is not None or self.error is not None
        return not self.exists and not is_unknown


class ValueFiles(Protocol):
    """The operations on the files of one file system. Each method gets a path in this
    file system.
    """

    is_local: bool

    def write(self, path: str, parts: Parts) -> None:
        """Write a complete and durable file, and create its folder."""

    def read(self, path: str) -> Parts:
        """Return the content of a file."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file. Raise an error if that cannot be found
        out.
        """

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with everything in it."""


# ---------------------------------------------------------------- values


class _Content(NamedTuple):
    """The content of a file, whose digest was verified."""

    location: str
    digest: str
    parts: Parts


_NO_CONTENT: Final = _Content("", "", ())
_latest_content = _NO_CONTENT
"""The content that this process read last by fsspec, because several tasks may get the
same value one after the other.
"""


def write_value(
    value: Any, folder: str | os.PathLike[str], thread_id: str | None
) -> WrittenValue:
    """Write *value* to a file in the folder of a thread.

    Args:
        value: The value to write.
        folder: The path or the URL of the folder for all threads.
        thread_id: The id of the thread, or None if there is no thread.

    Raises:
        ConfigurationError: *folder* cannot be the location of values.
        ValueEncodingError: *value* cannot be pickled.
        StoreError: The file cannot be written.
    """
    thread_folder = _folder_of_thread(folder, thread_id)
    parts = _encoded_parts(value)
    name = _digest_of_parts(parts)
    location = f"{thread_folder}/{name}"
    files, path = _files_at(location)
    try:
        with _translated(location, "written"):
            files.write(path, parts)
    except FileNotFoundError as error:
        raise StoreError(
            f"{without_credentials(location)} cannot be written from {HOST}: its "
            f"folder or bucket does not exist ({error}); create it first"
        ) from error
    return WrittenValue(location, name, _size_of_parts(parts))


def _encoded_parts(value: Any) -> Parts:
    """Encode *value*, and return the content of the file in parts.

    Raises:
        ValueEncodingError: *value* cannot be pickled. The message names the part.
    """
    try:
        return PartsCodec().parts_of(value)
    except Exception as error:
        if is_from_handler(error):
            raise
        # `ValueCodec` cannot encode the value either, but its error names the part of
        # *value* at fault.
        return [ValueCodec(None).encode(value, "a value for stored()")]


def _digest_of_parts(parts: Parts) -> str:
    """Return the SHA-256 of a file in hex digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _size_of_parts(parts: Parts) -> int:
    """Return the size of a file in bytes."""
    return sum(memoryview(part).nbytes for part in parts)


def read_value(location: str, digest: str) -> Any:
    """Return the value in the file at *location*.

    Raises:
        StoredValueError: The file is missing, or its content has another digest.
        StoreError: The file cannot be read for another reason.
        ValueEncodingError: The value cannot be decoded: a class cannot be imported on
            this machine, or its code raised an error, or another version of Python
            compiled a function of the value.
    """
    content = _verified_content(location, digest)
    try:
        return PartsCodec().decode_parts(content)
    except StoreError:
        raise
    except Exception as error:
        if is_from_handler(error):
            raise
        label = f"the stored value {without_credentials(location)}"
        advice = f"Install or send the module of the class to {HOST}"
        raise decoding_error(error, label, advice) from reported_cause(error)


def _verified_content(location: str, digest: str) -> Parts:
    """Return the content of the file at *location*, after a check that it has this
    digest.
    """
    global _latest_content
    latest = _latest_content
    if (location, digest) == (latest.location, latest.digest):
        return latest.parts
    files, path = _files_at(location)
    text = without_credentials(location)
    try:
        with _translated(location, "read"):
            content = files.read(path)
    except FileNotFoundError as error:
        raise StoredValueError(
            text,
            digest,
            f"does not exist on {HOST}: all machines must have its folder under this "
            f"name; {_LOST}",
        ) from error
    actual = _digest_of_parts(content)
    if actual != digest:
        raise StoredValueError(
            text,
            digest,
            f"was changed: its SHA-256 is {actual}, not {digest}. Restore the file, "
            f"or delete it; {_LOST}",
        )
    # The content of a local file is not remembered here, because the operating system
    # caches it.
    if not files.is_local and _size_of_parts(content) <= _KEPT_UP_TO:
        _latest_content = _Content(location, digest, content)
    return content


def value_exists(location: str) -> bool:
    """Return whether there is a file at *location*. The content is not read.

    Raises:
        StoreError: The file system cannot be reached.
    """
    # The clients of some file systems connect, and may fail, when they are created.
    with _translated(location, "read"):
        files, path = _files_at(location)
        return files.exists(path)


def missing_folder(location: str) -> str | None:
    """Return the folder that was passed to `stored` for the file at *location*, if this
    machine has no such folder. Otherwise return None.

    A folder that is missing may be one that is not mounted here. Then its files are not
    lost. In an object store, a folder exists only as long as it has files, so the
    result is None.

    Raises:
        StoreError: The file system cannot be reached.
    """
    files, path = _files_at(location)
    if not files.is_local:
        return None
    thread_folder = os.path.dirname(path)
    folder = os.path.dirname(thread_folder)
    with _translated(location, "read"):
        return None if files.exists(folder) else folder


def lost_files(locations: Iterable[str]) -> set[str]:
    """Return those of *locations* whose files are lost, as far as this machine can find
    out.

    A file does not count as lost if its file system cannot be reached, or if this
    machine lacks its whole folder, because other machines may have the file then.
    """
    states = file_states(locations)
    return {location for location, state in states.items() if state.is_lost}


def file_states(locations: Iterable[str]) -> dict[str, ValueFileState]:
    """Return the state of the file at each of *locations*. A location that occurs
    several times is searched for once.
    """
    states: dict[str, ValueFileState] = {}
    remote: list[str] = []
    for location in dict.fromkeys(locations):
        if scheme_of(location) is not None:
            remote.append(location)
        else:
            states[location] = _file_state(location)
    if remote:
        # Only programs with handles of values in buckets need this module.
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

        # A request to a bucket takes time, so several are made at once.
        with ThreadPoolExecutor(min(_REQUESTS_AT_ONCE, len(remote))) as pool:
            states.update(zip(remote, pool.map(_file_state, remote), strict=True))
    return states


def _file_state(location: str) -> ValueFileState:
    """Return the state of the file at *location*."""
    try:
        if value_exists(location):
            return ValueFileState(exists=True)
        return ValueFileState(missing_folder=missing_folder(location))
    except FlowPregelError as error:
        return ValueFileState(error=error)


def delete_value(location: str) -> None:
    """Delete the file, or the folder with files, at *location*, if it exists.

    Raises:
        StoreError: The file cannot be deleted.
    """
    global _latest_content
    _latest_content = _NO_CONTENT
    files, path = _files_at(location)
    with suppress(FileNotFoundError), _translated(location, "deleted"):
        files.delete(path)


def delete_values(folder: str | os.PathLike[str], thread_id: str | None) -> None:
    """Delete the files of a thread, if there are any.

    Raises:
        ConfigurationError: *folder* cannot be the location of values.
        StoreError: The files cannot be deleted.
    """
    delete_value(_folder_of_thread(folder, thread_id))


@contextmanager
def _translated(location: str, action: str) -> Iterator[None]:
    """Raise a `StoreError` that names *location* in place of any error in the context.

    A `FileNotFoundError` is not translated.
    """
    text = without_credentials(location)
    try:
        yield
    except (ConfigurationError, FileNotFoundError):
        raise
    except OSError as error:
        raise of_system(error, text) from error
    except Exception as error:
        if is_from_handler(error):
            raise
        # The clients of object stores raise errors of many other types.
        raise StoreError(
            f"{text} cannot be {action} from {HOST}: {type(error).__name__}: {error}; "
            "check the address, the rights and the network of this machine"
        ) from error


# ---------------------------------------------------------------- locations


def _folder_of_thread(folder: str | os.PathLike[str], thread_id: str | None) -> str:
    """Return the absolute path or the URL of a thread's folder."""
    location: object = folder
    if isinstance(folder, os.PathLike):
        location = os.fspath(folder)
    if not isinstance(location, str) or not location or "\0" in location:
        raise ConfigurationError(
            f"folder={folder!r} is not a folder: write a path, such as "
            "'/shared/values', or a URL, such as 's3://bucket/values'"
        )
    scheme = scheme_of(location)
    if scheme is None or scheme == "file":
        location = os.path.abspath(_path_in_url(location))
    return f"{location.rstrip('/')}/{_name_of_thread(thread_id)}"


def _name_of_thread(thread_id: str | None) -> str:
    """Return the name of a thread's folder, which is unique to the thread."""
    if thread_id is None:
        return _WITHOUT_THREAD
    name = quote(thread_id, safe="", errors="surrogatepass")
    if name.startswith(".") or name == _WITHOUT_THREAD:
        name = f"%{ord(name[0]):X}{name[1:]}"
    if len(name) <= _LONGEST_NAME:
        return name or "%"
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: _LONGEST_NAME - len(digest)]}{digest}"


def _path_in_url(location: str) -> str:
    """Return the path in a ``file://`` URL, or a path unchanged."""
    if scheme_of(location) is None:
        return location
    parts = urlsplit(location)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigurationError(
            f"{location!r} is not the URL of a folder: write file:///PATH, or the path"
        )
    return unquote(parts.path)


def _files_at(location: str) -> tuple[ValueFiles, str]:
    """Return the file system of *location*, and the path in it.

    Raises:
        ConfigurationError: The scheme is unknown, or a package is missing.
    """
    if scheme_of(location) is None:
        return LocalFiles(), location
    text = without_credentials(location)
    fsspec = extra_module("fsspec.core", f"the URL {text!r}", "fsspec")
    try:
        file_system, path = fsspec.url_to_fs(location)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"fsspec cannot use {text!r} on {HOST}: {error}. Write the path of a "
            "folder, or a URL such as s3://BUCKET/PREFIX, and install the package of "
            "its scheme, such as s3fs, on all machines"
        ) from error
    return RemoteFiles(file_system), path


# ---------------------------------------------------------------- file systems


class LocalFiles:
    """The files of this machine, and of network file systems that it has mounted."""

    is_local = True

    def write(self, path: str, parts: Parts) -> None:
        """Write a complete and durable file, and create its folder."""
        folder = os.path.dirname(path)
        _make_folder(folder)
        # A file under this name with another content is damaged, and is replaced.
        if not _has_content(path, parts):
            self._write_draft(path, parts)
        # The folder is synced even if another process has written the file, because
        # that process may not have synced the folder yet.
        sync_folder(folder)

    def _write_draft(self, path: str, parts: Parts) -> None:
        """Write a file under a hidden name, sync it, and rename it."""
        folder = os.path.dirname(path)
        draft = os.path.join(folder, f".{os.path.basename(path)}-{token_hex(8)}")
        try:
            # `tempfile` is not used: its files are private to this user, but tasks on
            # other machines may run as other users.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(draft, flags, 0o666), "wb", buffering=0) as file:
                for part in parts:
                    _write_all(file.fileno(), part)
                os.fsync(file.fileno())
            os.rename(draft, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)
            raise

    def read(self, path: str) -> Parts:
        """Return the content of a file, in memory that no other reader uses."""
        with open(path, "rb") as file:
            return PartsCodec().read_parts(file, os.fstat(file.fileno()).st_size)

    def exists(self, path: str) -> bool:
        """Return whether there is a file."""
        # `os.path.exists` would be False for a file that cannot be reached, too.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with everything in it."""
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _has_content(path: str, parts: Parts) -> bool:
    """Return whether there is a file at *path* that consists of *parts*."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != _size_of_parts(parts):
                return False
            return all(_continues_with(file, part) for part in parts)
    except OSError:
        # A file that cannot be read is regarded as damaged, so that it is replaced.
        return False


def _continues_with(file: BinaryIO, part: bytes | bytearray | memoryview) -> bool:
    """Return whether the next bytes of *file* are *part*, and read them."""
    view = memoryview(part)
    for start in range(0, len(view), _COMPARED_AT_ONCE):
        # Python compares memoryviews item by item, and bytes many times faster.
        block = bytes(view[start : start + _COMPARED_AT_ONCE])
        if file.read(len(block)) != block:
            return False
    return True


def _make_folder(folder: str) -> None:
    """Create a folder, and all missing folders above it, and sync the changed
    folders.
    """
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folder(parent)
    with suppress(FileExistsError):
        os.mkdir(folder)
    sync_folder(parent)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, if the file system can do that."""
    try:
        sync_path(folder)
    except OSError as error:
        # Some network file systems sync files, but refuse to sync folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


def _write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class RemoteFiles:
    """The files of a file system of fsspec, such as a bucket.

    Args:
        file_system: The file system, as fsspec provides it.
    """

    is_local = False

    def __init__(self, file_system: Any) -> None:
        self._file_system = file_system

    def write(self, path: str, parts: Parts) -> None:
        """Write a complete file, and create its folder."""
        data = b"".join(parts)
        try:
            self._file_system.pipe_file(path, data)
        except FileNotFoundError:
            # Buckets have no folders, but file systems such as SFTP have. The folder
            # above is not created, because it may be a bucket with a misspelled name.
            folder = path.rpartition("/")[0]
            self._file_system.mkdir(folder, create_parents=False)
            self._file_system.pipe_file(path, data)

    def read(self, path: str) -> Parts:
        """Return the content of a file, in one part that does not change."""
        return (bytes(self._file_system.cat_file(path)),)

    def exists(self, path: str) -> bool:
        """Return whether there is a file."""
        self._file_system.invalidate_cache()
        # The method ``exists`` of many file systems is False after any error, such as
        # one of the network.
        try:
            self._file_system.info(path)
        except FileNotFoundError:
            return False
        return True

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with everything in it."""
        self._file_system.invalidate_cache()
        names = self._file_system.find(path)
        if names:
            # The paths of single files are passed, because a path with a `*` would be a
            # pattern.
            self._file_system.rm(names)
