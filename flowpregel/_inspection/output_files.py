"""The present states of the output files that are recorded with calls."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from flowpregel._core.records import Address
from flowpregel._pickling.file_digests import (
    WrittenFile,
    has_recorded_content,
    present_state,
)
from flowpregel._text import size_text
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.call_files import CallFiles

OutputState: TypeAlias = Literal["unchanged", "touched", "changed", "gone"]
"""The present state of an output file.

* *unchanged*: It has the recorded content.
* *touched*: It has the recorded size, but another modification time. It was not read,
  so its content is not known.
* *changed*: Its content differs from the recorded content, or it cannot be read.
* *gone*: It does not exist.
"""


@dataclass(frozen=True, kw_only=True)
class CheckedOutput:
    """An output file of a call, and its present state."""

    path: str
    """The path that the task named."""
    size: int
    """The size of the file in bytes, as recorded with the call."""
    state: OutputState
    present_size: int | None
    """The present size in bytes, or None if the file is gone or cannot be read."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {
            "path": self.path,
            "size": self.size,
            "state": self.state,
            "present_size": self.present_size,
        }

    def __str__(self) -> str:
        """Return the file and its state in words."""
        text = f"{self.path} {size_text(self.size)}"
        match self.state:
            case "gone":
                return f"{text}, gone"
            case "changed" if self.present_size is None:
                return f"{text}, cannot be read"
            case "changed" if self.present_size != self.size:
                return f"{text}, changed since: now {size_text(self.present_size or 0)}"
            case "changed":
                return f"{text}, changed since"
            case "touched":
                return f"{text}, written since"
        return text


def base_folders(store: object) -> tuple[str, ...]:
    """Return the folders in which output files with relative paths are searched for,
    before the folder in which the task ran.

    They are the working folder and the folder of the store, so that files are found if
    they were moved together with their store.

    Args:
        store: The saver, or the store that it uses.
    """
    location = getattr(store, "path", None)
    folders = [os.getcwd()]
    if isinstance(location, str) and os.path.exists(location):
        folders.append(os.path.dirname(os.path.abspath(location)))
    return tuple(folders)


def present_path(output: WrittenFile, folders: Sequence[str]) -> str:
    """Return the path at which an output file is, or at which it was written.

    Args:
        output: The record of the file.
        folders: The folders that `base_folders` returns.
    """
    recorded = os.path.join(output.folder, output.path)
    if not output.folder:
        return recorded
    for folder in folders:
        path = os.path.join(folder, output.path)
        if os.path.exists(path):
            return path
    return recorded


def checked_output(
    output: WrittenFile,
    folders: Sequence[str],
    *,
    reads: bool = False,
) -> CheckedOutput:
    """Return an output file with its present state.

    Args:
        output: The record of the file.
        folders: The folders that `base_folders` returns.
        reads: Whether to read the file if only its time has changed.
    """
    path = present_path(output, folders)
    recorded = output.state
    state: OutputState = "changed"
    present_size: int | None = None
    try:
        present = present_state(path)
        present_size = present.size
        if present._replace(inode=recorded.inode) == recorded:
            state = "unchanged"
        elif reads:
            is_same = has_recorded_content(output, path, present)
            state = "unchanged" if is_same else "changed"
        elif present.size == recorded.size:
            state = "touched"
    except FileNotFoundError:
        state = "gone"
    except OSError:
        # The folder of the file, or the file itself, cannot be read, so the state stays
        # "changed".
        present_size = None
    return CheckedOutput(
        path=output.path,
        size=recorded.size,
        state=state,
        present_size=present_size,
    )


def gone_outputs(
    saver: BaseCheckpointSaver,
    address: Address,
) -> Iterator[tuple[CallFiles, list[WrittenFile]]]:
    """Yield the calls and nodes of a run that have lost an output file, each with the
    lost files.

    Args:
        saver: The store.
        address: A checkpoint of the run, or only the thread for its newest.
    """
    folders = base_folders(saver)
    for call in saver.output_files(address):
        gone = [
            file
            for file in call.files
            if not os.path.exists(present_path(file, folders))
        ]
        if gone:
            yield call, gone
