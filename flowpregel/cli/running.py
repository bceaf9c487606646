"""The commands that run something, or stop it.

These are: run, resume, answer, cancel, signal, wake, recover.

`perform` runs a flow for them: it shows the progress, prints the end, and returns an
exit code.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flowpregel import errors
from flowpregel._core.commands import Command, Interrupt
from flowpregel._core.records import Address, Saved
from flowpregel.checkpoint.base import BaseCheckpointSaver
from flowpregel.checkpoint.work import is_paused, work_of
from flowpregel.cli import console, targets
from flowpregel.cli.console import Code, code_of, note
from flowpregel.errors import ConfigurationError
from flowpregel.runtime import AWAITS_SIGNAL, SLEEPS_UNTIL, pauses
from flowpregel.watching.preview import (
    FULL,
    Limits,
    one_line,
    question_to_json,
    to_json,
)

if TYPE_CHECKING:
    from flowpregel.pregel.pregel import Pregel

_RESULT = Limits(depth=6, count=50, size=2_000, total=2_000)
_PERIOD = 0.05
_WAIT = "Wait for its end this many seconds; 0 only asks."
_ID = "Names the run, to go on with it; by default the flow's name."
_INPUT = "What the flow is given: JSON, @FILE with JSON in it, or @- for stdin."
_FLOW_HELP = "The flow; by default the one that `flowpregel run` recorded."
FLOW_OPTION = click.Option(["--flow"], metavar="MODULE:FLOW", help=_FLOW_HELP)
_MOST_TASKS = "At most N tasks at a time."
_CODE_CHANGE = (
    "What to do with recorded results of other code: keep (default), rerun, error."
)
_KEEP = click.Choice(["keep", "rerun", "error"])
_UNREADABLE = click.Choice(["error", "rerun"])
_LOST_CLASS = (
    "What to do with recorded results whose class is gone: error (default), rerun."
)
_UNMATCHED = (
    "Before the first call that no recorded one of its task fits: run it, or error."
)
_STOP_AFTER = (
    "End in time after this long (3h50m), with exit code 75; run again, it goes on."
)
_STOP_GRACE = (
    "How long running tasks have then, and after SIGTERM, to save and end (20s)."
)
_CONFLICT = "If another process has the run: wait for its result, raise, or takeover."
_DURABILITY = "When a result is on disk: sync, async (default) or exit."
_METADATA = (
    "Kept with the run's checkpoints: NAME=VALUE, VALUE as JSON or text; several times."
)
_TAG = "Kept with the run's checkpoints, and given to tasks; several times."
_CONTEXT = "What tasks get as context: JSON, or @FILE with JSON in it."
_EVERY = "Go on looking for such runs, so often, until it is stopped."
_NOT_OF_RUNS = ("store", "quiet", "traceback")


def given_value(value: str, *, text: bool) -> Any:
    """Return what a VALUE stands for: JSON, or text where it is none, or is said to
    be.
    """
    if not text:
        with suppress(ValueError):
            return json.loads(value)
    return value


def _metadata(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> Any:
    """Return the dict that ``--metadata NAME=VALUE`` stands for; None: it was not
    given.
    """
    metadata = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not (name and mark):
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        metadata[name] = given_value(value, text=False)
    return metadata or None


def _context(_: click.Context, __: click.Parameter, value: str | None) -> Any:
    """Return the value that ``--context`` names; None: it was not given."""
    return None if value is None else json_of("--context", value)


RUN_OPTIONS = (
    click.Option(["--quiet"], is_flag=True, help="Show no progress."),
    click.Option(["--traceback"], is_flag=True, help="Show where a failed run failed."),
    click.Option(
        ["--max-concurrency"], type=console.COUNT, metavar="N", help=_MOST_TASKS
    ),
    click.Option(
        ["--durability"], type=click.Choice(["sync", "async", "exit"]), help=_DURABILITY
    ),
    click.Option(
        ["--metadata"],
        multiple=True,
        metavar="NAME=VALUE",
        callback=_metadata,
        help=_METADATA,
    ),
    click.Option(["--tag", "tags"], multiple=True, metavar="TAG", help=_TAG),
    click.Option(["--context"], metavar="JSON|@FILE", callback=_context, help=_CONTEXT),
    click.Option(["--on-code-change"], type=_KEEP, default="keep", help=_CODE_CHANGE),
    click.Option(
        ["--on-unreadable"], type=_UNREADABLE, default="error", help=_LOST_CLASS
    ),
    click.Option(
        ["--on-unmatched"],
        type=click.Choice(["run", "error"]),
        default="run",
        help=_UNMATCHED,
    ),
    click.Option(
        ["--on-conflict"],
        type=click.Choice(["wait", "raise", "takeover"]),
        help=_CONFLICT,
    ),
    click.Option(
        ["--stop-after"], metavar="TIME", callback=console.duration, help=_STOP_AFTER
    ),
    click.Option(
        ["--stop-grace"], metavar="TIME", callback=console.duration, help=_STOP_GRACE
    ),
)


@console.store_command(*RUN_OPTIONS)
@click.argument("flow", metavar="MODULE:FLOW")
@click.option("--input", "given", metavar="JSON|@FILE", required=True, help=_INPUT)
@click.option("--id", "--thread-id", "thread_id", metavar="ID", help=_ID)
@click.option(
    "--adopt", is_flag=True, help="Go on with another input than the run began with."
)
@click.option(
    "--again", is_flag=True, help="Start over; the earlier run stays in the history."
)
def run(
    flow: str,
    given: str,
    thread_id: str | None,
    adopt: bool,
    again: bool,
    **options: Any,
) -> Code:
    """Run a flow, go on with its run, or show the run's result.

    MODULE:FLOW is package.module:flow or path/to/file.py:flow. A run that was stopped
    or killed is run again by the same command: it goes on, and what had finished is not
    done again. A graph that is done begins a new run. With --again a new run begins in
    any case.
    """
    value, found = _input(given), targets.load_flow(flow)
    request = RunRequest(
        found, flow, found.name if thread_id is None else thread_id, options
    )
    if found.once is None:
        if adopt:
            raise ConfigurationError(
                f"--adopt is for a workflow of @entrypoint: {flow} is a graph"
            )
        return perform(request, value, resume=None if again else "auto")
    try:
        value = found.completed(value)
    except TypeError as error:
        raise ConfigurationError(f"--input: {error}") from error
    return perform(request, value, resume=replace(found.once, adopt=adopt, again=again))


def json_of(option: str, given: str) -> Any:
    """Return the value that an option names: JSON, a file with JSON in it, or stdin.

    Raises:
        ConfigurationError: It names none; the message names *option*.
    """
    try:
        if given == "@-":
            given = sys.stdin.read()
        elif given.startswith("@"):
            given = Path(given[1:]).read_text("utf-8")
        return json.loads(given)
    except OSError as error:
        raise ConfigurationError(f"{option}: {error}") from error
    except ValueError as error:
        raise ConfigurationError(
            f"{option} is not JSON: {error}; a text needs quotes of its own: '\"text\"'"
        ) from error


def _input(given: str) -> Any:
    """Return the value that ``--input`` names."""
    value = json_of("--input", given)
    if value is None:
        raise ConfigurationError(
            "--input is null, and a run needs input to start with; `flowpregel resume` "
            "goes on"
        )
    return value


@console.thread_command(FLOW_OPTION, *RUN_OPTIONS)
def resume(thread: str, flow: str | None, **options: Any) -> Code:
    """Go on with a thread's unfinished run."""
    found = targets.flow_of(thread, flow, options["store"])
    try:
        request = RunRequest(found, flow, thread, options)
        return perform(request, None, resume=found.once)
    except errors.EmptyInputError as error:
        raise ConfigurationError(
            f"thread {thread!r} has no run to go on with"
        ) from error


@console.thread_command(FLOW_OPTION, *RUN_OPTIONS)
@click.argument("value")
@click.option(
    "--id", "interrupt_id", metavar="ID", help="Which question, if there are several."
)
@click.option(
    "--text", is_flag=True, help="VALUE is text, even where it looks like JSON."
)
def answer(
    thread: str,
    value: str,
    interrupt_id: str | None,
    text: bool,
    flow: str | None,
    **options: Any,
) -> Code:
    """Answer what a thread's run asks, and go on.

    VALUE is JSON; what is not JSON is text.
    """
    found = targets.flow_of(thread, flow, options["store"])
    with targets.flow_on(found, options["store"]) as app:
        questions = {
            each.id: each.value for each in app.get_state(thread_id=thread).interrupts
        }
    if not questions:
        raise ConfigurationError(f"thread {thread!r} asks nothing")
    shown = "\n".join(f"  {key}  {one_line(asked)}" for key, asked in questions.items())
    if interrupt_id is None and len(questions) > 1:
        raise ConfigurationError(
            f"{len(questions)} questions wait; say which by --id:\n{shown}"
        )
    question = next(iter(questions)) if interrupt_id is None else interrupt_id
    if question not in questions:
        raise ConfigurationError(
            f"no question has the id {question!r}; there are:\n{shown}"
        )
    given = given_value(value, text=text)
    request = RunRequest(found, flow, thread, options)
    return perform(request, Command(resume={question: given}))


@console.thread_command()
@click.option(
    "--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, help=_WAIT
)
def cancel(thread: str, wait: float, store: str | None) -> Code:
    """Stop a thread's run, in whatever process it is.

    What finished is kept. Tasks in worker processes are stopped. One that runs on an
    OS thread of the program ends first.
    """
    with targets.reading(store) as saver:
        targets.newest(saver, thread)
        owner = saver.cancel(thread)
        if owner is None:
            raise ConfigurationError(f"nothing runs on thread {thread!r}")
        deadline = time.monotonic() + wait
        while (runs := saver.owner(thread) == owner) and time.monotonic() < deadline:
            time.sleep(_PERIOD)
    told = {
        "thread_id": thread,
        "status": "asked" if runs else "stopped",
        "owner": str(owner),
    }
    console.print_result(
        told, *([] if runs else [f"stopped: {thread}; what finished is kept"])
    )
    if runs:
        note(f"{owner} was asked to stop {thread!r}, and has not yet")
    return Code.FAILED if runs and wait else Code.OK


@console.thread_command()
@click.argument("name")
@click.argument("value", default="null")
@click.option(
    "--text", is_flag=True, help="VALUE is text, even where it looks like JSON."
)
def signal(thread: str, name: str, value: str, text: bool, store: str | None) -> None:
    """Send a value to a run that waits, or will wait, for a signal.

    VALUE is JSON; what is not JSON is text. The run receives it at once if it is under
    way, otherwise when it goes on.
    """
    with targets.writing(store) as saver:
        saver.send_signal(thread, name, given_value(value, text=text))
    console.print_result(
        {"thread_id": thread, "signal": name}, f"sent: {name} to {thread}"
    )


@console.store_command(*RUN_OPTIONS)
def wake(**options: Any) -> Code:
    """Go on with the runs that were stopped, or need wait no longer.

    A run need wait no longer when its time or signal has come. For cron: one that waits
    again is left to the next call. Runs that wait for an answer, stand at a breakpoint,
    have failed, or are under way are left alone. Exits with 0 if all that it went on
    with are done, or wait again.
    """
    with targets.reading(options["store"]) as saver:
        due = [
            saved
            for each in saver.threads()
            if each.status in ("stopped", "waiting")
            and (saved := saver.load(Address(each.thread_id))) is not None
            and (each.status == "stopped" or _may_go_on(saved))
        ]
    return max((_woken(saved, options) for saved in due), default=Code.OK)


@console.store_command(*RUN_OPTIONS)
@click.option("--every", type=click.FloatRange(min=0.1), metavar="SECONDS", help=_EVERY)
def recover(every: float | None, **options: Any) -> Code:
    """Go on with the runs whose process has died, on any machine.

    A run is taken for dead when its lease is out (PostgresSaver(lease_ttl=...)). What
    it had recorded is not done again. Needs the program of the run: its flow is
    imported here.
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver  # noqa: PLC0415 - keeps --help fast

    codes: dict[str, Code] = {}
    while True:
        with targets.reading(options["store"]) as saver:
            if isinstance(saver, LMDBSaver):
                raise ConfigurationError(
                    "recover is for a store in PostgreSQL; "
                    "`flowpregel wake` goes on with a folder's"
                )
            found = [
                saver.load(each) for each in saver.abandoned() if not each.namespace
            ]
        for saved in found:
            if saved is None or is_paused(saved):
                continue  # at a breakpoint a person decides
            thread_id = saved.address.thread_id
            # One that has failed is to be looked at by a person, not tried again and
            # again.
            if codes.get(thread_id, Code.OK) is Code.OK:
                codes[thread_id] = _woken(saved, options)
        if every is None:
            return max(codes.values(), default=Code.OK)
        time.sleep(every)


def _may_go_on(saved: Saved) -> bool:
    """Return whether a run may wait no longer for a time or a signal."""
    asked = [each.value for work in work_of(saved) for each in work.interrupts]
    until = [
        str(value.get(SLEEPS_UNTIL, "")) for value in asked if waits_outside(value)
    ]
    now = time.time()
    return any(
        not due or datetime.fromisoformat(due).timestamp() <= now for due in until
    )


def _woken(saved: Saved, options: dict[str, Any]) -> Code:
    """Go on with one run; what is wrong with it does not keep the others waiting."""
    thread_id = saved.address.thread_id
    options = {**options, "on_conflict": options["on_conflict"] or "raise"}
    token = pauses.set(True)  # it stops where it waits for a time or a signal
    try:
        flow = targets.recorded_flow(saved)
        request = RunRequest(flow, None, thread_id, options)
        code = perform(request, None, resume=flow.once)
    except errors.ThreadBusyError:
        code = Code.OK  # another process was faster
    except errors.FlowPregelError as error:
        note(f"error: {thread_id}: {error}")
        code = console.code_of(error)
    finally:
        pauses.reset(token)
    return Code.OK if code is Code.WAITING else code


# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class RunRequest:
    """What a command was asked to run, and how."""

    flow: Pregel
    name: str | None
    """``MODULE:FLOW``, as it was named; None: it is the one that the run recorded."""
    thread_id: str | None
    """None: the run keeps nothing."""
    options: Mapping[str, Any]
    """The ``store``, and what `RUN_OPTIONS` came to."""

    def command(self, name: str, *words: str) -> str:
        """Return the command line that goes on with this run."""
        # Without --store the flow must be named: its own checkpointer is the store.
        path = self.options["store"]
        store = ["--flow", str(self.name)] if path is None else ["--store", path]
        return shlex.join(["flowpregel", name, str(self.thread_id), *words, *store])

    @property
    def kept(self) -> str:
        """What is said of a run that did not come to its end."""
        if self.thread_id is None:
            return "nothing is kept"
        return f"what finished is kept; go on with: {self.command('resume')}"

    def ended(self, code: Code, *texts: str, **more: Any) -> Code:
        """Print how the run ended, as JSON if that was asked for, otherwise *texts*."""
        told = {"status": console.STATUSES[code], "thread_id": self.thread_id, **more}
        console.print_result(told, *texts)
        return code


def perform(request: RunRequest, given: Any, *, resume: Any = None) -> Code:
    """Run a flow on *given*, print how it ended, and return the exit code.

    Args:
        request: What was asked for.
        given: The input.
        resume: What becomes of a run that is kept under the id, as a `GraphRun` takes
            it.

    Raises:
        click.exceptions.Exit: The command was told to end: no other run may follow.
    """
    from flowpregel.cli.watching import run_to_end  # noqa: PLC0415 - keeps --help fast

    options = {
        name: value
        for name, value in request.options.items()
        if name not in _NOT_OF_RUNS
    }
    try:
        with targets.flow_on(request.flow, request.options["store"]) as flow:
            if not isinstance(flow.checkpointer, BaseCheckpointSaver):
                resume, request = None, replace(request, thread_id=None)
                note(
                    "no store: what this run does is not kept (pass --store PATH to "
                    "keep it)"
                )
            options |= {"thread_id": request.thread_id}
            is_quiet = request.options["quiet"]
            output, interrupts = run_to_end(
                flow, given, options, resume, is_quiet=is_quiet
            )
    except (KeyboardInterrupt, errors.TaskCancelled) as error:
        code = Code.AGAIN if isinstance(error, errors.RunStopped) else Code.STOPPED
        request.ended(code)
        note(
            "\n".join(
                filter(None, [getattr(error, "reason", ""), f"stopped; {request.kept}"])
            )
        )
        # of this run alone, by `flowpregel cancel`
        if type(error) is errors.TaskCancelled:
            return code
        raise click.exceptions.Exit(code) from error
    except Exception as error:
        if code_of(error) is not Code.FAILED:
            raise
        return _failed(request, error)
    if not interrupts:
        return request.ended(
            Code.OK, one_line(output, _RESULT), output=to_json(output, FULL)
        )
    questions = [question_to_json(each, FULL) for each in interrupts]
    lines = [_waiting_for(each, request) for each in interrupts]
    request.ended(Code.WAITING, *lines, interrupts=questions)
    if not all(waits_outside(each.value) for each in interrupts):
        note(f"answer with: {request.command('answer', 'VALUE')}")
    return Code.WAITING


def waits_outside(value: Any) -> bool:
    """Return whether what a run is interrupted for is no question: a time, or a
    signal.
    """
    return isinstance(value, Mapping) and not {*value}.isdisjoint(
        (SLEEPS_UNTIL, AWAITS_SIGNAL)
    )


def _waiting_for(interrupt: Interrupt, request: RunRequest) -> str:
    if not waits_outside(interrupt.value):
        return f"waits for an answer to {interrupt.id}: {one_line(interrupt.value)}"
    (what, value) = next(iter(interrupt.value.items()))
    if what == SLEEPS_UNTIL:
        return f"sleeps until {value}"
    return f"waits for a signal: {request.command('signal', str(value), 'VALUE')}"


def _failed(request: RunRequest, error: Exception) -> Code:
    kind, notes = (
        type(error).__name__,
        [str(line) for line in getattr(error, "__notes__", [])],
    )
    request.ended(
        Code.FAILED, error={"type": kind, "message": str(error), "notes": notes}
    )
    if request.options["traceback"]:
        note("".join(traceback.format_exception(error)).rstrip())
    else:
        note("\n".join([f"failed: {kind}: {error}", *notes]))
    if request.thread_id is not None:
        note(request.kept)
    return Code.FAILED
