"""The output files of calls, as `show` and `check` print them, and the files of stored
values, as `check` prints them.
"""

from __future__ import annotations

from collections import Counter
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
    from flowpregel._inspection.stored_values import StoredValue
    from flowpregel.checkpoint.base import BaseCheckpointSaver
    from flowpregel.checkpoint.call_files import CallFiles
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.checkpoint.work import Work
    from flowpregel.executors.value_files import ValueFileState

_MAKE_GONE = "make again what is gone"
"""The purpose of `redo ID --gone`."""
_MAKE_GONE_IF_NEEDED = "if you need it, make again what is gone"
"""The purpose of `redo ID --gone` for the stored values of a finished run."""
_RUN_NODE = "run the node again"
"""The purpose of `fork ID NEW --at CHECKPOINT`."""
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
        yield f"  {hidden:,} more files; --json has them"


# ---------------------------------------------------------------- check


@dataclass
class RunOutputs:
    """The output files of a run, compared with the record, and the stored values of the
    calls and nodes of the run.
    """

    thread: str
    """The id of the run."""
    unchanged: int = 0
    """The number of files with the recorded content."""
    unrecorded: int = 0
    """The number of output files that were too many to be recorded."""
    problems: list[tuple[CallFiles, CheckedOutput]] = field(default_factory=list)
    """The output files that are gone or were changed."""
    found_values: int = 0
    """The number of stored values whose files exist."""
    gone_values: list[StoredValue] = field(default_factory=list)
    """The stored values whose files are gone."""
    missing_folders: Counter[str] = field(default_factory=Counter)
    """The number of stored values in each folder that this machine lacks."""
    unreachable_folders: dict[str, list[str]] = field(default_factory=dict)
    """The errors of the stored values in each folder or bucket that cannot be reached,
    by folder.
    """
    is_done: bool = False
    """True if the run has finished, and so needs no stored value to resume."""

    @property
    def has_findings(self) -> bool:
        """True if there is anything to show about the files of the run."""
        return bool(
            self.problems
            or self.gone_values
            or self.missing_folders
            or self.unreachable_folders
        )

    @property
    def has_problems(self) -> bool:
        """True if an output file is gone or was changed, or if the run may need a
        stored value that is gone, or whose folder this machine lacks.
        """
        # The stored values of a finished run may have been deleted on purpose.
        has_lost_values = bool(self.gone_values or self.missing_folders)
        return bool(self.problems) or (has_lost_values and not self.is_done)

    def add_value(self, value: StoredValue, state: ValueFileState) -> None:
        """Count a stored value of the run, and list it if its file is gone.

        Args:
            value: The stored value.
            state: The state of the value's file.
        """
        if state.exists:
            self.found_values += 1
        elif state.missing_folder is not None:
            self.missing_folders[state.missing_folder] += 1
        elif state.error is not None:
            errors = self.unreachable_folders.setdefault(value.folder, [])
            errors.append(str(state.error))
        else:
            self.gone_values.append(value)

    def count(self, state: str) -> int:
        """Return the number of files in a state."""
        return sum(output.state == state for _, output in self.problems)

    def to_json(self) -> dict[str, list[Any]]:
        """Return the output files and the stored values with problems, by the names of
        their fields in JSON.
        """
        outputs: list[dict[str, Any]] = []
        for file_call, output in self.problems:
            record = {"call": file_call.name, "id": file_call.task_id}
            outputs.append({**record, **output.to_json()})
        values: list[dict[str, Any]] = []
        for value in self.gone_values:
            record = {"call": str(value.task.name), "id": value.task.id}
            values.append({**record, "location": value.address, "state": "gone"})
        unreachable: list[dict[str, str]] = []
        for folder, errors in self.unreachable_folders.items():
            unreachable.append({"folder": folder, "error": errors[0]})
        return {
            "outputs": outputs,
            "stored_values": values,
            "missing_folders": list(self.missing_folders),
            "unreachable_folders": unreachable,
        }

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
        for value in self.gone_values:
            name = in_one_line(str(value.task.name))
            texts.append(f"  {name}: stored value {value.address}, gone")
        yield from _first(texts)
        for purpose, words in self._commands().items():
            command = command_line(words, ["--store", store])
            yield f"  {purpose}: {command}"

    def _commands(self) -> dict[str, tuple[str, ...]]:
        """Return the words of the command that solves each kind of problem with a file,
        by the purpose of the command.
        """
        make_gone = command_words("redo", self.thread, options=["--gone"])
        commands: dict[str, tuple[str, ...]] = {}
        for call, output in self.problems:
            if not call.is_call:
                purpose = _RUN_NODE
                words = self._fork_words(call.address)
            elif output.state == "gone":
                purpose = _MAKE_GONE
                words = make_gone
            else:
                purpose = "overwrite a changed file"
                words = command_words("redo", self.thread, call.name)
            commands.setdefault(purpose, words)
        for purpose, words in self._commands_of_values():
            # One command makes output files and stored values again.
            if words not in commands.values():
                commands.setdefault(purpose, words)
        return commands

    def _commands_of_values(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the purpose and the words of the command for each lost stored value."""
        make_gone = command_words("redo", self.thread, options=["--gone"])
        for value in self.gone_values:
            if value.task.is_call:
                purpose = _MAKE_GONE_IF_NEEDED if self.is_done else _MAKE_GONE
                yield purpose, make_gone
            else:
                yield _RUN_NODE, self._fork_words(value.task.address)

    def _fork_words(self, address: Address) -> tuple[str, ...]:
        """Return the words of the command that runs a node again in a copy of the run.

        Args:
            address: The checkpoint from which the node started.
        """
        options = ["--at", address.checkpoint_id or ""]
        return command_words("fork", self.thread, "NEW", options=options)


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


def add_stored_values(saver: DurableSaver, runs: Iterable[RunOutputs]) -> None:
    """Add the stored values to which calls and nodes of runs refer. No value is read.

    Args:
        saver: The store, opened with an `InertCodec`.
        runs: The runs to complete.
    """
    # These modules are imported here, so that `show` starts fast.
    from flowpregel._inspection.run_tasks import work_of_last_run  # noqa: PLC0415
    from flowpregel._inspection.stored_values import (  # noqa: PLC0415
        HANDLE_MARKS,
        stored_values,
    )
    from flowpregel.executors.value_files import file_states  # noqa: PLC0415

    values: list[tuple[RunOutputs, StoredValue]] = []
    for run in runs:
        # Most runs have no handles. To decode their results would take long.
        if saver.writes_contain(run.thread, HANDLE_MARKS):
            info = saver.thread(run.thread)
            run.is_done = info is not None and info.status == "done"
            tasks = work_of_last_run(saver, run.thread)
            values += [(run, value) for value in stored_values(tasks)]
    # The files of all runs are searched for together, so that several requests to
    # buckets are made at once.
    states = file_states(value.location for _, value in values)
    for run, value in values:
        run.add_value(value, states[value.location])


def summary_of(runs: Sequence[RunOutputs]) -> Iterator[str]:
    """Yield the numbers of output files in one line, if any are recorded, the numbers
    of stored values in another, and a line for each folder that this machine lacks or
    cannot reach.
    """
    yield from _summary_of_outputs(runs)
    existing = sum(run.found_values for run in runs)
    gone = sum(len(run.gone_values) for run in runs)
    if existing + gone:
        yield f"stored values: {existing:,} found, {gone:,} gone"
    yield from _lines_of_missing_folders(runs)
    yield from _lines_of_unreachable_folders(runs)


def _lines_of_missing_folders(runs: Iterable[RunOutputs]) -> Iterator[str]:
    """Yield a line for each folder of stored values that this machine lacks."""
    from flowpregel._inspection.stored_values import (  # noqa: PLC0415 - as above
        missing_folder_text,
    )

    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.missing_folders)
    for folder, count in counts.items():
        text = missing_folder_text(folder)
        yield f"stored values that were not found: {count:,}; {text}"


def _lines_of_unreachable_folders(runs: Iterable[RunOutputs]) -> Iterator[str]:
    """Yield a line for each folder or bucket of stored values that cannot be reached,
    with the error of the first value in it.
    """
    errors: dict[str, list[str]] = {}
    for run in runs:
        for folder, errors_in_run in run.unreachable_folders.items():
            errors.setdefault(folder, []).extend(errors_in_run)
    for errors_in_folder in errors.values():
        reason = in_one_line(errors_in_folder[0])
        count = len(errors_in_folder)
        yield f"stored values that were not searched for: {count:,}; {reason}"


def _summary_of_outputs(runs: Iterable[RunOutputs]) -> Iterator[str]:
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
