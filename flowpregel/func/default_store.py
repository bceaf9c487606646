"""The default store of `map`, `imap` and ``task.run``: a folder in the working
directory.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.errors import StoreError
from flowpregel.func.options import DEFAULT_STORE


def default_store(method: str) -> BaseCheckpointSaver:
    """Open the default store, a folder. If it is new, print its path.

    Args:
        method: The name of the public function, for messages.

    Raises:
        StoreError: The store cannot be created or opened.
    """
    folder = Path(DEFAULT_STORE).absolute()
    try:
        saver = LMDBSaver(folder)
        if not (folder / ".gitignore").exists():
            _hide_from_git(folder)
    except (OSError, StoreError) as error:
        error.add_note(
            f"{method}() stores results in {folder}: pass store= with the path of "
            "another folder, or store=None to store nothing"
        )
        raise
    return saver


def _hide_from_git(folder: Path) -> None:
    """Create a ``.gitignore`` in the default store, so that git ignores the store, and
    print where the store is.

    The file is created only once, even by two programs at the same time, so the
    location is printed only once too.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with suppress(FileExistsError):
        file = os.open(folder / ".gitignore", flags, 0o600)
        os.write(file, b"*\n")
        os.close(file)
        print(_TEXT.format(folder=folder, name=DEFAULT_STORE), file=sys.stderr)


_TEXT: Final = (
    "flowpregel: results are stored in {folder}. Run the program again to resume, or "
    "to get the stored results. `flowpregel ls --store {name}` lists the runs. Delete "
    "the folder to start over, or pass store=None to store nothing."
)
