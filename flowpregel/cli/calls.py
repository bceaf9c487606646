"""The commands that find problems of a run, and correct them.

These are: check, debug, why, retry, redo.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from flowpregel._core.records import Address, Saved
from flowpregel._inspection.preview import FULL, one_line, to_json
from flowpregel._shell import command_line, command_words
from flowpregel._text import in_one_line
from flowpregel._tracebacks import whole_text
from flowpregel.checkpoint.work import Work
from flowpregel.cli import console, running, targets
from flowpregel.cli.console import Code, print_note
from flowpregel.cli.options import FLOW_OPTION
from flowpregel.errors import ConfigurationError, RunNotice

if TYPE_CHECKING:
    from flowpregel._inspection.dry_replay import DryRun
    from flowpregel.checkpoint.arguments import StoredArguments
    from flowpregel.cli.outputs import RunOutputs
    from flowpregel.pregel.pregel import Pregel

_MOST_LISTED = 20
"""The number of calls that an error message lists."""


@click.command("check")
@click.argument("store", envvar="FLOWPREGEL_STORE")
@click.argument(
    "flow",
    metavar="[MODULE:FLOW]",
    required=False,
)
@click.option(
    "--unfinished",
    is_flag=True,
    help="Leave finished runs out.",
)
@click.option(
    "--run",
    "threads",
    metavar="ID",
    multiple=True,
    help="Check only this run. The option may be repeated.",
)
def check_command(
    store: str,
    flow: str | None,
    unfinished: bool,
    threads: tuple[str, ...],
) -> Code:
    """Show what the runs of a store would do with the present code.

    The command also shows which output files and stored values of the calls and nodes
    of the outermost graph are gone, and which output files were changed. The body of
    each unfinished run is replayed with the recorded results; no task runs, and nothing
    is written. A finished run is shown if other code made its stored result. With
    MODULE:FLOW only the runs of this flow are checked, and runs that do not record a
    flow. A run that is running now is left out.

    The files that tasks have written with runtime.output are compared with their
    recorded sizes and times. A file with the recorded size and another time is read.
    The files of stored values are searched for, but not read.

    The exit code is 1 if a run would not resume as before: it would fail, use results
    of other code, or not make recorded calls again. It is 1, too, if an output file is
    gone or was changed, or if a stored value of an unfinished run is gone, or this
    machine lacks its folder. A folder or bucket that cannot be reached is only named.
    """
    # The imports are done here, so that ``--help`` stays fast.
    from flowpregel.cli.outputs import add_stored_values, check_outputs  # noqa: PLC0415
    from flowpregel.pregel.dry_replay import check_runs, owns  # noqa: PLC0415

    only_flow = None if flow is None else targets.load_flow(flow)
    checked: dict[str, None] = {}

    def flow_of_run(saved: Saved) -> Pregel | None:
        """Return the flow of a run, or None to leave the run out."""
        thread = saved.address.thread_id
        if threads and thread not in threads:
            return None
        if only_flow is not None and not owns(only_flow, saved):
            return None
        checked[thread] = None
        return targets.recorded_flow(saved) if only_flow is None else only_flow

    # What the bodies of the flows print goes to stderr, because stdout is only for the
    # result.
    with targets.open_to_write(store) as saver, redirect_stdout(sys.stderr):
        for thread in threads:
            targets.newest_checkpoint(saver, thread)
        runs = dict(
            check_runs(
                saver,
                flow_of_run,
                finished=not unfinished,
            )
        )
        outputs = check_outputs(saver, checked)
    # Handles of stored values are found in results without the user's classes, so the
    # store is opened again.
    with targets.open_to_read(store) as saver:
        add_stored_values(saver, outputs)
    return _print_checked(runs, outputs, store)


check_command.params += [console.TRUST_OPTION, console.AS_JSON]


def _checked_row(thread_id: str, run: DryRun) -> dict[str, Any]:
    """Return the report of a run as a record for JSON."""
    row = {
        "thread_id": thread_id,
        "fits": run.fits,
        **asdict(run),
        "outputs": [],
        "stored_values": [],
        "missing_folders": [],
        "unreachable_folders": [],
    }
    if run.time is not None:
        row["time"] = {**run.time.range._asdict(), "at_once": run.time.at_once}
    return row


def _print_checked(
    runs: Mapping[str, DryRun],
    outputs: Sequence[RunOutputs],
    store: str,
) -> Code:
    """Print the runs that are unfinished or do not fit the code, or whose output files
    or stored values are gone or were changed.

    Args:
        runs: The reports of the runs, by id.
        outputs: The output files and the stored values of the runs.
        store: The value of ``--store`` in commands.

    Returns:
        The exit code of the command.
    """
    from flowpregel._inspection.dry_replay import DryRun  # noqa: PLC0415
    from flowpregel.cli.outputs import summary_of  # noqa: PLC0415

    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    findings = {run.thread: run for run in outputs if run.has_findings}
    # The files of a finished run are known even if its flow is not found.
    finished = {thread: DryRun(is_done=True) for thread in findings}
    for thread_id, run in {**finished, **runs}.items():
        files = findings.get(thread_id)
        if run.is_done and run.fits and files is None:
            continue
        row = _checked_row(thread_id, run)
        name = in_one_line(thread_id)
        lines.append(f"{name}\n{run}".replace("\n", "\n  "))
        if files is not None:
            row.update(files.to_json())
            lines.extend(files.lines(store))
        rows.append(row)
    misfits = sum(not run.fits for run in runs.values())
    unfinished = sum(not run.is_done for run in runs.values())
    lines.append(
        f"unfinished runs: {unfinished:,}; runs that do not match the code: {misfits:,}"
    )
    lines.extend(summary_of(outputs))
    console.print_result(rows, *lines)
    return Code.FAILED if misfits else _code_of_files(outputs)


def _code_of_files(outputs: Iterable[RunOutputs]) -> Code:
    """Return the exit code for the files of runs that fit the code."""
    has_problems = any(run.has_problems for run in outputs)
    return Code.FAILED if has_problems else Code.OK


@console.thread_command("debug", FLOW_OPTION)
@click.argument("call", required=False)
@click.option(
    "--pdb",
    "in_pdb",
    is_flag=True,
    help="Open its error in Python's debugger.",
)
def debug_command(
    thread: str,
    call: str | None,
    in_pdb: bool,
    flow: str | None,
    store: str | None,
) -> None:
    """Repeat a failed call in this process.

    The call gets the arguments that it had, and runs the current code. CALL is its id
    or its text, such as "parse('c.txt')", or the beginning of either; if only one call
    failed, CALL can be left out. Nothing is written to the store. If the call changes
    arguments in place, a note on stderr names them.
    """
    recorded = _recorded_calls(thread, store)
    failed = [work for work in recorded if work.state == "failed"]
    work = _select_call(failed, call, "call that failed")
    targets.flow_of_thread(thread, flow, store)
    path = targets.existing_store(store)
    with targets.open_saver(path, readonly=True) as saver:
        arguments = saver.kept_arguments(work.address, work.id)
    if arguments is None:
        raise ConfigurationError(f"the arguments of {work.name} are not stored")
    function = _repeatable_function(arguments)
    try:
        # What the function prints goes to stderr, because stdout is only for the
        # result.
        with redirect_stdout(sys.stderr), _notices_as_notes():
            result = function(*arguments.args, **arguments.kwargs)
    except Exception as error:
        print_note(whole_text(error).rstrip())
        if in_pdb:
            post_mortem = resolve_name("pdb:post_mortem")
            post_mortem(error.__traceback__)
        console.print_result({"call": work.name, "error": to_json(error, FULL)})
        raise click.exceptions.Exit(Code.FAILED) from error
    console.print_result(
        {"call": work.name, "result": to_json(result, FULL)},
        one_line(result),
    )


@contextmanager
def _notices_as_notes() -> Iterator[None]:
    """Print the notices of runs inside the ``with`` block as notes of the command."""
    with warnings.catch_warnings():
        show_warning = warnings.showwarning

        def show_note(message: Any, category: Any, *others: Any, **more: Any) -> None:
            if issubclass(category, RunNotice):
                print_note(f"note: {message}")
            else:
                show_warning(message, category, *others, **more)

        warnings.simplefilter("always", RunNotice)
        warnings.showwarning = show_note
        yield


def _repeatable_function(arguments: StoredArguments) -> Callable[..., Any]:
    """Return the function with which to make a call again.

    Raises:
        ConfigurationError: There is no such function, or an argument was not stored.
    """
    for position, reason in arguments.missing.items():
        raise ConfigurationError(f"argument {position!r} was not stored: {reason}")
    try:
        task = resolve_name(arguments.function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"there is no task {arguments.function} ({error}); define it at the top "
            "level of its module"
        ) from error
    if not arguments.function.endswith(".map"):
        function: Callable[..., Any] = getattr(task, "call_here", task)
        return function

    def call_each(
        _: int,
        items: Iterable[tuple[Any, ...]],
    ) -> list[Any]:
        """Make the calls of a chunk (several items of a `map`) one after another."""
        call_here = task.__self__.call_here
        return [call_here(*item) for item in items]

    return call_each


@console.thread_command("why", FLOW_OPTION)
@click.argument("call")
def why_command(
    thread: str,
    call: str,
    flow: str | None,
    store: str | None,
) -> None:
    """Show how a call came to its result, and what the next run does.

    The next run takes the result from the record, or makes the call again. If code has
    changed since, the changes are named. If the task shares its results in a cache, so
    is the part of the key because of which a result was not found. CALL is the id or
    the text of a call, such as "parse('c.txt')", the name of a graph's node, or the
    beginning of any of these.
    """
    # The import is done here, so that ``--help`` stays fast.
    from flowpregel.cli.cache_reasons import cache_text  # noqa: PLC0415
    from flowpregel.cli.reasons import next_run_text  # noqa: PLC0415

    recorded = _recorded_tasks(thread, store)
    calls = [work for work in recorded if work.is_call]
    # If the run made calls, CALL names one of them. The body that made them, which is
    # recorded as a node, cannot be named. In a graph without calls, CALL names a node.
    work = _select_call(calls or recorded, call, "call")
    loaded_flow = targets.flow_of_thread(thread, flow, store)
    with targets.open_to_read(store) as saver:
        next_run = next_run_text(work, loaded_flow, saver)
    shared = cache_text(work, loaded_flow, store)
    facts = {
        "call": work.name,
        "id": work.id,
        "made": _attempts_text(work),
        "next": next_run,
    }
    if shared:
        facts["cache"] = shared
    lines = [f"{name}: {text}" for name, text in facts.items()]
    console.print_result(facts, *lines)


def _attempts_text(work: Work) -> str:
    """Return a sentence about the attempts that led to a call's result."""
    ran = work.ran
    if ran is None:
        return "started; the time and the process were not recorded"
    if not ran.attempts:
        return "never; the result came from a cache"
    text = f"at {console.utc_text(ran.began)} by {ran.executor}, process {ran.pid}"
    if ran.attempts > 1:
        text = f"{ran.attempts} times, the last {text}"
    return f"{text}, in {ran.seconds:.3f} s; {work.state}"


_FAILED = click.Option(
    ["--failed"],
    is_flag=True,
    help="Include the failures that the flow handled.",
)


_ONLY_TASK = click.Option(
    ["--task", "only_task"],
    metavar="NAME",
    help="Of the handled failures, include only those of this task.",
)
_ONLY_ERROR = click.Option(
    ["--error", "only_error"],
    metavar="ERROR",
    help="Of the handled failures, include only those with this error.",
)
_RETRY_PARAMETERS = (
    _FAILED,
    _ONLY_TASK,
    _ONLY_ERROR,
    *running.resume_command.params,
)


@click.command("retry", params=[*_RETRY_PARAMETERS])
def retry_command(
    failed: bool,
    only_task: str | None,
    only_error: str | None,
    **options: Any,
) -> Any:
    """Resume a thread's run, and try again what failed.

    The results of finished calls stay. ERROR is the class and the message of an error,
    or their beginning, such as "ValueError: no"; any number matches another number, or
    a #. `show` lists the errors of a run by kind.
    """
    if failed or only_task is not None or only_error is not None:
        store = options["store"]
        calls = _recorded_calls(options["thread"], store)
        selected = _failed_calls(calls, only_task, only_error or "")
        _take_back(store, selected)
    context = click.get_current_context()
    return context.invoke(running.resume_command, **options)


def _failed_calls(
    calls: Iterable[Work],
    task: str | None,
    error: str,
) -> list[Work]:
    """Return the calls that failed.

    Args:
        calls: The calls to select from.
        task: The name of the calls' task, or None for all tasks.
        error: The beginning of the calls' error.

    Raises:
        ConfigurationError: No call failed with this error.
    """
    from flowpregel._inspection.error_kinds import error_pattern  # noqa: PLC0415
    from flowpregel._inspection.tasks import error_line  # noqa: PLC0415

    pattern = error_pattern(error)
    selected: list[Work] = []
    for call in calls:
        if call.state != "failed":
            continue
        call_error = error_pattern(error_line(call.error))
        if task in (None, _name_of_task(call)) and call_error.startswith(pattern):
            selected.append(call)
    if not selected and (task is not None or pattern):
        raise ConfigurationError(
            "no failed call has this task and error; `flowpregel show` lists the "
            "errors of a run by kind"
        )
    return selected


def _name_of_task(call: Work) -> str:
    """Return the name of the task of a call."""
    if call.ran is not None and call.ran.name:
        return call.ran.name
    return "" if call.call_key is None else call.call_key.name


@console.thread_command("redo")
@click.argument(
    "calls",
    metavar="[CALL]...",
    nargs=-1,
)
@click.option(
    "--gone",
    is_flag=True,
    help="Take back the calls of which an output file or a stored value is gone.",
)
def redo_command(
    thread: str,
    calls: Sequence[str],
    gone: bool,
    store: str | None,
) -> None:
    """Take results of calls back.

    The next run makes these calls again, and the calls that depend on them. CALL is the
    id or the text of a call, such as "parse('c.txt')", or the beginning of either. With
    --gone, calls are taken back if an output file, or the file of a stored value in
    their result, no longer exists. Nodes, and calls of nested graphs, are not taken
    back. If this machine lacks the whole folder of stored values, no call is taken
    back, because the folder may not be mounted.
    """
    if not calls and not gone:
        raise ConfigurationError("name the calls to take back, or pass --gone")
    recorded = _recorded_calls(thread, store)
    names = list(calls)
    if gone:
        names += _calls_without_outputs(thread, store)
        names += _calls_without_values(recorded)
    # If many values are gone, most names are ids. Ids are looked up in a dict, because
    # `_select_call` compares a name with all calls.
    by_id = {call.id: call for call in recorded}
    selected: dict[str, Work] = {}
    for name in names:
        work = by_id.get(name) or _select_call(recorded, name, "call")
        selected[work.id] = work
    works = list(selected.values())
    texts = [str(work.name) for work in works]
    result = {"thread_id": thread, "taken_back": texts}
    if not works:
        console.print_result(
            result,
            "no call of the outermost graph has lost an output file or a stored value",
            "`flowpregel check` finds those that nodes of this graph have lost",
        )
        return
    _take_back(store, works)
    lines = [f"taken back: {text}" for text in texts]
    console.print_result(result, *lines)
    command = command_line(command_words("resume", thread), ["--store", str(store)])
    print_note(f"resume with: {command}")


def _calls_without_outputs(thread: str, store: str | None) -> list[str]:
    """Return the ids of those calls of a thread's last run that have lost an output
    file.
    """
    from flowpregel._inspection.output_files import gone_outputs  # noqa: PLC0415

    with targets.open_to_read(store) as saver:
        gone = gone_outputs(saver, Address(thread))
        return [call.task_id for call, _ in gone if call.is_call]


def _calls_without_values(calls: Iterable[Work]) -> Iterator[str]:
    """Yield the ids of the calls whose results have handles of stored values that no
    longer exist. If several values of a call are gone, the id is repeated.

    Raises:
        ConfigurationError: This machine lacks a whole folder of stored values, or a
            package with which to reach it.
        StoreError: A file system cannot be reached.
    """
    from flowpregel._inspection.stored_values import (  # noqa: PLC0415
        missing_folder_text,
        stored_values,
    )
    from flowpregel.executors.value_files import file_states  # noqa: PLC0415

    values = list(stored_values(calls))
    states = file_states(value.location for value in values)
    for state in states.values():
        if state.error is not None:
            raise state.error
        if state.missing_folder is not None:
            raise ConfigurationError(missing_folder_text(state.missing_folder))
    for value in values:
        if states[value.location].is_lost:
            yield value.task.id


def _take_back(store: str | None, calls: Sequence[Work]) -> None:
    """Delete the results of calls from a store."""
    ids: dict[Address, list[str]] = {}
    for call in calls:
        ids.setdefault(call.address, []).append(call.id)
    with targets.open_to_write(store) as saver:
        for address, ids_at_address in ids.items():
            saver.redo(address, ids_at_address)


def _recorded_calls(thread: str, store: str | None) -> list[Work]:
    """Return the recorded calls of a thread's last run."""
    return [task for task in _recorded_tasks(thread, store) if task.is_call]


def _recorded_tasks(thread: str, store: str | None) -> list[Work]:
    """Return the recorded calls and nodes of a thread's last run."""
    from flowpregel._inspection.run_tasks import work_of_last_run  # noqa: PLC0415

    with targets.open_to_read(store) as saver:
        targets.newest_checkpoint(saver, thread)
        return work_of_last_run(saver, thread)


def _select_call(
    calls: Sequence[Work],
    name: str | None,
    kind: str,
) -> Work:
    """Return the call that *name* identifies.

    Args:
        calls: The calls to select from.
        name: The id or the text of a call, or the beginning of either. If it is None,
            there must be only one call.
        kind: The kind of the calls, for the error message.

    Raises:
        ConfigurationError: No call matches, or several calls match.
    """
    prefix = name or ""
    matches = [call for call in calls if prefix in (call.id, call.name)]
    # Every text begins with the empty string. So an empty *name*, which is more likely
    # the value of an unset shell variable, must not match by the beginning.
    if not matches and name != "":
        matches = [
            call
            for call in calls
            if call.id.startswith(prefix) or str(call.name).startswith(prefix)
        ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigurationError(
            f"{len(matches)} calls match; name one by its id:{_list_calls(matches)}"
        )
    problem = f"there is no {kind}"
    if name is not None:
        problem += f" {name!r}"
    if calls:
        problem += f"; there are:{_list_calls(calls)}"
    raise ConfigurationError(problem)


def _list_calls(calls: Sequence[Work]) -> str:
    """Return the ids and texts of the first calls, one call a line."""
    lines = [f"\n  {call.id[:8]}  {call.name}" for call in calls[:_MOST_LISTED]]
    more = len(calls) - len(lines)
    if more > 0:
        lines.append(f"\n  and {more:,} more, which `flowpregel show` lists")
    return "".join(lines)
