"""Values in files of a folder or an object store. Only small handles of them are sent
between processes and recorded.

::

    the worker that makes a value ──► FOLDER/THREAD/DIGEST
            │ handle: location, digest, size, type
            ▼
    the coordinator, the records of the run, streams, the page
            │ handle
            ▼
    the worker that needs the value ◄── FOLDER/THREAD/DIGEST, compared with the digest

The file is complete and durable before the worker returns the handle. The handle is
part of the record of the call, which is sealed (signed with the store's key). So if a
file has the digest in the handle, the run has written it. Workers need no key to check
that. Files with equal bytes have the same name, so a call that is repeated may write
its file again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Generic, TypeAlias, TypeVar, cast

from flowpregel._text import size_text
from flowpregel.context import current
from flowpregel.errors import ConfigurationError

T = TypeVar("T")
Folder: TypeAlias = str | os.PathLike[str]
"""The path of a folder, or the URL of a folder, bucket or prefix."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A handle of a value in a folder or an object store, returned by `stored`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import stored
        >>> with TemporaryDirectory() as folder:
        ...     words = stored(["ada", "bob"], folder=folder)
        ...     words.value
        ['ada', 'bob']
    """

    location: str
    """The absolute path or the URL of the file."""
    digest: str
    """The SHA-256 of the file, which is also its name, in hex digits."""
    nbytes: int
    """The size of the file in bytes."""
    type_name: str
    """The name of the value's type."""

    @property
    def value(self) -> T:
        """A new copy of the value at each access, read from the file.

        If the body of a workflow reads it, the value is loaded in the coordinator. Pass
        the handle to a task instead if only the task needs the value.

        Raises:
            StoredValueError: The file is missing, or differs from what was written.
            StoreError: The file cannot be read for another reason.
            ValueEncodingError: A class of the value cannot be imported.
        """
        from flowpregel.executors.value_files import read_value  # noqa: PLC0415

        return cast(T, read_value(self.location, self.digest))

    def delete(self) -> None:
        """Delete the file, if it exists.

        Raises:
            StoreError: The file cannot be deleted.
        """
        from flowpregel.executors.value_files import delete_value  # noqa: PLC0415

        delete_value(self.location)

    def __flowpregel_digest__(self) -> str:
        """Return the digest of the file, by which recorded calls are found. So a
        recorded call is also found with a handle of an equal value in another folder.
        """
        return self.digest

    def __reduce__(self) -> tuple[Any, ...]:
        # The order of these arguments must stay the same: tools that read a store
        # without this class know them by position.
        return Stored, (self.location, self.digest, self.nbytes, self.type_name)

    def __flowpregel_text__(self) -> str:
        """Return the string that shows the handle in the description of a call."""
        return repr(self)

    def __repr__(self) -> str:
        return f"<stored {self.type_name}, {size_text(self.nbytes)}>"


def stored(value: T, *, folder: Folder) -> Stored[T]:
    """Write *value* to a file, and return a small handle of it.

    Call it in a task, on the result. The process of the task writes the file, so the
    value does not travel to the program with the flow: only the handle does, and is
    recorded. A task that gets the handle as an argument receives the value, which its
    process reads from the file. A handle inside an argument (in a list, a dict, an
    object) remains a handle, with the value in its ``value`` attribute.

    The file is complete and on the disk when the function returns. It lies in a folder
    of its own for each thread of runs, and stays there until you delete it (see
    `Stored.delete` and `flowpregel.executors.delete_stored`).

    Args:
        value: Any object that can be pickled.
        folder: The path or the URL of a folder that all machines can use. URLs other
            than ``file://`` need the extra ``fsspec`` and the package for their scheme,
            such as s3fs for ``s3://BUCKET/PREFIX``.

    Raises:
        ConfigurationError: *folder* is not a folder or a URL of a known scheme, or a
            package is missing.
        ValueEncodingError: *value* cannot be pickled. The message names the part.
        StoreError: The file cannot be written. For a full disk, this is a
            `StoreFullError`, for missing rights, a `StoreReadOnlyError`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     stored(bytes(5_000), folder=folder)
        <stored bytes, 5.0 kB>
    """
    from flowpregel.executors.value_files import write_value  # noqa: PLC0415

    scope = current.get()
    thread_id = None if scope is None else scope.job.run.thread_id
    written = write_value(value, folder, thread_id)
    return Stored(
        location=written.location,
        digest=written.digest,
        nbytes=written.nbytes,
        type_name=type(value).__qualname__,
    )


def store_result(folder: Folder) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function return a handle of the result, which
    `stored` writes to *folder*.

    Write it below ``@task``. The code of the function needs no change.

    Args:
        folder: As for `stored`.

    Raises:
        ConfigurationError: The decorator is above ``@task``.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import task
        >>> with TemporaryDirectory() as folder:
        ...     @task
        ...     @store_result(folder)
        ...     def zeros(size: int) -> bytes:
        ...         return bytes(size)
        ...     zeros.func(5_000)
        <stored bytes, 5.0 kB>
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        if hasattr(function, "with_options"):
            raise ConfigurationError(
                f"@store_result cannot decorate {function!r}: write it below @task"
            )
        if iscoroutinefunction(function):
            return _with_stored_result_async(function, folder)

        @wraps(function)
        def with_stored_result(*args: Any, **kwargs: Any) -> Stored[Any]:
            return stored(function(*args, **kwargs), folder=folder)

        return with_stored_result

    return decorated


def _with_stored_result_async(
    function: Callable[..., Any], folder: Folder
) -> Callable[..., Any]:
    """Return an async function that awaits *function*, writes the result to *folder*,
    and returns a handle (`Stored`) of the written value.
    """

    @wraps(function)
    async def with_stored_result(*args: Any, **kwargs: Any) -> Stored[Any]:
        import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

        value = await function(*args, **kwargs)
        return await asyncio.to_thread(stored, value, folder=folder)

    return with_stored_result


def delete_stored(thread_id: str | None, *, folder: Folder) -> None:
    """Delete all values that the runs of a thread have written to *folder*.

    Call it when no run of the thread will need them again. If a cached result is a
    handle of a deleted value, or a list, tuple, dict or set with one, the call runs
    again.

    Args:
        thread_id: The id of the runs, or None for values that were written outside of
            runs, or in runs without an id.
        folder: The folder that was passed to `stored`.

    Raises:
        ConfigurationError: As for `stored`.
        StoreError: The files cannot be deleted.

    Example:
        >>> import os
        >>> from tempfile import TemporaryDirectory
        >>> from flowpregel import stored
        >>> with TemporaryDirectory() as folder:
        ...     _ = stored([1, 2], folder=folder)
        ...     delete_stored(None, folder=folder)
        ...     os.listdir(folder)
        []
    """
    from flowpregel.executors.value_files import delete_values  # noqa: PLC0415

    delete_values(folder, thread_id)
