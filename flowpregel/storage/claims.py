"""Claims: the right of one process to compute a shared result, as locks on files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from flowpregel.storage.locks import FileLock


class ClaimFiles:
    """The claims on the results of a cache. Each is a file in ``claims/``.

    Args:
        folder: The folder that contains ``claims/``. Claims of killed processes are
            removed when this is created.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "claims")
        with suppress(FileNotFoundError):
            names = os.listdir(self._folder)
            for name in names:
                with self._claimed(name):
                    pass

    def claim(self, digest: bytes) -> AbstractContextManager[bool]:
        """Hold the claim on the result with this *digest* while the context is open.

        Yield False if another process holds the claim.
        """
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        return self._claimed(digest.hex())

    @contextmanager
    def _claimed(self, name: str) -> Iterator[bool]:
        file = FileLock(os.path.join(self._folder, name))
        is_free = False
        try:
            # The last owner may have unlinked the file after we opened it.
            is_free = file.acquire(0.0) and file.is_current()
            yield is_free
        finally:
            file.close(remove=is_free)
