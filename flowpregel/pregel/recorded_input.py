"""The comparison of a run's recorded input with the input of a new request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowpregel._core import records
from flowpregel._core.files import changed_files, with_files
from flowpregel._core.program import Program
from flowpregel._core.records import Saved
from flowpregel._inspection.open_checkpoint import OpenCheckpoint, open_checkpoint
from flowpregel._pickling.digest import digest_of, earlier_digests
from flowpregel.channels.base import BaseChannel
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.pregel.naming import RunIdentity

FILES = "input_files"
"""The metadata key for the path, digest and size of each file in an input."""
DIGEST = "input_digest"
"""The metadata key for the digest of an input."""


def labels_of_input(run_input: Any) -> dict[str, Any]:
    """Return the metadata for an input: its digest, and the files in it."""
    digest, files = with_files(lambda: digest_of(run_input, "the input", strict=False))
    labels: dict[str, Any] = {DIGEST: digest}
    if files:
        labels[FILES] = [list(content) for content in files]
    return labels


def recorded_digest(
    program: Program,
    opened: OpenCheckpoint,
) -> str | None:
    """Return the digest of the input with which a run began, or None if unknown."""
    recorded: str | None = opened.saved.checkpoint.metadata.get(DIGEST)
    if recorded is not None and opened.applied is None:
        return recorded
    channel = _input_channel(program, opened)
    if channel is None:
        return None
    return digest_of(channel.get(), "the input", strict=False)


def _input_channel(
    program: Program,
    opened: OpenCheckpoint,
) -> BaseChannel[Any, Any] | None:
    """Return the input channel if it still contains the input of a run, or None. It is
    empty after the first superstep.
    """
    keys = program.input_channels
    if not isinstance(keys, str):
        return None
    channel = opened.state.channels.get(keys)
    if channel is None or not channel.is_available():
        return None
    return channel


def recorded_input(
    program: Program,
    saver: BaseCheckpointSaver,
    saved: Saved,
) -> tuple[Any, ...]:
    """Return the input with which a run began, in a tuple, which is empty if the input
    is not stored.

    Args:
        program: The program of the run.
        saver: The saver of the run.
        saved: The last checkpoint of the run.
    """
    first = input_of_run(program, saver, open_checkpoint(program, saved))
    channel = _input_channel(program, first)
    return () if channel is None else (channel.get(),)


def matches_earlier_class(
    run_input: Any,
    recorded: str | None,
) -> bool:
    """Return whether an input equals the recorded input, apart from fields that its
    class has gained since and that have their default values.

    Args:
        run_input: The input of the new request.
        recorded: The digest of an input that may have been recorded before the class
            gained these fields.
    """
    return recorded is not None and recorded in earlier_digests(run_input, "the input")


def has_new_parameters(
    program: Program,
    saver: BaseCheckpointSaver,
    opened: OpenCheckpoint,
    once: RunIdentity,
    labels: Mapping[str, Any],
) -> bool:
    """Return whether an input differs from the recorded input only by new parameters
    with defaults.

    After a workflow has gained such parameters, an unchanged call has a different
    input.

    Args:
        program: The program of the run.
        saver: The saver of the run.
        opened: The last checkpoint of the run.
        once: The identity of the workflow, which adds default values to a recorded
            input.
        labels: The metadata of the input, as `labels_of_input` returns them.
    """
    if once.completed is None:
        return False
    first = opened if opened.tasks else input_of_run(program, saver, opened)
    channel = _input_channel(program, first)
    if channel is None or first.applied is not None:
        return False
    # A digest of the recorded input would use the present content of the files, which
    # may have changed. So the files are compared first.
    if labels.get(FILES) != opened.saved.checkpoint.metadata.get(FILES):
        return False
    try:
        completed = once.completed(channel.get())
    except TypeError:
        # The workflow no longer accepts the recorded input, so the inputs differ.
        return False
    digest = digest_of(completed, "the input", strict=False)
    return bool(digest == labels[DIGEST])


def input_difference(
    recorded: str | None,
    opened: OpenCheckpoint,
    labels: Mapping[str, Any],
) -> str:
    """Return a description of how an input differs from the recorded input.

    Args:
        recorded: The digest of the recorded input, or None if unknown.
        opened: The last checkpoint of the run.
        labels: The metadata of the input, as `labels_of_input` returns them.
    """
    if recorded is None:
        return "its first input is not recorded"
    files = opened.saved.checkpoint.metadata.get(FILES, ())
    texts = [text for _, text in changed_files(files, labels.get(FILES, ()))]
    return "; ".join(texts) or "it was started with another input"


def input_of_run(
    program: Program,
    saver: BaseCheckpointSaver,
    opened: OpenCheckpoint,
) -> OpenCheckpoint:
    """Return the checkpoint that contains the input of a run.

    If that checkpoint was deleted, the result is *opened*, the run's last checkpoint.
    """
    saved: Saved | None = opened.saved
    while saved is not None and saved.checkpoint.source != "input":
        parent_id = saved.checkpoint.parent_id
        if parent_id is None:
            return opened
        address = replace(saved.address, checkpoint_id=parent_id)
        saved = saver.load(address, lazy_results=True)
    return opened if saved is None else open_checkpoint(program, saved)


def without_end(first: OpenCheckpoint) -> Saved:
    """Return the checkpoint of a run's input without the writes of finished bodies.

    From this checkpoint, the bodies run again. The recorded answers to interrupts are
    kept, so no question is asked twice.
    """
    bodies = {task.id for task in first.tasks}
    answers = (records.RESUME, records.ASKED)
    writes = [
        write
        for write in first.saved.writes
        if write.task_id not in bodies or write.channel in answers
    ]
    return replace(first.saved, writes=tuple(writes))
