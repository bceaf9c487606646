"""Claims: the right of one process to compute a shared result, as locks on files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from flowpregel.storage.locks import FileLock


class ClaimFiles:
    """The claims on the results of a cache, a file each in ``claims/``.

    Args:
        folder: The folder around ``claims/``. Files of killed processes are removed
            from it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "claims")
        with suppress(FileNotFoundError):
            names = os.listdir(self._folder)
            for name in names:
                with self._claimed(name):
                    pass

    def claim(self, digest: bytes) -> AbstractContextManager[bool]:
        """Hold the claim on the result with this *digest*; yield False if another
        process holds it.
        """
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        return self._claimed(digest.hex())

    @contextmanager
    def _claimed(self, name: str) -> Iterator[bool]:
        file = FileLock(os.path.join(self._folder, name))
        is_free = False
        try:
            # Its last owner may have removed the file since it was opened.
            is_free = file.acquire(0.0) and file.is_current()
            yield is_free
        finally:
            file.close(remove=is_free)
