"""Claims: file locks with which only one process at a time computes a shared result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from flowpregel.storage.locks import FileLock


class ClaimFiles:
    """The claims on the results of a cache. Each is a file in ``claims/``.

    Args:
        folder: The folder that contains ``claims/``. The claims of killed processes are
            removed from it at once.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     claims = ClaimFiles(folder)
        ...     with claims.claim(b"digest of a result") as is_ours:
        ...         with claims.claim(b"digest of a result") as is_free:
        ...             is_ours, is_free
        (True, False)
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "claims")
        with suppress(FileNotFoundError):
            names = os.listdir(self._folder)
            for name in names:
                with self._claimed(name):
                    pass

    def claim(self, digest: bytes) -> AbstractContextManager[bool]:
        """Return a context manager that holds the claim on the result with *digest*.

        Its value is False if another process holds the claim, and True otherwise.
        """
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        return self._claimed(digest.hex())

    @contextmanager
    def _claimed(self, name: str) -> Iterator[bool]:
        file = FileLock(os.path.join(self._folder, name))
        is_free = False
        try:
            # `is_current` is called after the lock is acquired, because the last owner
            # may have unlinked the file after this process had opened it.
            is_free = file.acquire(0.0) and file.is_current()
            yield is_free
        finally:
            file.close(remove=is_free)
