"""The search for the stored values (see `flowpregel.stored`) to which the results of
recorded calls and the writes of recorded nodes refer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from flowpregel._inspection.inert import stored_locations
from flowpregel._urls import without_credentials
from flowpregel.checkpoint.work import Work
from flowpregel.executors.base import HOST

HANDLE_MARKS: Final = (b"Stored", b"\x28\xb5\x2f\xfd")
"""Parts of encoded values, at least one of which is in each value with a handle: the
name of the class of handles, or the beginning of a compressed value (a zstd frame).
"""


class StoredValue(NamedTuple):
    """A stored value to which the result of a call, or a write of a node, refers."""

    task: Work
    """The call or the node, without results and writes."""
    location: str
    """The path or the URL of the value's file."""

    @property
    def address(self) -> str:
        """The path or the URL of the file, without a password."""
        return without_credentials(self.location)

    @property
    def folder(self) -> str:
        """The path or the URL, without a password, of the folder that was passed to
        `stored`.
        """
        # The folder for all threads has a folder for each thread, which has the files.
        return self.address.rsplit("/", 2)[0]


def missing_folder_text(folder: str) -> str:
    """Return what is wrong with a folder of stored values that this machine lacks, and
    what to do.
    """
    return (
        f"the folder {folder}, in which results of the run are stored, does not exist "
        f"on {HOST}: mount it, or run the command on a machine that has it; if all of "
        "its values are lost, create the empty folder, and try again"
    )


def stored_values(tasks: Iterable[Work]) -> Iterator[StoredValue]:
    """Yield the stored values to which the results of calls, and the writes of nodes,
    refer.

    The value of a node is left out if a call or an earlier node of the run has the same
    value, because a node may pass on a handle that it did not make.

    Args:
        tasks: The calls and the nodes of a run, which `InertCodec` has decoded.
    """
    locations_before: set[str] = set()
    # The sort is stable: the calls come first, and the nodes stay in their order.
    for task in sorted(tasks, key=lambda task: not task.is_call):
        locations = dict.fromkeys(stored_locations((task.result, task.writes)))
        # The values of many runs are listed together. Their results would need much
        # memory.
        task_alone = replace(task, result=None, writes=None)
        for location in locations:
            if task.is_call or location not in locations_before:
                yield StoredValue(task_alone, location)
        locations_before.update(locations)
