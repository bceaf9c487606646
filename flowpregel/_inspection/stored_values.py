"""The search for the files of stored values (see `flowpregel.stored`) to which the
results of recorded calls refer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from flowpregel._inspection.inert import stored_locations
from flowpregel._urls import without_credentials
from flowpregel.checkpoint.work import Work
from flowpregel.executors import value_files
from flowpregel.executors.base import HOST

HANDLE_MARKS: Final = (b"Stored", b"\x28\xb5\x2f\xfd")
"""Parts of encoded values, at least one of which is in each value with a handle: the
name of the class of handles, or the beginning of a compressed value (a zstd frame).
"""


class StoredValue(NamedTuple):
    """A stored value to which the result of a call refers."""

    call: Work
    """The call."""
    location: str
    """The path or the URL of the value's file."""
    exists: bool
    """True if the file exists."""
    missing_folder: str | None = None
    """The folder that was passed to `stored`, if this machine has no such folder. The
    file may exist on other machines then.
    """

    @property
    def is_gone(self) -> bool:
        """True if the file no longer exists, although its folder does."""
        return not self.exists and self.missing_folder is None

    @property
    def address(self) -> str:
        """The path or the URL of the file, without a password."""
        return without_credentials(self.location)


def missing_folder_text(folder: str) -> str:
    """Return what is wrong with a folder of stored values that this machine lacks, and
    what to do.
    """
    return (
        f"the folder {folder}, in which results of the run are stored, does not exist "
        f"on {HOST}: mount it, or run the command on a machine that has it; if all of "
        "its values are lost, create the empty folder, and try again"
    )


class StoredValues:
    """A search for files of stored values. Each file is searched for once, because
    several results may refer to it, and a request to a bucket takes time.
    """

    def __init__(self) -> None:
        self._exists = cache(value_files.value_exists)
        self._missing_folder = cache(value_files.missing_folder)

    def of_calls(self, calls: Iterable[Work]) -> Iterator[StoredValue]:
        """Yield the stored values to which the results of *calls* refer.

        Args:
            calls: Calls whose results `InertCodec` has decoded.

        Raises:
            StoreError: A file system cannot be reached.
        """
        for call in calls:
            for location in stored_locations(call.result):
                exists = self._exists(location)
                folder = None if exists else self._missing_folder(location)
                yield StoredValue(call, location, exists, folder)
