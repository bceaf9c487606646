"""The record of the output files of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowpregel._core.records import Address
from flowpregel._pickling.file_digests import WrittenFile


class CallFiles(NamedTuple):
    """The output files of a call, or of a node's task."""

    address: Address
    """The checkpoint from which the task started."""
    task_id: str
    """The id of the task."""
    name: str
    """The call as text, such as ``parse('a.txt')``, or the name of the node."""
    is_call: bool
    """True for a call of a task, False for a node."""
    files: Sequence[WrittenFile]
    unrecorded: int
    """The number of further output files, for which the record had no room."""
