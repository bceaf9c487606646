"""The output files of calls, as `show` and `check` print them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowpregel._core.previews import outputs_in
from flowpregel._core.records import Address
from flowpregel._inspection.output_files import (
    CheckedOutput,
    base_folders,
    checked_output,
)
from flowpregel._shell import command_line, command_words
from flowpregel._text import in_one_line

if TYPE_CHECKING:
    from flowpregel.checkpoint.base import BaseCheckpointSaver
    from flowpregel.checkpoint.call_files import CallFiles
    from flowpregel.checkpoint.work import Work

MOST_LISTED = 20
"""The number of output files that are listed for a run. JSON has all of them."""


# ---------------------------------------------------------------- show


def add_outputs(
    records: Sequence[dict[str, Any]],
    works: Sequence[Work],
    saver: BaseCheckpointSaver,
) -> None:
    """Add the output files of tasks to their records. No file is read.

    Args:
        records: The records of the tasks.
        works: The tasks that the records describe.
        saver: The store of the tasks.
    """
    folders = base_folders(saver)
    for record, work in zip(records, works, strict=True):
        record["outputs"] = []
        if work.ran is None:
            continue
        written = outputs_in(work.ran.preview)
        for file in written.files:
            output = checked_output(file, folders)
            record["outputs"].append(output.to_json())


def output_file_lines(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the output files of tasks for a terminal, after an empty line.

    Args:
        records: The records of the tasks.
    """
    lines: list[str] = []
    for record in records:
        name = in_one_line(str(record["name"]))
        for fields in record.get("outputs", ()):
            output = CheckedOutput(**fields)
            lines.append(f"  {name}: {output}")
    if lines:
        yield ""
        yield "output files:"
        yield from _first(lines)


def _first(lines: Sequence[str]) -> Iterator[str]:
    """Yield the first lines, and a line with the number of the others."""
    yield from lines[:MOST_LISTED]
    hidden = len(lines) - MOST_LISTED
    if hidden > 0:
        yield f"  {hidden:,} more output files; --json has them"


# ---------------------------------------------------------------- check


@dataclass
class RunOutputs:
    """The output files of a run, compared with the record."""

    thread: str
    """The id of the run."""
    unchanged: int = 0
    """The number of files with the recorded content."""
    unrecorded: int = 0
    """The number of output files that were too many to be recorded."""
    problems: list[tuple[CallFiles, CheckedOutput]] = field(default_factory=list)
    """The files that are gone or were changed."""

    def count(self, state: str) -> int:
        """Return the number of files in a state."""
        return sum(output.state == state for _, output in self.problems)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the files that are gone or were changed."""
        records: list[dict[str, Any]] = []
        for call, output in self.problems:
            record = {
                "call": call.name,
                "id": call.task_id,
            }
            fields = output.to_json()
            record.update(fields)
            records.append(record)
        return records

    def lines(self, store: str) -> Iterator[str]:
        """Yield the files that are gone or were changed, with the commands that make
        them again.

        Args:
            store: The value of ``--store`` in the commands.
        """
        texts: list[str] = []
        for call, output in self.problems:
            name = in_one_line(call.name)
            texts.append(f"  {name}: {output}")
        yield from _first(texts)
        for purpose, words in self._commands().items():
            command = command_line(words, ["--store", store])
            yield f"  {purpose}: {command}"

    def _commands(self) -> dict[str, tuple[str, ...]]:
        """Return the words of the command that solves each kind of problem with an
        output file, by the purpose of the command.
        """
        commands: dict[str, tuple[str, ...]] = {}
        for call, output in self.problems:
            if not call.is_call:
                purpose = "run the node again"
                checkpoint = call.address.checkpoint_id or ""
                options = ["--at", checkpoint]
                words = command_words("fork", self.thread, "NEW", options=options)
            elif output.state == "gone":
                purpose = "make again what is gone"
                words = command_words("redo", self.thread, options=["--gone"])
            else:
                purpose = "overwrite a changed file"
                words = command_words("redo", self.thread, call.name)
            commands.setdefault(purpose, words)
        return commands


def check_outputs(
    saver: BaseCheckpointSaver,
    threads: Iterable[str],
) -> list[RunOutputs]:
    """Return the output files of runs, compared with the record.

    A file is read only if it has the recorded size, but its modification time differs.

    Args:
        saver: The store.
        threads: The ids of the runs.
    """
    folders = base_folders(saver)
    runs: list[RunOutputs] = []
    for thread in threads:
        run = RunOutputs(thread)
        for call in saver.output_files(Address(thread)):
            run.unrecorded += call.unrecorded
            for file in call.files:
                output = checked_output(file, folders, reads=True)
                if output.state == "unchanged":
                    run.unchanged += 1
                else:
                    run.problems.append((call, output))
        runs.append(run)
    return runs


def summary_of(runs: Iterable[RunOutputs]) -> Iterator[str]:
    """Yield the numbers of output files in one line, if any are recorded."""
    unchanged = 0
    changed = 0
    gone = 0
    unrecorded = 0
    for run in runs:
        unchanged += run.unchanged
        changed += run.count("changed")
        gone += run.count("gone")
        unrecorded += run.unrecorded
    if not unchanged + changed + gone:
        return
    text = f"output files: {unchanged:,} unchanged, {changed:,} changed, {gone:,} gone"
    if unrecorded:
        text += f", {unrecorded:,} not recorded"
    yield text
