"""The commands that find out what is wrong with a run, and put it right.

These are: check, debug, why, retry, redo, logs.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from flowpregel._core.records import Address, Saved
from flowpregel._text import in_one_line, printable
from flowpregel._tracebacks import whole_text
from flowpregel.checkpoint.work import Work
from flowpregel.cli import console, running, targets
from flowpregel.cli.console import Code, note
from flowpregel.errors import ConfigurationError
from flowpregel.watching.preview import FULL, one_line, to_json

if TYPE_CHECKING:
    from flowpregel.checkpoint.arguments import KeptArguments
    from flowpregel.checkpoint.base import CallOutput
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.pregel.pregel import Pregel

_MOST = 20
"""Of the calls that may be meant, this many are listed."""
_PAUSE = 0.2
"""Seconds between two looks of --follow."""


@click.command
@click.argument("store", envvar="FLOWPREGEL_STORE")
@click.argument("flow", metavar="[MODULE:FLOW]", required=False)
@click.option("--unfinished", is_flag=True, help="Leave finished runs out.")
def check(store: str, flow: str | None, unfinished: bool) -> Code:
    """Show what the runs of a store would do with the code as it is now.

    The body of each unfinished run is gone through with the recorded results; no task
    runs, and nothing is written. A finished run is shown if its kept result is one of
    other code. With MODULE:FLOW only its runs are checked, and those that do not record
    a flow. A run that a process has now is left out.

    The exit code is 1 if one would not go on as before: it would fail, use results of
    other code, or not ask for recorded calls.
    """
    from flowpregel.pregel.dry_replay import check_runs, owns  # noqa: PLC0415 - keeps --help fast

    given = None if flow is None else targets.load_flow(flow)

    def flow_of(saved: Saved) -> Pregel | None:
        if given is None:
            return targets.recorded_flow(saved)
        return given if owns(given, saved) else None

    # What bodies print is no result.
    with targets.writing(store) as saver, redirect_stdout(sys.stderr):
        every = dict(check_runs(saver, flow_of, finished=not unfinished))
    found = {key: run for key, run in every.items() if not (run.is_done and run.fits)}
    rows = [
        {"thread_id": key, "fits": run.fits, **asdict(run)}
        for key, run in found.items()
    ]
    misfits = sum(not run.fits for run in found.values())
    lines = [f"{key}\n{run}".replace("\n", "\n  ") for key, run in found.items()]
    begun = sum(not run.is_done for run in found.values())
    lines.append(f"unfinished runs: {begun:,}; do not fit the code: {misfits:,}")
    console.print_result(rows, *lines)
    return Code.FAILED if misfits else Code.OK


check.params += [console.TRUST, console.AS_JSON]


@console.thread_command(running.FLOW_OPTION)
@click.argument("call", required=False)
@click.option(
    "--pdb", "in_pdb", is_flag=True, help="Look at its error in Python's debugger."
)
def debug(
    thread: str, call: str | None, in_pdb: bool, flow: str | None, store: str | None
) -> None:
    """Make a failed call again, in this process.

    It gets the arguments that it had. CALL is its id or its text, such as
    "parse('c.txt')", or the beginning of either; where only one call failed it may be
    left out. The code is that of now. Nothing is written to the store.
    """
    failed = [each for each in _calls(thread, store) if each.state == "failed"]
    work = _chosen(failed, call, "call that failed")
    targets.flow_of(thread, flow, store)
    with targets.opened(targets.existing(store), readonly=True) as saver:
        kept = saver.kept_arguments(work.address, work.id)
    if kept is None:
        raise ConfigurationError(f"the arguments of {work.name} are not kept")
    function = _function_of(kept)
    try:
        with redirect_stdout(sys.stderr):  # what it prints is no result
            result = function(*kept.args, **kept.kwargs)
    except Exception as error:
        note(whole_text(error).rstrip())
        if in_pdb:
            resolve_name("pdb:post_mortem")(error.__traceback__)
        console.print_result({"call": work.name, "error": to_json(error, FULL)})
        raise click.exceptions.Exit(Code.FAILED) from error
    console.print_result(
        {"call": work.name, "result": to_json(result, FULL)}, one_line(result)
    )


def _function_of(kept: KeptArguments) -> Callable[..., Any]:
    """Return what makes a call again whose arguments are kept.

    Raises:
        ConfigurationError: It is not there, or one of the arguments is not.
    """
    for place, why in kept.missing.items():
        raise ConfigurationError(f"argument {place!r} was not kept: {why}")
    try:
        found = resolve_name(kept.function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"there is no task {kept.function} ({error}); it has to be at the top of "
            "its module"
        ) from error
    if not kept.function.endswith(".map"):
        again: Callable[..., Any] = getattr(found, "call_here", found)
        return again

    def each_of(_: int, items: Iterable[tuple[Any, ...]]) -> list[Any]:
        return [found.__self__.call_here(*item) for item in items]

    return each_of


@console.thread_command(running.FLOW_OPTION)
@click.argument("call")
def why(thread: str, call: str, flow: str | None, store: str | None) -> None:
    """Show how a call came to its result, and what the next run does.

    That takes the result from the record, or makes the call again. CALL is its id or
    its text, such as "parse('c.txt')", or the beginning of either.
    """
    work = _chosen(_calls(thread, store), call, "call")
    next_time = _next_time(work, targets.flow_of(thread, flow, store))
    told = {"call": work.name, "id": work.id, "made": _made(work), "next": next_time}
    console.print_result(told, *(f"{name}: {text}" for name, text in told.items()))


def _made(work: Work) -> str:
    """Return how a call came to its result, in words."""
    if (ran := work.ran) is None:
        return "it has begun; when and where was not kept"
    if not ran.attempts:
        return "not at all: a cache had the result"
    often = f"{ran.attempts} times, the last " if ran.attempts > 1 else ""
    how = f"{often}at {console.time_of(ran.began)} by {ran.executor}, process {ran.pid}"
    return f"{how}, in {ran.seconds:.3f} s; {work.state}"


def _next_time(work: Work, flow: Pregel) -> str:
    """Return what the next run does about a call, if it asks for it again, in words."""
    if work.state == "failed":
        return "it is tried again, unless the flow has caught its failure"
    if work.state != "done" or work.asked is None:
        return "it is made, or goes on"
    steps = [step for node in flow.nodes.values() for step in node.steps]
    near = [
        value for step in steps for value in getattr(step, "__globals__", {}).values()
    ]
    tasks: list[Any] = [each for each in near if hasattr(type(each), "call_here")]
    name = work.asked.name.removesuffix(".map")
    codes = {each.code for each in tasks if each.name == name}
    if not codes:
        return (
            f"the record answers it; there is no task {name!r} beside the flow to "
            "compare with"
        )
    if work.asked.code in codes:
        return "the record answers it; its code is what it was"
    return (
        "the record answers it, though its code has changed; on_code_change='rerun' "
        "makes it anew"
    )


_FAILED = click.Option(
    ["--failed"], is_flag=True, help="Those too that the flow has dealt with."
)


@click.command(params=[_FAILED, *running.resume.params])
def retry(failed: bool, **asked: Any) -> Any:
    """Go on with a thread's run, and try again what failed.

    What is done stays.
    """
    if failed:
        calls = _calls(asked["thread"], asked["store"])
        _take_back(asked["store"], [each for each in calls if each.state == "failed"])
    return click.get_current_context().invoke(running.resume, **asked)


@console.thread_command()
@click.argument("calls", metavar="CALL...", nargs=-1, required=True)
def redo(thread: str, calls: Sequence[str], store: str | None) -> None:
    """Take results of calls back.

    The next run makes these calls again, and what follows from them. CALL is the id of
    a call or its text, such as "parse('c.txt')", or the beginning of either.
    """
    recorded = _calls(thread, store)
    chosen = [_chosen(recorded, each, "call") for each in calls]
    _take_back(store, chosen)
    names = [str(each.name) for each in chosen]
    told = {"thread_id": thread, "taken_back": names}
    console.print_result(told, *(f"taken back: {name}" for name in names))
    note(
        "go on with: "
        f"{shlex.join(['flowpregel', 'resume', thread, '--store', str(store)])}"
    )


def _take_back(store: str | None, chosen: Sequence[Work]) -> None:
    with targets.writing(store) as saver:
        for address in {each.address for each in chosen}:
            saver.redo(address, [each.id for each in chosen if each.address == address])


def _calls(thread: str, store: str | None) -> list[Work]:
    """Return the recorded calls of a thread's last run."""
    with targets.reading(store) as saver:
        targets.newest(saver, thread)
        return [
            each for each in targets.work_of_last_run(saver, thread) if each.is_call
        ]


def _chosen(calls: Sequence[Work], name: str | None, what: str) -> Work:
    """Return the call whose id or text is *name*, or begins so; the only one if that is
    None.

    Raises:
        ConfigurationError: There is none, or there are several.
    """
    wanted = name or ""
    found = [each for each in calls if wanted in (each.id, each.name)]
    found = found or [
        each
        for each in calls
        if wanted in (each.id[: len(wanted)], str(each.name)[: len(wanted)])
    ]
    if len(found) == 1:
        return found[0]
    listed = "".join(
        f"\n  {each.id[:8]}  {each.name}" for each in (found or calls)[:_MOST]
    )
    if found:
        raise ConfigurationError(
            f"{len(found)} calls may be meant; name one by its id:{listed}"
        )
    named = "" if name is None else f" {name!r}"
    raise ConfigurationError(
        f"there is no {what}{named}{listed and '; there are:'}{listed}"
    )


# what they have printed ----------------------------------------------------


@console.thread_command()
@click.argument("call", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until no run has the thread.")
def logs(thread: str, call: str | None, follow: bool, store: str | None) -> None:
    """Show what the calls of a run have printed and logged.

    The run is the thread's last one. CALL is the id of a call or its text, such as
    "parse('c.txt')", or the beginning of either; all that begin so are shown. With
    --json each part is an object in a line of its own.
    """
    seen: dict[str, int] = {}
    shown = ""
    with targets.reading(store) as saver, suppress(KeyboardInterrupt):
        is_running = True
        while is_running:
            # Before the look: what a run has printed is there once it has ended.
            is_running = follow and saver.owner(thread) is not None
            for output in _of_last_run(saver, thread, wait=is_running):
                known = seen.get(output.task_id, 0)
                is_meant = call is None or output.task_id.startswith(call)
                if output.size > known and (
                    is_meant or output.name.startswith(str(call))
                ):
                    _print(output, known, is_new=shown != output.task_id)
                    shown, seen[output.task_id] = output.task_id, output.size
            if is_running:
                time.sleep(_PAUSE)
        if not seen and call is not None:
            raise ConfigurationError(f"no call {call!r} has printed anything")
        if not seen:
            note("no output is kept; it is that of calls in worker processes")


def _of_last_run(
    saver: DurableSaver, thread_id: str, *, wait: bool
) -> Iterator[CallOutput]:
    """Yield the output of the calls of a thread's last run, nested ones included."""
    from flowpregel.pregel.runs import last_run  # noqa: PLC0415 - keeps --help fast

    history = last_run(saver, Address(thread_id))
    if not history and not wait:
        targets.newest(saver, thread_id)
    for address in saver.namespaces(thread_id) if history else ():
        for output in saver.kept_output(address):
            if output.began >= history[0].checkpoint.at:
                yield output


def _print(output: CallOutput, known: int, *, is_new: bool) -> None:
    """Print what came of a call after its first *known* bytes."""
    text = output.after(known)
    if console.is_asked("--json"):
        console.print_json({"id": output.task_id, "call": output.name, "text": text})
        return
    if is_new:
        click.echo(f"[{in_one_line(output.name)}]")
    click.echo(printable(text), nl=not text.endswith("\n"))
