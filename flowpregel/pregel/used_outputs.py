"""The output files of calls whose recorded results a run uses."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flowpregel._core.records import Address
from flowpregel._inspection.output_files import base_folders, present_path
from flowpregel._pickling.file_digests import note_output
from flowpregel._shell import command_line, command_words
from flowpregel._text import in_one_line
from flowpregel.checkpoint.base import BaseCheckpointSaver

_MOST_NAMED = 3
"""The number of missing files that a notice names."""


def notice_of_gone_outputs(
    saver: BaseCheckpointSaver,
    address: Address,
) -> str:
    """Return a notice on the output files of a run that are gone, or an empty string if
    no file is gone.

    The recorded digests of the files are noted in this process, so that the run need
    not read files that another process has written.

    Args:
        saver: The store of the run.
        address: The checkpoint from which the run resumes, or its last checkpoint.
    """
    folders = base_folders(saver)
    names: list[str] = []
    has_calls = False
    for call in saver.output_files(address):
        for output in call.files:
            path = present_path(output, folders)
            note_output(output, path)
            if not os.path.exists(path):
                has_calls |= call.is_call
                name = in_one_line(call.name)
                names.append(f"{output.path!r} of {name}")
    if not names:
        return ""
    return _notice(
        names,
        address.thread_id,
        has_calls=has_calls,
    )


def _notice(
    names: Sequence[str],
    thread_id: str,
    *,
    has_calls: bool,
) -> str:
    """Return a notice on output files that are gone.

    Args:
        names: The files, each with the call that wrote it.
        thread_id: The id of the run.
        has_calls: Whether calls wrote some of the files. Then the notice names the
            command that makes the run forget the results of these calls. There is no
            such command for nodes.
    """
    files = ", ".join(names[:_MOST_NAMED])
    text = f"output {files}"
    hidden = len(names) - _MOST_NAMED
    if hidden > 0:
        text += f" and {hidden:,} more"
    verb = "is" if len(names) == 1 else "are"
    text += f" {verb} gone; the recorded results are used"
    if has_calls:
        words = command_words("redo", thread_id, options=["--gone"])
        command = command_line(words)
        text += f" (`{command}` takes them back, so that a run repeats them)"
    return text
